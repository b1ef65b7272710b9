"""What matters of a request for the choice of its target: how long it is, what it needs, what it is near to.

It reads the body's bytes as they are, and only for what the targets differ in: what is not asked for costs
nothing.  It never changes them, and knows no address.
"""

import re
from zlib import crc32

import msgspec

from forebay.core.routes import Affinity
from forebay.gateway.model import Exchange
from forebay.gateway.policy.fleet import Fleet, compute_mask
from forebay.gateway.policy.load import OUTPUT_GUESS, estimate_tokens
from forebay.gateway.policy.route import Want

SESSION_HEADER = b"x-forebay-session"
SESSION_MAX_BYTES = 256
_PROMPTS = (b'"messages"', b'"prompt"', b'"input"')

#: Values of `type`, and keys, that say so wherever they stand, for quotes within texts are escaped in JSON;
#: each with what is looked for first, since most bodies hold none of it.
_SIGNS = tuple(
    (compute_mask((name,)), needles, re.compile(pattern))
    for name, needles, pattern in (
        ("tools", (b'"tools"', b'"functions"'), rb'"(?:tools|functions)"\s*:\s*\[\s*\{'),
        ("images", (b'image_url"', b'image"'), rb'"type"\s*:\s*"(?:image_url|input_image|image)"'),
        ("audio", (b'"input_audio"',), rb'"type"\s*:\s*"input_audio"'),
        ("documents", (b'file"', b'"document"'), rb'"type"\s*:\s*"(?:file|input_file|document)"'),
        ("json_schema", (b'"json_schema"',), rb'"type"\s*:\s*"json_schema"'),
    )
)
_MEDIA = compute_mask(("images", "audio", "documents"))


class _User(msgspec.Struct):
    user: str = ""


_decode_user = msgspec.json.Decoder(_User).decode


def read_want(exchange: Exchange, fleet: Fleet) -> Want:
    """What matters of an admitted request, at these places."""
    body = exchange.body
    assert exchange.key is not None
    needs = read_needs(body, fleet.lacking) if fleet.lacking else 0
    estimate = exchange.estimate
    output = OUTPUT_GUESS if estimate is None or estimate.output is None else estimate.output
    tokens = estimate_tokens(len(body), output)
    if tokens > fleet.window_min and read_needs(body, _MEDIA):
        tokens = fleet.window_min  # its bytes say nothing of its tokens, so its length is no reason
    choosing = fleet.choosing
    session = exchange.call.headers.get(SESSION_HEADER, b"")[:SESSION_MAX_BYTES]
    if not session and choosing.affinity is Affinity.SESSION:
        session = _read_user(body)
    if session:
        affinity: int | None = crc32(session)
    elif choosing.affinity is Affinity.PREFIX:
        affinity = crc32(find_prefix(body, choosing.prefix_bytes))
    else:
        affinity = None
    return Want(tokens, output, needs, exchange.key.priority, affinity, bool(session))


def read_needs(body: bytes, asked: int) -> int:
    """Which of the capabilities that are asked for a request needs."""
    needs = 0
    for bit, needles, sign in _SIGNS:
        if bit & asked:
            for needle in needles:
                if needle in body and sign.search(body):
                    needs |= bit
                    break
    return needs


def find_prefix(body: bytes, size: int) -> bytes:
    """How a request's prompt begins."""
    for name in _PROMPTS:
        at = body.find(name)
        if at >= 0:
            return body[at : at + len(name) + size]
    return body[:size]


def _read_user(body: bytes) -> bytes:
    try:
        return _decode_user(body).user.encode()[:SESSION_MAX_BYTES]
    except (msgspec.MsgspecError, UnicodeError):
        return b""
