"""A token of an identity provider: whether it is genuine, meant for us and in force; and who holds it.

Only here is PyJWT used, which is an option (`forebay[oidc]`) and loaded when the first token is looked at.  A
token's own word is believed in nothing before its signature is verified, but for which key that takes, and
then only an asymmetric algorithm that the key is for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay.app.config_oidc import OidcConfig
from forebay.app.oidc_keys import ALL_ALGORITHMS, IssuerKey
from forebay.core.errors import Unauthenticated
from forebay.gateway.tenancy import Role

TOKEN_MAX_CHARS: Final = 16_384
SUBJECT_MAX_CHARS: Final = 255  #: as OpenID Connect has it
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_REQUIRED: Final = ("iss", "sub", "aud", "exp")
_NAMES: Final = ("email", "preferred_username", "name")  #: what people recognise somebody by, the best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What must be known of a token before it is verified."""

    algorithm: str
    kid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Whom a verified token is about."""

    subject: str
    name: str
    roles: tuple[Role, ...]  #: all that it tells; empty where none of those that let in is among them


def looks_like_one(token: str) -> bool:
    """Whether it has the form of a signed token (JWS)."""
    return len(token) <= TOKEN_MAX_CHARS and _FORM.fullmatch(token) is not None


def read_signed(token: str, config: OidcConfig) -> Signed:
    """Raises Unauthenticated for what can't be a token of this issuer, so that nobody is asked about it."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated("the token can't be read") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALL_ALGORITHMS:
        raise Unauthenticated(
            f"the token is signed by {str(algorithm)[:20]!r}; accepted are {', '.join(ALL_ALGORITHMS)}"
        )
    if claims.get("iss") != config.issuer:
        raise Unauthenticated(f"the token is of another issuer than {config.issuer}")
    return Signed(algorithm=algorithm, kid=kid if isinstance(kid, str) else None)


def verify_token(token: str, signed: Signed, key: IssuerKey, config: OidcConfig) -> Holder:
    """Raises Unauthenticated, which says what is wrong with it."""
    import jwt

    try:
        claims = jwt.decode(
            token,
            jwt.PyJWK(dict(key.jwk), signed.algorithm),
            algorithms=[signed.algorithm],
            audience=config.audience,
            issuer=config.issuer,
            leeway=config.leeway_s,
            options={"require": list(_REQUIRED), "enforce_minimum_key_length": True},
        )
    except jwt.ExpiredSignatureError:
        raise Unauthenticated("the token has expired: get a new one from the identity provider") from None
    except jwt.ImmatureSignatureError:
        raise Unauthenticated("the token is not valid yet: the clocks may differ") from None
    except jwt.InvalidAudienceError:
        raise Unauthenticated(f"the token is not for the audience {config.audience!r}") from None
    except jwt.InvalidIssuerError:
        raise Unauthenticated(f"the token is of another issuer than {config.issuer}") from None
    except jwt.MissingRequiredClaimError as error:
        raise Unauthenticated(f"the token lacks the claim {error.claim!r}") from None
    except jwt.InvalidSignatureError:
        raise Unauthenticated("the token's signature is wrong") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise Unauthenticated("the token, or the key that it names, can't be used") from None
    return _find_holder(claims, config)


def _find_holder(claims: Mapping[str, Any], config: OidcConfig) -> Holder:
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_MAX_CHARS or not subject.isprintable():
        raise Unauthenticated(f"the token's `sub` is not 1 to {SUBJECT_MAX_CHARS} printable characters")
    names = (claims.get(name) for name in _NAMES)
    shown = next((name for name in names if isinstance(name, str) and name.strip()), subject)
    return Holder(
        subject=subject,
        name="".join(letter for letter in shown if letter.isprintable()).strip()[:200] or subject,
        roles=find_roles(find_values(claims, config.roles_claim), config),
    )


def find_values(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """What the claim tells: a list of texts, or words in one text; empty where it is not there.

    A claim of that whole name comes before one at a path: `https://company.example/roles` has dots as well.
    """
    value: object = claims.get(claim)
    if value is None:
        value = claims
        for part in claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return frozenset((value, *value.split()))
    return (
        frozenset(each for each in value if isinstance(each, str)) if isinstance(value, list) else frozenset()
    )


def find_roles(values: frozenset[str], config: OidcConfig) -> tuple[Role, ...]:
    """All that the values make their holder, the lowest first: a viewer who reports as well is both."""
    roles = config.roles
    made = {
        Role.REPORTER: roles.reporter,
        Role.VIEWER: roles.viewer,
        Role.OPERATOR: roles.operator,
        Role.OWNER: roles.owner,
    }
    return tuple(role for role in Role if not values.isdisjoint(made[role]))
