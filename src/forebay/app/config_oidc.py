"""The part of `forebay.yaml` that names an identity provider whose tokens open the admin API.

What each setting may look like, and what can be said of the section without asking the provider.  It opens no
connection; that a needed package is there is looked up without loading it.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictFloat

from forebay.app.config_values import ResolvedPath, Section, check_url

DISCOVERY: Final = "/.well-known/openid-configuration"
PACKAGES: Final = ("jwt", "cryptography")  #: of the extra `oidc`
ROLES: Final = ("reporter", "viewer", "operator", "owner")


def _check_issuer(value: str) -> str:
    """As it is, a slash at its end included: tokens name it letter by letter."""
    check_url(value)
    return value


def _check_keys_url(value: str) -> str:
    """Some providers tell their sets of keys apart by the query."""
    path, mark, query = value.partition("?")
    check_url(path)
    if not query.isascii() or any(letter <= " " or letter in "#\x7f" for letter in query):
        raise ValueError("the query must be in ASCII, without blanks and without a fragment")
    return path + mark + query


KeysUrl = Annotated[str, AfterValidator(_check_keys_url)]
Issuer = Annotated[str, Field(max_length=500), AfterValidator(_check_issuer)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Words = Annotated[tuple[Word, ...], Field(max_length=1000)]


class OidcRoles(Section):
    """Which values of the claim make whom; who has several may do what any of them may."""

    reporter: Words = Field(default=(), description="Values whose holders may report signals, and no more.")
    viewer: Words = Field(default=(), description="Values whose holders may read.")
    operator: Words = Field(
        default=(), description="Values whose holders may also change teams, projects and keys."
    )
    owner: Words = Field(default=(), description="Values whose holders may do everything.")


class OidcConfig(Section):
    """An identity provider (OpenID Connect)."""

    issuer: Issuer = Field(
        description="The provider's address, letter by letter as `iss` of its tokens; https, or a loopback "
        "address."
    )
    audience: Word = Field(
        description="What `aud` of a token must name: this Forebay, as the provider knows it."
    )
    roles_claim: Word = Field(
        default="roles",
        description="The claim that tells the roles: its name, or a path such as `realm_access.roles`.",
    )
    roles: OidcRoles = Field(description="Which values of that claim make whom.")
    jwks_url: KeysUrl | None = Field(
        default=None,
        description="Where the provider's keys are, with a query where it wants one, which is no place for a "
        "secret; null asks its discovery document.",
    )
    tls_ca: ResolvedPath | None = Field(
        default=None, description="PEM file with the authorities to trust instead of the system's."
    )
    leeway_s: Annotated[StrictFloat, Field(ge=0, le=300, allow_inf_nan=False)] = Field(
        default=30.0, description="Seconds that the provider's clock may differ from this machine's."
    )
    timeout_s: Annotated[StrictFloat, Field(gt=0, le=30, allow_inf_nan=False)] = Field(
        default=5.0, description="Seconds that each question to the provider may take."
    )


#: The setting below `control.oidc`, what is wrong, how to mend it.
Fault = tuple[tuple[str, ...], str, str]


def check_oidc(section: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with the section as it stands in the file; values of a wrong type are passed over."""
    if missing := find_missing_packages():
        message = f"needs {' and '.join(missing)}, which is not installed"
        yield (), message, "pip install 'forebay[oidc]'"
    issuer = section.get("issuer")
    if isinstance(issuer, str) and DISCOVERY in issuer:
        hint = "leave that part out: it is added"
        yield ("issuer",), f"is the address of the document, not of the issuer: it has {DISCOVERY}", hint
    for name in ("issuer", "jwks_url"):
        url = section.get(name)
        if isinstance(url, str) and not is_trustworthy(url):
            message = "is asked without TLS: whoever is on the way could give keys of their own"
            yield (name,), message, "use https; http only for a loopback address"
    roles = section.get("roles")
    if isinstance(roles, Mapping):
        yield from _check_roles(roles)


def _check_roles(roles: Mapping[str, Any]) -> Iterator[Fault]:
    if not any(roles.get(role) for role in ROLES):
        hint = "name a value of the claim, such as `owner: [forebay-admins]`"
        yield ("roles",), "let nobody in", hint
    seen: dict[object, str] = {}
    for role in ROLES:
        values = roles.get(role)
        for value in values if isinstance(values, list) else ():
            if isinstance(value, str) and seen.setdefault(value, role) != role:
                yield ("roles", role), f"has {value[:100]!r}, as {seen[value]} has", "name it in one of them"


def find_missing_packages() -> list[str]:
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def is_trustworthy(url: str) -> bool:
    """Whether what it answers can be relied upon: over TLS, or from this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return True  # the setting itself reports it
    if parts.scheme != "http" or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
