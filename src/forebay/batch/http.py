"""The routes of files and batches, and how one call is answered over a worker's line.

It knows which path means what, and turns errors into OpenAI's documents.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from forebay.batch.service_batches import Batches
from forebay.batch.service_files import Content, Files
from forebay.core.batch_calls import (
    HEAD_MAX_BYTES,
    AnswerHead,
    CallHead,
    decode_call,
    encode_head,
)
from forebay.core.errors import CallerError, ForebayError, InternalError, MethodNotAllowed, UnknownPath
from forebay.net.frame_stream import PIECE_MAX_BYTES, FrameTooLong, read_frame, write_frame

PIECE_BYTES: Final = 256 * 1024  #: of a content, in one frame
LINGER_S: Final = 30.0  #: for a worker to take an answer

logger = logging.getLogger("forebay.batch")


class BrokenOff(CallerError):
    """The worker's line ended before the body did; nobody is left to hear of it."""


class Routes:
    """See the module."""

    def __init__(self, files: Files, batches: Batches) -> None:
        self._files = files
        self._batches = batches

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the one call of a line.  Never raises."""
        try:
            head = decode_call(await read_frame(reader, HEAD_MAX_BYTES))
            await self._answer(head, reader, writer)
            async with asyncio.timeout(LINGER_S):
                # To close before the worker has sent all would lose it the answer.
                while await reader.read(PIECE_BYTES):
                    pass
        except TimeoutError:
            pass
        except (OSError, EOFError, FrameTooLong, msgspec.MsgspecError) as error:
            logger.debug("a call broke off: %s", error)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(
        self, head: CallHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answer = AnswerHead(status=200)
        try:
            found = await self._route(head, _read_body(reader))
        except BrokenOff:
            return
        except ForebayError as error:
            answer = AnswerHead(status=error.status, retry_after_s=error.retry_after_s)
            found = {"error": error.describe()}
        except Exception:  # the outer edge: whatever went wrong in us, the caller gets an answer
            logger.exception("%s %s failed", head.method, head.path)
            answer = AnswerHead(status=500)
            found = {"error": InternalError("this failed; the log of `batch` says more").describe()}
        if isinstance(found, Content):
            await _send_content(found, writer)
            return
        await write_frame(writer, encode_head(answer))
        data = msgspec.json.encode(found)
        for at in range(0, len(data), PIECE_MAX_BYTES):
            await write_frame(writer, data[at : at + PIECE_MAX_BYTES])
        await write_frame(writer, b"")

    async def _route(self, head: CallHead, body: AsyncIterator[bytes]) -> dict[str, Any] | Content:
        files, batches = self._files, self._batches
        match (head.method, *map(unquote, head.path.strip("/").split("/")[1:])):
            case ("POST", "files"):
                return await files.create(head, body)
            case ("GET", "files"):
                return await files.list(head)
            case ("GET", "files", file_id):
                return await files.get(head, file_id)
            case ("DELETE", "files", file_id):
                return await files.delete(head, file_id)
            case ("GET", "files", file_id, "content"):
                return await files.open_content(head, file_id)
            case ("POST", "batches"):
                return await batches.create(head, body)
            case ("GET", "batches"):
                return await batches.list(head)
            case ("GET", "batches", batch_id):
                return await batches.get(head, batch_id)
            case ("POST", "batches", batch_id, "cancel"):
                return await batches.cancel(head, batch_id)
        raise _explain(head)


async def _read_body(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Raises BrokenOff."""
    try:
        while piece := await read_frame(reader):
            yield piece
    except (OSError, EOFError, FrameTooLong) as error:
        raise BrokenOff(f"the body broke off: {error}") from error


async def _send_content(content: Content, writer: asyncio.StreamWriter) -> None:
    """One that can't be read to its end breaks off, which the caller sees."""
    with await asyncio.to_thread(content.path.open, "rb", 0) as file:
        disposition = f"attachment; filename*=UTF-8''{quote(content.filename)}"
        head = AnswerHead(status=200, content_type="application/octet-stream", disposition=disposition)
        await write_frame(writer, encode_head(head))
        while data := await asyncio.to_thread(file.read, PIECE_BYTES):
            await write_frame(writer, data)
        await write_frame(writer, b"")


_TAKEN: Final = {
    ("files", 1): "GET, POST",
    ("files", 2): "DELETE, GET",
    ("files", 3): "GET",
    ("batches", 1): "GET, POST",
    ("batches", 2): "GET",
    ("batches", 3): "POST",
}


def _explain(head: CallHead) -> ForebayError:
    """Why no route is meant."""
    parts = head.path.strip("/").split("/")[1:]
    taken = _TAKEN.get((parts[0], len(parts)))
    is_known = len(parts) < 3 or parts[2] == ("content" if parts[0] == "files" else "cancel")
    if taken is None or not is_known or not all(parts):
        return UnknownPath(f"unknown URL: {head.method} {head.path[:200]}")
    return MethodNotAllowed(f"{head.path[:200]} takes {taken}, not {head.method}")
