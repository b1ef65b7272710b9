"""Frames of `[u32 length][bytes]` over asyncio's streams, for bodies that no process may hold whole.

It moves bytes and knows no message; an empty frame is the end of a body, by whoever says so.
"""

import asyncio
import struct
from typing import Final

_LENGTH: Final = struct.Struct("<I")
PIECE_MAX_BYTES: Final = 1024 * 1024  #: of a body, in one frame


class FrameTooLong(Exception):
    """The other end says that more is coming than it may send; the stream is of no use then."""


async def write_frame(writer: asyncio.StreamWriter, payload: bytes) -> None:
    """Sends one frame, and waits while the other end is behind.  Raises OSError where it is gone."""
    writer.write(_LENGTH.pack(len(payload)))
    writer.write(payload)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader, max_bytes: int = PIECE_MAX_BYTES) -> bytes:
    """One frame.

    Raises:
        EOFError: the other end is gone (asyncio.IncompleteReadError), or OSError.
        FrameTooLong: more than `max_bytes`.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > max_bytes:
        raise FrameTooLong(f"a frame of {length} bytes: at most {max_bytes} are accepted")
    return await reader.readexactly(length) if length else b""
