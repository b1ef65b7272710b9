"""What is left of each limit, in a file that outlives the process that writes it.

One slot a limit, found by a digest of its id, written with one system call; what was written survives
`kill -9` of the process (not the loss of the machine's power: nothing here waits for the disk).  A slot whose
check fails, or that says what can't be, counts as a limit of which all was used, never as an untouched one.
"""

import errno
import hashlib
import logging
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from zlib import crc32

from forebay.app.atomic_file import write_atomically
from forebay.core.limits import Measure
from forebay.gateway.policy.meter import Meter, Now

logger = logging.getLogger("forebay.quota")

HEADER = b"forebay-quota 2\n"
#: id, amount, whole units, rest of a unit, at_ns, ends_ns, epoch, exceeded_ns
_SLOT = struct.Struct("<16sqqQqqqq")
_HEADER_1 = b"forebay-quota 1\n"
_SLOT_1 = struct.Struct("<16sqqQqqq")  # without the last
SLOT_BYTES = _SLOT.size + 4  # and a CRC


class QuotaState:
    """The file.  Raises OSError from every method that touches it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._slots: dict[bytes, int] = {}
        self._saved: dict[bytes, bytes] = {}
        self._restored: set[str] = set()
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        if data.startswith(_HEADER_1):
            data = self._convert(data)
        # A file that is empty was just made; of any other without its header, or cut short, slots are lost.
        self._is_damaged = bool(data) and (
            not data.startswith(HEADER) or (len(data) - len(HEADER)) % SLOT_BYTES != 0
        )
        if not data.startswith(HEADER):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, HEADER, 0)
            data = HEADER
        self._end = len(HEADER)
        for at in range(len(HEADER), len(data) - SLOT_BYTES + 1, SLOT_BYTES):
            slot = data[at : at + SLOT_BYTES]
            self._end = at + SLOT_BYTES
            if _is_whole(slot):
                self._slots[slot[:16]] = at
                self._saved[slot[:16]] = slot
            else:
                self._is_damaged = True  # and nobody knows whose slot it was

    def _convert(self, data: bytes) -> bytes:
        """The file as this version has it; what is damaged stays so."""
        size = _SLOT_1.size + 4
        parts = [HEADER]
        for at in range(len(_HEADER_1), len(data), size):
            slot = data[at : at + size]
            if len(slot) == size and _is_whole(slot):
                slot = slot[:-4] + bytes(8)
                parts.append(slot + struct.pack("<I", crc32(slot)))
            else:
                parts.append(bytes(SLOT_BYTES - 1) + b"?")
        data = b"".join(parts)
        write_atomically(self._path, data)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return data

    def restore(self, meters: Mapping[str, Meter], now: Now) -> None:
        """Sets meters that are new to this process to what was left of them before it."""
        self._restored &= meters.keys()  # one that went and comes again goes on where it was
        for limit_id, meter in meters.items():
            if limit_id in self._restored:
                continue
            self._restored.add(limit_id)
            slot = self._saved.get(_digest(limit_id))
            if meter.limit.measure is Measure.CONCURRENT:
                continue  # who holds places says so
            if slot is not None:
                _restore(meter, slot, now)
            elif self._is_damaged:
                meter.level = 0

    def save(self, meters: Iterable[Meter]) -> None:
        for meter in meters:
            digest = _digest(meter.limit.id)
            unit = meter.unit
            whole, rest = divmod(meter.level, unit)
            amount = meter.limit.amount
            slot = _SLOT.pack(
                *(digest, amount, whole, rest, meter.at_ns, meter.ends_ns, meter.epoch, meter.exceeded_ns)
            )
            slot += struct.pack("<I", crc32(slot))
            at = self._slots.get(digest)
            if at is None:
                at = self._slots[digest] = self._end
                self._end += SLOT_BYTES
            if os.pwrite(self._fd, slot, at) != SLOT_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._saved[digest] = slot

    def heal(self) -> None:
        """Writes a damaged file anew without the slots that nobody can read.

        To be called once the limits that there are have been saved: those that were lost among them are saved
        as used up, and new ones need not start so any more.
        """
        if not self._is_damaged:
            return
        logger.warning("%s was damaged: limits that it had lost count as used up in this period", self._path)
        write_atomically(self._path, HEADER + b"".join(self._saved.values()))
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd = fd
        self._slots = {digest: len(HEADER) + at * SLOT_BYTES for at, digest in enumerate(self._saved)}
        self._end = len(HEADER) + len(self._slots) * SLOT_BYTES
        self._is_damaged = False

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _is_whole(slot: bytes) -> bool:
    return slot[-4:] == struct.pack("<I", crc32(slot[:-4]))


def _digest(limit_id: str) -> bytes:
    return hashlib.sha256(limit_id.encode()).digest()[:16]


def _restore(meter: Meter, slot: bytes, now: Now) -> None:
    _, amount, whole, rest, at_ns, _ends_ns, epoch, exceeded_ns = _SLOT.unpack_from(slot)
    unit = meter.unit
    if rest >= unit:
        meter.level = 0
        return
    level = whole * unit + rest
    if meter.is_bucket:
        meter.level = min(level, meter.limit.amount * unit)
        meter.at_ns = min(at_ns, now.monotonic_ns)  # a machine that was started again counts from 0
        meter.exceeded_ns = exceeded_ns
    elif epoch >= meter.epoch:  # what was used stays used, also of another amount, or by a clock ahead
        meter.level = min(level + meter.limit.amount - amount, meter.limit.amount)
        meter.exceeded_ns = exceeded_ns
