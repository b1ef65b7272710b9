"""Append-only segment files: how a process writes events down, and how they are read back.

One writer owns one file, for as long as it holds the file's lock; `kill -9` gives the lock back, so a free
lock on a file with a whole header means that nothing will ever be appended to it.  A file is a header line,
then frames of `[u32 length][u32 crc32][payload]`, little-endian.  What `append` returned from survives the
death of the process (not of the machine: nothing here waits for the disk).  This module reads no clock, knows
nothing of what the payloads mean, and imports nothing heavy, because the data plane writes through it.
"""

import errno
import fcntl
import mmap
import os
import re
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from zlib import crc32

from forebay.core.clock import Clock
from forebay.core.errors import ForebayError

SUFFIX = ".seg"
HEADER = b"forebay-segment 1\n"
HEAD_BYTES = 8
#: The largest payload.  Events are facts of a few hundred bytes; a low limit keeps the search for the next
#: frame after damage fast, since only small numbers can be lengths.
PAYLOAD_MAX_BYTES = 256 * 1024 - 1
CHUNK_BYTES = 1 << 20
#: Of several frames in one write.  On a disk that is nearly full a small batch may find the room that a large
#: one does not.
BATCH_MAX_BYTES = 64 * 1024

_pack_head = struct.Struct("<II").pack
_unpack_head = struct.Struct("<II").unpack_from
_VERSION_LINE = re.compile(rb"forebay-segment [0-9]{1,9}\n")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,150}\.seg")
_WORKER = re.compile(r"[A-Za-z0-9_.]{1,64}")
#: Where a length between 1 and PAYLOAD_MAX_BYTES may stand: the search runs in C, also over holes of zeros.
_LENGTH = re.compile(rb"(?s:(?=(?:[^\0].[\0-\3]|.[^\0][\0-\3]|..[\1-\3])\0))")


class SegmentError(ForebayError):
    """A segment can't be read as it lies on the disk.  `path` and `offset` say where."""

    code = "segment_unreadable"

    def __init__(self, message: str, *, path: Path, offset: int) -> None:
        super().__init__(f"{path.name} at byte {offset}: {message}")
        self.path = path
        self.offset = offset


class SegmentCorrupt(SegmentError):
    """The frame at `offset` is damaged; `find_frame` says where the next whole one starts."""

    code = "segment_corrupt"


class SegmentVersionUnknown(SegmentError):
    """Another version of Forebay wrote the file; it is left alone until a version comes that reads it."""

    code = "segment_version_unknown"


class SegmentWriter:
    """Writes one process's events.  Not for two threads at once.

    The first `append` after a start opens a new file, so no writer ever goes on after another's torn tail.
    """

    def __init__(self, folder: Path, worker: str, segment_max_bytes: int, clock: Clock) -> None:
        """Makes the folder (0700) if it is not there.  `worker` is letters, digits, `_` and `.`."""
        if not _WORKER.fullmatch(worker):
            raise ValueError(f"worker name {worker!r}: use up to 64 letters, digits, '_' and '.'")
        if segment_max_bytes <= len(HEADER) + HEAD_BYTES:
            raise ValueError(f"segment_max_bytes is {segment_max_bytes}: too small for one record")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._worker = worker
        self._segment_max_bytes = segment_max_bytes
        self._clock = clock
        self._fd = -1
        self._room = -1  # bytes left in the open file, negative when none is open
        self._last_ns = 0
        self.path: Path | None = None  #: the file being written, None before the first record
        _live_writers.add(self)

    def append(self, payload: bytes) -> None:
        """Write one frame; raises as `append_many` does."""
        self.append_many((payload,))

    def append_many(self, payloads: Sequence[bytes], start: int = 0) -> int:
        """Write frames with one system call, from the payload at `start` on; returns how many.

        At least one, and as many as fit into the file and BATCH_MAX_BYTES.

        Raises OSError when not even one was written; then no part of it is left behind, and the same call may
        be tried again.  Raises ValueError for an empty payload or one over PAYLOAD_MAX_BYTES.
        """
        parts: list[bytes] = []
        size = 0
        room = min(self._room, BATCH_MAX_BYTES)
        for payload in islice(payloads, start, None):
            length = len(payload)
            if not 0 < length <= PAYLOAD_MAX_BYTES:
                raise ValueError(f"a record of {length} bytes: 1 to {PAYLOAD_MAX_BYTES} are allowed")
            if size + length + HEAD_BYTES > room:
                if parts:
                    break
                if length + HEAD_BYTES > self._room:
                    self._open_next(length + HEAD_BYTES)
                room = min(self._room, max(BATCH_MAX_BYTES, length + HEAD_BYTES))
            parts += (_pack_head(length, crc32(payload)), payload)
            size += length + HEAD_BYTES
        frames = b"".join(parts)
        try:
            written = os.write(self._fd, frames)
        except OSError as error:
            self._leave_unless_full(error)
            raise
        if written != size:
            return self._write_rest(parts, frames, written)
        self._room -= size
        return len(parts) // 2

    def close(self) -> None:
        """Give the file up.  A later `append` starts a new one."""
        if self._fd >= 0:
            fd, self._fd, self._room, self.path = self._fd, -1, -1, None
            os.close(fd)

    def leave_if_removed(self) -> None:
        """Give a file up that somebody has deleted: nobody would ever read what goes there.

        Looked at now and then, not before each record, which would cost a system call each time.
        """
        if self._fd >= 0 and os.fstat(self._fd).st_nlink == 0:
            self._abandon()

    def _write_rest(self, parts: Sequence[bytes], frames: bytes, written: int) -> int:
        """The kernel took a part of what it was given.  Returns how many frames stand in the end.

        Asking for the rest brings the reason to light.  Then only the torn frame is taken back: somebody may
        have read the whole ones before it.
        """
        try:
            while written < len(frames):
                more = os.write(self._fd, frames[written:])
                if more == 0:
                    raise OSError(errno.EIO, "the disk takes no more of a record", str(self.path))
                written += more
        except OSError as error:
            count = size = 0
            while size + HEAD_BYTES + len(parts[2 * count + 1]) <= written:
                size += HEAD_BYTES + len(parts[2 * count + 1])
                count += 1
            self._room -= size
            try:
                # The size comes from the file, not from a count of ours: nobody else appends to it, and a
                # count could be stale after an exception between two statements.
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written + size)
            except OSError:
                self._abandon()  # the torn frame stays, at the very end, where readers expect one
            self._leave_unless_full(error)
            if not count:
                raise
            return count
        self._room -= len(frames)
        return len(parts) // 2

    def _leave_unless_full(self, error: OSError) -> None:
        """After all errors but a full disk, the next record goes to a new file.

        EFBIG is about this file alone, and after anything stranger its end is not to be trusted.  On a full
        disk a new file would not help, and one for each try would be litter.
        """
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            self._abandon()

    def _abandon(self) -> None:
        with suppress(OSError):  # an error is on its way to the caller already, and the descriptor is gone
            self.close()

    def _open_next(self, frame_bytes: int) -> None:
        """Create, lock and head the next file; the old one stays open if that fails."""
        path, fd = self._create()
        try:
            # The lock comes before the header: whoever sees the header knows that the lock was held.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(fd, HEADER) != len(HEADER):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if os.fstat(fd).st_nlink == 0:
                raise OSError(errno.ENOENT, "somebody removed the new segment", str(path))
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self._abandon()
        self._fd, self.path = fd, path
        self._room = max(self._segment_max_bytes - len(HEADER), frame_bytes)

    def _create(self) -> tuple[Path, int]:
        while True:
            # Names go up within a writer even if the clock stands still or is set back.
            self._last_ns = max(self._last_ns + 1, self._clock.wall_ns())
            path = self._folder / f"{self._last_ns:019}-{self._worker}-{os.getpid()}{SUFFIX}"
            try:
                return path, os.open(
                    path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
            except FileExistsError:
                continue
            except FileNotFoundError:
                # Somebody removed the folder while we served.  Its parent must still be there.
                self._folder.mkdir(mode=0o700, exist_ok=True)


_live_writers: weakref.WeakSet[SegmentWriter] = weakref.WeakSet()


def _close_after_fork() -> None:
    # A forked child shares the parent's file and lock; it must start a file of its own.
    for writer in list(_live_writers):
        writer._abandon()


os.register_at_fork(after_in_child=_close_after_fork)


def list_segments(folder: Path) -> list[Path]:
    """The folder's segment files, oldest first; an absent folder has none.

    A name that no writer gives is none of ours, and may be one that no table can hold.
    """
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if _NAME.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names)]


def is_final(path: Path) -> bool:
    """Whether nothing will be appended any more: the writer has moved on, closed the file, or died.

    False also for a file whose header is not whole: its writer may be about to lock it.
    """
    with path.open("rb", buffering=0) as file:
        # Header first, lock second.  The other way round, a writer could lock and head the file in between.
        return len(file.read(len(HEADER))) == len(HEADER) and _is_lock_free(file.fileno())


def remove_unborn(path: Path) -> bool:
    """Remove a file whose writer died before the header was whole; False when it is none of those."""
    with path.open("rb", buffering=0) as file:
        # The lock, held over the removal, stops a writer from taking the file at the same moment.
        if not _is_lock_free(file.fileno(), fcntl.LOCK_EX) or len(file.read(len(HEADER))) == len(HEADER):
            return False
        path.unlink(missing_ok=True)
        return True


def _is_lock_free(fd: int, kind: int = fcntl.LOCK_SH) -> bool:
    """Takes the lock if it is free; closing the file gives it back."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_frames(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield (payload, offset of the next frame) from a frame's offset on; 0 is the file's start.

    Stops without a word where the last frame is not whole: it may still be in the writing.
    Raises SegmentCorrupt at a damaged frame, SegmentVersionUnknown, and OSError.
    """
    with path.open("rb", buffering=0) as file:
        if not _check_header(path, file.read(len(HEADER)), offset):
            return
        offset = max(offset, len(HEADER))
        file.seek(offset)
        buffer, at = b"", 0  # `buffer[at]` lies at `offset` in the file
        while True:
            if (need := _count_missing(path, offset, buffer, at)) > 0:
                chunk = file.read(max(need, CHUNK_BYTES))
                if not chunk:
                    return
                buffer, at = buffer[at:] + chunk, 0
                continue
            length, checksum = _unpack_head(buffer, at)
            end = at + HEAD_BYTES + length
            payload = buffer[at + HEAD_BYTES : end]
            if crc32(payload) != checksum:
                # A writer that ran out of disk takes half a frame back and puts another in its place.  A look
                # at that moment shows a mixture, a second look shows something else: not damage.
                if os.pread(file.fileno(), end - at, offset) != buffer[at:end]:
                    return
                raise SegmentCorrupt("the checksum does not match", path=path, offset=offset)
            offset += end - at
            at = end
            yield payload, offset


def _count_missing(path: Path, offset: int, buffer: bytes, at: int) -> int:
    """Bytes that the buffer lacks of the frame at `at`."""
    have = len(buffer) - at
    if have < HEAD_BYTES:
        return HEAD_BYTES - have
    length: int = _unpack_head(buffer, at)[0]
    if not 0 < length <= PAYLOAD_MAX_BYTES:
        raise SegmentCorrupt(f"{length} can't be the length of a record", path=path, offset=offset)
    return HEAD_BYTES + length - have


def _check_header(path: Path, start: bytes, offset: int) -> bool:
    """Whether there may be frames.  A damaged header is an error only to who reads from the file's start."""
    if start == HEADER:
        return True
    if HEADER.startswith(start):
        return False
    if _VERSION_LINE.match(start):
        raise SegmentVersionUnknown("written by another version of Forebay", path=path, offset=0)
    if offset == 0:
        raise SegmentCorrupt("this is not the header of a segment", path=path, offset=0)
    return True


def find_frame(path: Path, offset: int) -> int | None:
    """The first place at or after `offset` where a whole, undamaged frame starts; None when there is none."""
    offset = max(offset, len(HEADER))
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size - offset <= HEAD_BYTES:
            return None
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            for candidate in _LENGTH.finditer(data, offset):
                start = candidate.start()
                if size - start <= HEAD_BYTES:
                    return None
                length, checksum = _unpack_head(data, start)
                end = start + HEAD_BYTES + length
                if end <= size and crc32(data[start + HEAD_BYTES : end]) == checksum:
                    return start
    return None
