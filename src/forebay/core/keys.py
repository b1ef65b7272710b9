"""Keys as the data plane sees them: a digest, an owner, and what the key may call.  Pure.

A key reads `fb-` and 43 characters of base64url (32 random bytes).  Because it holds 256 random bits, one
SHA-256 is enough at rest: there is no dictionary to try.
"""

import hashlib
from fnmatch import fnmatchcase

import msgspec

KEY_PREFIX = "fb-"


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One live key in a snapshot."""

    id: str
    digest: bytes  #: SHA-256 of the whole key, 32 bytes
    name: str
    prefix: str  #: the first characters, for people to recognise it by
    project: str = "default"
    team: str = "default"
    models: tuple[str, ...] = ("*",)  #: glob patterns over public model names

    def allows(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)


def compute_key_digest(key: str | bytes) -> bytes:
    """SHA-256 of a key, 32 bytes."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).digest()
