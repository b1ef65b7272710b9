"""Signs requests to AWS: Signature Version 4, in the `authorization` header.  Pure: the time is an argument.

Source: "Create a signed AWS API request" in AWS's IAM User Guide.  It is made for services other than S3: the
path is encoded once more than on the wire, and the body's digest has no header of its own.  It sends nothing
and keeps no secret.
"""

import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from forebay.core.errors import UpstreamCredentials
from forebay.providers.translation import Headers

ALGORITHM: Final = "AWS4-HMAC-SHA256"
_ENDING: Final = "aws4_request"
_UNRESERVED: Final = "-_.~"  #: what AWS leaves as it is, beside letters and digits
_BLANKS = re.compile(r" +")
_PARTS: Final = (2, 3)


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Whose signature it is; with a session token for credentials that end by themselves."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""


def parse_credentials(secret: str) -> Credentials:
    """Credentials from `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, with `:SESSION_TOKEN` where there is one.

    None of the three can hold a colon.

    Raises:
        UpstreamCredentials: it is in another form; the message holds nothing of it.
    """
    parts = secret.split(":")
    if len(parts) not in _PARTS or not all(parts):
        raise UpstreamCredentials(
            "the target's `api_key` can't sign: it must be ACCESS_KEY_ID:SECRET_ACCESS_KEY, or "
            "ACCESS_KEY_ID:SECRET_ACCESS_KEY:SESSION_TOKEN"
        )
    return Credentials(
        access_key_id=parts[0], secret_access_key=parts[1], session_token=parts[2] if len(parts) > 2 else ""
    )


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when a signature holds."""

    region: str
    service: str
    wall_s: int  #: Unix time; AWS takes signatures for about five minutes

    @property
    def timestamp(self) -> str:
        return datetime.fromtimestamp(self.wall_s, UTC).strftime("%Y%m%dT%H%M%SZ")

    def __str__(self) -> str:
        return "/".join((self.timestamp[:8], self.region, self.service, _ENDING))


def sign_request(
    method: str, path: str, headers: Headers, body: bytes, *, credentials: Credentials, scope: Scope
) -> Headers:
    """The headers to add to a request: its time, the session token, and the signature.

    Args:
        path: as on the wire, with its query.
        headers: all that are to be signed, `host` among them; the time and the token are signed as well.
    """
    added = [("x-amz-date", scope.timestamp)]
    if credentials.session_token:
        added.append(("x-amz-security-token", credentials.session_token))
    names, lines = write_canonical_headers([*headers, *added])
    request = write_canonical_request(method, path, names, lines, body)
    to_sign = "\n".join((ALGORITHM, scope.timestamp, str(scope), _digest(request.encode())))
    signature = hmac.new(_derive_key(credentials, scope), to_sign.encode(), hashlib.sha256).hexdigest()
    return [
        *added,
        (
            "authorization",
            f"{ALGORITHM} Credential={credentials.access_key_id}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}",
        ),
    ]


def write_canonical_request(method: str, path: str, names: str, lines: str, body: bytes) -> str:
    """The request as AWS writes it down before it is signed."""
    place, _, query = path.partition("?")
    return "\n".join(
        (
            method,
            quote(place or "/", safe="/" + _UNRESERVED),
            write_canonical_query(query),
            lines,
            names,
            _digest(body),
        )
    )


def write_canonical_query(query: str) -> str:
    """The parameters in order, each encoded in the one way that AWS has."""
    parts = [part.partition("=") for part in query.split("&") if part]
    pairs = sorted((_encode(name), _encode(value)) for name, _, value in parts)
    return "&".join(f"{name}={value}" for name, value in pairs)


def write_canonical_headers(headers: Headers) -> tuple[str, str]:
    """Names joined by semicolons, and a line for each; values of one name are joined in their order."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.lower().strip(), []).append(_BLANKS.sub(" ", value.strip()))
    names = sorted(values)
    return ";".join(names), "".join(f"{name}:{','.join(values[name])}\n" for name in names)


def _encode(part: str) -> str:
    return quote(unquote_to_bytes(part), safe=_UNRESERVED)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _derive_key(credentials: Credentials, scope: Scope) -> bytes:
    key = b"AWS4" + credentials.secret_access_key.encode()
    for part in str(scope).split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
