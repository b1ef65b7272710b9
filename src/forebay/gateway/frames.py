"""Messages over the sockets between a machine's own processes: MessagePack in frames of `[u32 length][…]`.

It cuts and joins bytes, and knows no message.  A frame that is too long ends a connection, for the stream is
of no use then.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FRAME_MAX_BYTES = 4 * 1024 * 1024
_LENGTH = struct.Struct("<I")


def frame(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Cuts a stream of bytes into payloads, whatever the reads.

    Args:
        max_bytes: of a payload.
    """

    def __init__(self, max_bytes: int = FRAME_MAX_BYTES) -> None:
        self._held = bytearray()
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises ValueError for a frame that is too long; the stream is of no use then."""
        held = self._held
        held += data
        at = 0
        try:
            while len(held) - at >= 4:
                (length,) = _LENGTH.unpack_from(held, at)
                if length > self._max_bytes:
                    raise ValueError(f"a frame of {length} bytes: at most {self._max_bytes} are accepted")
                if len(held) - at - 4 < length:
                    break
                at += 4 + length
                yield bytes(held[at - length : at])
        finally:
            del held[:at]


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Another name of a socket, for the 107 bytes that the system takes may be too few for its own."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
