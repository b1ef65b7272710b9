"""A target's whole answer, and what of it crosses to the caller: few headers, and no credentials.

Sends nothing.
"""

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import UpstreamProtocol
from forebay.core.retry_after import read_retry_after
from forebay.gateway.model import Exchange, Reading
from forebay.net.connection import Connection

JSON_TYPE = b"application/json"
JSON_LENGTH = b"inference-header-content-length"  #: of the Open Inference Protocol
STREAM_TYPE = b"text/event-stream"
STREAM_HEADERS = "cache-control: no-cache\r\nx-accel-buffering: no\r\n"


class Answer(msgspec.Struct, frozen=True):
    """A whole answer of a target."""

    status: int
    content_type: bytes
    body: bytes
    retry_after: bytes = b""  #: whole seconds, as digits
    error_code: str = ""
    reading: Reading | None = None  #: what it cost, as read before it was translated
    json_length: bytes = b""  #: of the JSON before tensors in binary, where there are any


def refuse_compressed(connection: Connection) -> None:
    """Raises UpstreamProtocol for an answer that was compressed although we asked for a plain one."""
    encoding = connection.header(b"content-encoding").strip().lower()
    if encoding not in (b"", b"identity"):
        raise UpstreamProtocol(
            f"the target compressed its answer ({encoding.decode('latin-1')[:20]}) though asked not to"
        )


def read_answer(connection: Connection, body: bytes, clock: Clock) -> Answer:
    """A connection's complete answer."""
    status = connection.status
    retry_after = b""
    if status >= 400:
        retry_after = read_retry_after(status, connection.headers, clock.wall_ns() / 1e9)
    length = connection.header(JSON_LENGTH)
    return Answer(status, connection.header(b"content-type"), body, retry_after, json_length=length)


def build_headers(exchange: Exchange, content_type: bytes) -> str:
    """The header lines that every answer has: all others of a target stay behind."""
    return _build_first_headers(exchange, content_type) + _build_outcome(exchange)


def build_early_headers(exchange: Exchange) -> str:
    """Those of a stream whose head goes out before it is known who answers."""
    return _build_first_headers(exchange, STREAM_TYPE) + STREAM_HEADERS


def build_late_headers(exchange: Exchange) -> bytes:
    """What such a head could not say, as comments in the stream, where every client passes over them."""
    lines = (_build_outcome(exchange) + exchange.limit_headers).splitlines()
    return "".join(f": {line}\n" for line in lines if line.startswith("x-forebay-")).encode() + b"\n"


def _build_outcome(exchange: Exchange) -> str:
    line = f"x-forebay-attempts: {exchange.attempts}\r\n"
    if exchange.asked_model and exchange.attempts:
        line += f"x-forebay-answered-by: {exchange.model}\r\n"
    if exchange.is_retry_denied:
        line += "x-forebay-retry-budget: spent\r\n"
    return line


def _build_first_headers(exchange: Exchange, content_type: bytes) -> str:
    headers = (
        f"content-type: {content_type.decode('latin-1')}\r\n"
        f"x-request-id: {exchange.id}\r\n{exchange.limit_headers}"
    )
    if exchange.dialect.is_foreign:
        headers += exchange.dialect.name_headers(exchange.id, exchange.limit_headers, exchange.at_ns)
    return headers


def hide_secret(body: bytes, secret: bytes) -> bytes:
    """A good answer; where it is no JSON object, such as a page, without credentials that it repeats."""
    return body if body.startswith(b"{") else redact(body, secret)


def redact(body: bytes, secret: bytes) -> bytes:
    return body.replace(secret, b"[redacted]") if secret else body
