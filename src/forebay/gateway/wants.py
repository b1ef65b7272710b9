"""What matters of a request for the choice of its target: how long it is, what it needs, what it is near to.

It reads the body's bytes as they are, and only for what the targets differ in: what is not asked for costs
nothing.  It never changes them, and knows no address.
"""

import re
from typing import cast
from zlib import crc32

import msgspec

from forebay.core.events import Tokens
from forebay.core.routes import MEDIA, Affinity
from forebay.gateway.dialect import MeasuredView
from forebay.gateway.model import Exchange
from forebay.gateway.policy.fleet import Fleet, compute_mask
from forebay.gateway.policy.load import BYTES_PER_TOKEN, OUTPUT_GUESS
from forebay.gateway.policy.want import Want

SESSION_HEADER = b"x-forebay-session"
SESSION_MAX_BYTES = 256
OUTPUT_MAX = 4096  #: tokens of an answer that one request counts at most
_PROMPTS = (b'"messages"', b'"prompt"', b'"input"')

#: Values of `type` that say so wherever they stand, for quotes within texts are escaped in JSON.
_BITS = {
    word: compute_mask((name,))
    for name, words in (
        ("images", (b"image_url", b"input_image", b"image")),
        ("audio", (b"input_audio",)),
        ("documents", (b"file", b"input_file", b"document")),
        ("json_schema", (b"json_schema",)),
    )
    for word in words
}
_TYPES = re.compile(rb'"type"\s*:\s*"(%b)"' % b"|".join(_BITS))
_TOOL_LIST = re.compile(rb'"(?:tools|functions)"\s*:\s*\[\s*\{')
_TYPED = compute_mask(("images", "audio", "documents", "json_schema"))
_TOOLS = compute_mask(("tools",))
_MEDIA = compute_mask(("images", "audio", "documents"))


class _User(msgspec.Struct):
    user: str = ""


_decode_user = msgspec.json.Decoder(_User).decode


def read_want(exchange: Exchange, fleet: Fleet) -> Want:
    """What matters of an admitted request, at these places."""
    body = exchange.body
    assert exchange.key is not None
    if exchange.endpoint in MEDIA:
        return _want_media(exchange)
    lacking = fleet.lacking
    needs = read_needs(body, lacking) if lacking and (lacking & _TOOLS or b'"type"' in body) else 0
    estimate = exchange.estimate
    output = OUTPUT_GUESS if estimate is None else guess_output(estimate, named=exchange.names_output)
    tokens = len(body) // BYTES_PER_TOKEN + output
    if tokens > fleet.window_min and read_needs(body, _MEDIA):
        tokens = fleet.window_min  # its bytes say nothing of its tokens, so its length is no reason
    choosing = fleet.choosing
    session = exchange.call.headers.get(SESSION_HEADER)
    if not session:
        if choosing.affinity is Affinity.NONE:
            return Want(tokens, output, needs, exchange.key.priority)
        if choosing.affinity is Affinity.SESSION:
            session = _read_user(body)
    if session:
        session = session[:SESSION_MAX_BYTES]
        affinity: int | None = crc32(session)
    elif choosing.affinity is Affinity.PREFIX:
        affinity = crc32(find_prefix(body, choosing.prefix_bytes))
    elif choosing.affinity is Affinity.ADAPTER:
        key = fleet.adapter_key
        return Want(tokens, output, needs, exchange.key.priority, key, is_adapter=True)
    else:
        affinity = None
    return Want(tokens, output, needs, exchange.key.priority, affinity, bool(session))


def _want_media(exchange: Exchange) -> Want:
    """Of audio and images: their bytes say nothing of their tokens, and no engine keeps a prefix of them."""
    assert exchange.key is not None
    session = exchange.call.headers.get(SESSION_HEADER, b"")[:SESSION_MAX_BYTES]
    tokens = cast(MeasuredView, exchange.view).input_tokens + OUTPUT_GUESS
    affinity = crc32(session) if session else None
    return Want(tokens, OUTPUT_GUESS, 0, exchange.key.priority, affinity, bool(session))


def guess_output(estimate: Tokens | None, *, named: bool) -> int:
    """How long an answer will be, for loads.

    What a caller names is how long it may become at most, which can shorten a guess and never lengthen it:
    else one request that names a million tokens would fill a tier for everybody.

    Args:
        estimate: of limits, if the request has any.
        named: whether the caller named the estimate's output, which is else the mean of earlier answers.
    """
    if estimate is None or estimate.output is None:
        return OUTPUT_GUESS
    return min(estimate.output, OUTPUT_GUESS if named else OUTPUT_MAX)


def read_needs(body: bytes, asked: int) -> int:
    """Which of the capabilities that are asked for a request needs."""
    needs = 0
    typed = asked & _TYPED
    if typed and b'"type"' in body:
        for found in _TYPES.finditer(body):
            needs |= _BITS[found[1]] & typed
    if asked & _TOOLS and (b'"tools"' in body or b'"functions"' in body) and _TOOL_LIST.search(body):
        needs |= _TOOLS
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
