"""Signatures of webhooks by the convention of Standard Webhooks (HMAC-SHA256, version 1).  Pure.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"
SECRET_MIN_BYTES, SECRET_MAX_BYTES = 24, 64
_HELP: Final = (
    f"a secret of a webhook is `{SECRET_PREFIX}` and {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes in "
    f"base64; `echo {SECRET_PREFIX}$(openssl rand -base64 32)` makes one"
)


def decode_secret(text: str) -> bytes:
    """The key in a secret.

    Raises:
        ValueError: it is none; the words hold nothing of it.
    """
    word = text.strip()
    if not word.startswith(SECRET_PREFIX):
        raise ValueError(_HELP)
    try:
        key = base64.b64decode(word.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(_HELP) from None
    if not SECRET_MIN_BYTES <= len(key) <= SECRET_MAX_BYTES:
        raise ValueError(_HELP)
    return key


def sign(key: bytes, message_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of the header `webhook-signature`."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
