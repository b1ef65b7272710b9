"""Builders of scripts: whole answers, streams cut where a test wants, and answers that break HTTP.

Pure: each returns a list of steps, which can be served again and again, cut by `drip`, or continued:

    upstream.enqueue(sse_answer(chat_stream(["Hel", "lo"]), cut_every=1))
    upstream.enqueue(drip(json_answer({"ok": True}), every=1))
    upstream.enqueue([*sse_head(), chunk(first_event), Sleep(0.5), Reset()])
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from itertools import pairwise

import msgspec

from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Script, Send, Sleep, Step

Headers = Sequence[tuple[str, str]]


class Framing(StrEnum):
    """How a body's end is told."""

    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"  #: by closing the connection


_FRAMING_HEADERS: Mapping[Framing, Headers] = {
    Framing.LENGTH: (),
    Framing.CHUNKED: (("transfer-encoding", "chunked"),),
    Framing.CLOSE: (("connection", "close"),),
}


def head(status: int = 200, headers: Headers = (), reason: str | None = None) -> bytes:
    """An answer's head, with its blank line and nothing added."""
    if reason is None:
        reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> Send:
    """One chunk of a chunked body."""
    return Send(b"%x\r\n%b\r\n" % (len(data), data))


def last_chunk(trailers: Headers = ()) -> Send:
    """The end of a chunked body."""
    return Send(
        ("0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in trailers) + "\r\n").encode("latin-1")
    )


def sse_head(headers: Headers = (), framing: Framing = Framing.CHUNKED) -> list[Step]:
    """The head of a stream, for scripts that go on by hand with `chunk`."""
    return [Send(head(200, [("content-type", "text/event-stream"), *_FRAMING_HEADERS[framing], *headers]))]


def answer(
    body: bytes | Iterable[bytes] = b"",
    *,
    status: int = 200,
    headers: Headers = (),
    framing: Framing = Framing.LENGTH,
    trailers: Headers = (),
    pause_s: float = 0.0,
) -> list[Step]:
    """A whole answer.  Of a body in pieces, each is sent on its own (one chunk each when chunked).

    Args:
        trailers: sent after a chunked body, else ignored.
        pause_s: seconds between pieces; without, a reader may get several at once.
    """
    pieces = [body] if isinstance(body, bytes) else list(body)
    framing_headers = list(_FRAMING_HEADERS[framing])
    if framing is Framing.LENGTH:
        framing_headers = [("content-length", str(sum(map(len, pieces))))]
    steps: list[Step] = [Send(head(status, [*headers, *framing_headers]))]
    for index, piece in enumerate(piece for piece in pieces if piece):
        if index and pause_s:
            steps.append(Sleep(pause_s))
        steps.append(chunk(piece) if framing is Framing.CHUNKED else Send(piece))
    if framing is Framing.CHUNKED:
        steps.append(last_chunk(trailers))
    if framing is Framing.CLOSE:
        steps.append(Close())
    return steps


def json_answer(
    payload: object, *, status: int = 200, headers: Headers = (), framing: Framing = Framing.LENGTH
) -> list[Step]:
    """A JSON answer: `json_answer(chat_completion("Hello"))`."""
    body = msgspec.json.encode(payload)
    return answer(
        body, status=status, headers=[("content-type", "application/json"), *headers], framing=framing
    )


def sse_answer(
    events: Iterable[bytes],
    *,
    cut_every: int | None = None,
    cut_at: Sequence[int] = (),
    headers: Headers = (),
    framing: Framing = Framing.CHUNKED,
    pause_s: float = 0.0,
) -> list[Step]:
    """A stream of server-sent events, one piece each, or cut elsewhere.

    Args:
        events: raw events; their bytes are sent as they are.
        cut_every: cut the joined events into pieces of so many bytes.
        cut_at: cut the joined events at these offsets (ascending).
    """
    pieces = list(events)
    if cut_every is not None or cut_at:
        pieces = list(cut(b"".join(pieces), every=cut_every, at=cut_at))
    return answer(
        pieces, headers=[("content-type", "text/event-stream"), *headers], framing=framing, pause_s=pause_s
    )


def cut(data: bytes, *, every: int | None = None, at: Sequence[int] = ()) -> Iterator[bytes]:
    """Pieces of `data`: of `every` bytes each, or between the offsets `at`."""
    offsets = [0, *(at if every is None else range(every, len(data), every)), len(data)]
    for start, end in pairwise(offsets):
        yield data[start:end]


def drip(script: Script, *, every: int = 1, pause_s: float = 0.0) -> list[Step]:
    """The same script with all that it sends (head and framing as well) cut into pieces of `every` bytes."""
    steps: list[Step] = []
    for step in script:
        if not isinstance(step, Send):
            steps.append(step)
            continue
        for piece in cut(step.data, every=every):
            steps += (Send(piece), Sleep(pause_s)) if pause_s else (Send(piece),)
    return steps


def redirect(location: str, status: int = 307) -> list[Step]:
    """A redirect with an empty body."""
    return answer(b"", status=status, headers=[("location", location)])


def informational(status: int = 103, headers: Headers = ()) -> list[Step]:
    """A 1xx answer, to be followed by another: `[*informational(), *json_answer(...)]`."""
    return [Send(head(status, headers))]


def echo(request: RecordedRequest) -> list[Step]:
    """A handler that tells what arrived: method, target, headers as pairs, body as text, connection."""
    return json_answer(
        {
            "method": request.method,
            "target": request.target,
            "headers": request.headers,
            "body": bytes(request.body).decode("utf-8", "replace"),
            "connection": request.connection,
        }
    )


def malformed_answers() -> Mapping[str, list[Step]]:
    """Answers that break HTTP/1.1 framing, by name, each followed by a close; for parametrized tests."""
    ok = "HTTP/1.1 200 OK\r\n"
    return {
        name: [Send(text.encode("latin-1")), Close()]
        for name, text in {
            "empty": "",
            "garbage": "\x00\x01\x02\x03\r\n\r\n",
            "not_http": "SSH-2.0-OpenSSH_9.2\r\n\r\n",
            "http_2_version": "HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
            "status_not_a_number": "HTTP/1.1 abc OK\r\ncontent-length: 0\r\n\r\n",
            "head_cut": ok + "content-length: 5\r\n",
            "header_without_colon": ok + "content-length 5\r\n\r\nhello",
            "header_name_with_space": ok + "content length: 5\r\n\r\nhello",
            "nul_in_header": ok + "x-a: b\x00c\r\ncontent-length: 0\r\n\r\n",
            "length_not_a_number": ok + "content-length: five\r\n\r\nhello",
            "length_negative": ok + "content-length: -5\r\n\r\nhello",
            "two_lengths": ok + "content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
            "length_and_chunked": ok
            + "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "body_shorter_than_length": ok + "content-length: 10\r\n\r\nhello",
            "chunk_size_not_hex": ok + "transfer-encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n",
            "chunk_without_crlf": ok + "transfer-encoding: chunked\r\n\r\n5\r\nhelloX0\r\n\r\n",
            "chunk_cut": ok + "transfer-encoding: chunked\r\n\r\na\r\nhello",
            "no_last_chunk": ok + "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        }.items()
    }
