"""Files and batches as callers ask for them: a worker admits the caller, and hands the call on.

Who keeps them is another process of this machine; bodies and contents pass through here piece by piece, in
both directions, and nothing of them is held.  It decides nothing but whose call it is.
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from forebay.core.batch_calls import (
    HEAD_MAX_BYTES,
    AnswerHead,
    CallHead,
    decode_answer,
    encode_head,
)
from forebay.core.errors import (
    MethodNotAllowed,
    Overloaded,
    RequestTimeout,
    UnknownPath,
)
from forebay.core.keys import KeyEntry
from forebay.gateway.call import Call, CallerGone
from forebay.gateway.frames import short_path
from forebay.gateway.service import Service
from forebay.net.frame_stream import PIECE_MAX_BYTES, FrameTooLong, read_frame, write_frame

FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
CALLS_MAX: Final = 64  #: at once, of a worker
PIECE_S: Final = 60.0  #: for the caller to send, or to take, the next piece
RATE_MIN_BYTES: Final = (
    16 * 1024
)  #: a second, of a body that comes or an answer that is taken, over its whole
ANSWER_S: Final = 120.0  #: for the answer, once the body has gone
QUERY_MAX_BYTES: Final = 4096
_METHODS: Final = {"GET", "POST", "DELETE"}
_AWAY: Final = "files and batches can't be reached at the moment; send the request again"


class BatchDoor:
    """See the module.

    Args:
        path: of the socket at which the process that keeps them listens.
    """

    def __init__(self, service: Service, path: Path) -> None:
        self._service = service
        self._path = path
        self._calls = 0

    @staticmethod
    def knows(path: str) -> bool:
        return path in (FILES, BATCHES) or path.startswith((f"{FILES}/", f"{BATCHES}/"))

    async def serve(self, call: Call) -> None:
        """Answers one call.  Raises ForebayError where nothing has been sent to the caller yet."""
        key = self._service.authenticate(call)
        if key.is_batch:
            raise UnknownPath("a line of a batch can't ask for files or batches")
        if call.method not in _METHODS:
            raise MethodNotAllowed(f"{call.path[:200]} takes {', '.join(sorted(_METHODS))}")
        if len(call.query) > QUERY_MAX_BYTES or len(call.path) > QUERY_MAX_BYTES:
            raise UnknownPath(f"the address is longer than {QUERY_MAX_BYTES} bytes")
        if self._calls >= CALLS_MAX:
            raise Overloaded(f"a worker serves {CALLS_MAX} calls for files and batches at once",
                             retry_after_s=1)  # fmt: skip
        self._calls += 1
        try:
            await self._serve(call, key.entry)
        except (CallerGone, ConnectionError):
            call.abort()  # nobody listens, or what was begun can't be ended
        finally:
            self._calls -= 1

    async def _serve(self, call: Call, key: KeyEntry) -> None:
        try:
            with short_path(self._path) as path:
                reader, writer = await asyncio.open_unix_connection(path, limit=PIECE_MAX_BYTES)
        except FileNotFoundError as error:
            raise UnknownPath("files and batches are not served here (batch.enabled)") from error
        except OSError as error:
            raise Overloaded(_AWAY, retry_after_s=1) from error
        try:
            await self._exchange(call, key, reader, writer)
        finally:
            writer.transport.abort()

    async def _exchange(
        self, call: Call, key: KeyEntry, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await write_frame(writer, encode_head(_describe(call, key)))
            head = await self._find_head(call, reader, writer)
        except (OSError, EOFError, msgspec.MsgspecError, FrameTooLong) as error:
            raise Overloaded(_AWAY, retry_after_s=1) from error
        await self._answer(call, head, reader)

    async def _find_head(
        self, call: Call, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AnswerHead:
        """The answer's head, which may come before all of the body was wanted."""
        sending = asyncio.ensure_future(self._send_body(call, writer))
        reading = asyncio.ensure_future(read_frame(reader, HEAD_MAX_BYTES))
        try:
            await asyncio.wait({sending, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                sending.result()  # raises what went wrong with the body
                await asyncio.wait({reading}, timeout=ANSWER_S)
            if not reading.done():
                raise Overloaded(_AWAY, retry_after_s=1)
            return decode_answer(reading.result())
        finally:
            sending.cancel()
            reading.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)

    async def _send_body(self, call: Call, writer: asyncio.StreamWriter) -> None:
        """Hands the body on as it comes.  Raises CallerGone, RequestTimeout."""
        loop = asyncio.get_running_loop()
        begun, passed = loop.time(), 0
        try:
            while True:
                async with asyncio.timeout(find_patience(loop.time() - begun, passed)):
                    piece = await call.next_piece()
                passed += len(piece)
                for at in range(0, len(piece), PIECE_MAX_BYTES):
                    await write_frame(writer, piece[at : at + PIECE_MAX_BYTES])
                if not piece:
                    await write_frame(writer, b"")
                    return
        except TimeoutError:
            raise RequestTimeout(
                f"the request body took too long to arrive: it may pause for {PIECE_S:g} s, beside what "
                f"{RATE_MIN_BYTES} bytes a second take"
            ) from None
        except OSError:
            return  # it was refused before its end: the answer says why

    async def _answer(self, call: Call, head: AnswerHead, reader: asyncio.StreamReader) -> None:
        """Hands the answer on.  One that breaks off is cut visibly."""
        headers = f"content-type: {head.content_type}\r\n"
        if head.disposition:
            headers += f"content-disposition: {head.disposition}\r\n"
        if head.retry_after_s is not None:
            headers += f"retry-after: {head.retry_after_s}\r\n"
        try:
            first = await read_frame(reader)
            following = await read_frame(reader) if first else b""
        except (OSError, EOFError, FrameTooLong) as error:
            raise Overloaded(_AWAY, retry_after_s=1) from error
        if not following:
            call.respond(head.status, headers, first)
            return
        call.begin_stream(head.status, headers)
        loop = asyncio.get_running_loop()
        begun, passed, piece = loop.time(), 0, first
        try:
            while piece:
                async with asyncio.timeout(find_patience(loop.time() - begun, passed)):
                    await call.send(piece)
                passed += len(piece)
                piece, following = following, await read_frame(reader) if following else b""
        except TimeoutError:
            call.abort()  # a caller that takes nothing
        except (OSError, EOFError, FrameTooLong):
            call.cut()
        else:
            call.end_stream()


def find_patience(age_s: float, passed: int) -> float:
    """How long the next piece is waited for: whoever drips holds one of the few places for ever else."""
    return min(PIECE_S, max(0.0, PIECE_S + passed / RATE_MIN_BYTES - age_s))


def _describe(call: Call, key: KeyEntry) -> CallHead:
    length = call.length
    if length is None and call.body_done:
        length = call.received
    return CallHead(
        method=call.method,
        path=call.path,
        query=call.query,
        content_type=call.headers.get(b"content-type", b"").decode("latin-1"),
        length=length,
        key=key.id,
        team=key.team,
        project=key.project,
    )
