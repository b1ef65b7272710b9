"""What is left of each limit, in a file that outlives the process that writes it.

One slot a limit, found by a digest of its id, written with one system call; what was written survives
`kill -9` of the process (not the loss of the machine's power: nothing here waits for the disk).  A slot whose
check fails, or that says what can't be, counts as a limit of which all was used, never as an untouched one.
Slots of limits that are gone are kept while they say more than that nothing is known.
"""

import errno
import hashlib
import logging
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from forebay.app.atomic_file import write_atomically
from forebay.core.limits import Measure, Period
from forebay.gateway.policy.meter import PERIOD_NS, STILL, Meter, Now

logger = logging.getLogger("forebay.quota")

HEADER = b"forebay-quota 3\n"
#: id, amount, whole units, rest of a unit, at_ns, ends_ns, epoch, exceeded_ns, later_at_ns, later_ends_ns,
#: later_used, and until when (wall) it matters though its limit be gone
_SLOT = struct.Struct("<16sqqQqqqqqqqq")
SLOT_BYTES = _SLOT.size + 4  # and a CRC
_EARLIER = {  # headers, and slots: that of today without its end
    b"forebay-quota 1\n": struct.Struct("<16sqqQqqq").size,
    b"forebay-quota 2\n": struct.Struct("<16sqqQqqqq").size,
}
KEPT_MAX_NS = (
    400 * 86_400_000_000_000
)  #: a limit that has been gone for so long is forgotten, whatever it owes
GONE_MIN = 100  #: slots that matter no more, before the file is written anew without them


class QuotaState:
    """The file.  Raises OSError from every method that touches it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._slots: dict[bytes, int] = {}
        self._saved: dict[bytes, bytes] = {}
        self._restored: set[str] = set()
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        if data[: len(HEADER)] in _EARLIER:
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
        size = _EARLIER[data[: len(HEADER)]]
        # It does not say how long the periods of its limits are.
        kept_ns = os.fstat(self._fd).st_mtime_ns + 2 * PERIOD_NS[Period.MONTH]
        parts = [HEADER]
        for at in range(len(HEADER), len(data), size + 4):
            slot = data[at : at + size + 4]
            if len(slot) == size + 4 and _is_whole(slot):
                slot = slot[:-4].ljust(_SLOT.size - 4 * 8, b"\0") + struct.pack("<4q", 0, 0, STILL, kept_ns)
                parts.append(slot + struct.pack("<I", crc32(slot)))
            else:
                parts.append(bytes(SLOT_BYTES - 1) + b"?")
        data = b"".join(parts)
        self._replace(data)
        return data

    def _replace(self, data: bytes) -> None:
        write_atomically(self._path, data)
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.close(self._fd)
        self._fd = fd

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

    def save(self, meters: Iterable[Meter], now: Now) -> None:
        for meter in meters:
            if meter.limit.measure is Measure.CONCURRENT:
                continue
            digest = _digest(meter.limit.id)
            slot = _pack(digest, meter, now)
            at = self._slots.get(digest, self._end)
            if os.pwrite(self._fd, slot, at) != SLOT_BYTES:
                if at == self._end:
                    os.ftruncate(self._fd, at)  # a part of a slot at the end would count as damage
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if at == self._end:
                self._slots[digest] = at
                self._end += SLOT_BYTES
            self._saved[digest] = slot

    def heal(self) -> None:
        """Writes a damaged file anew without the slots that nobody can read.

        To be called once the limits that there are have been saved: those that were lost among them are saved
        as used up, and new ones need not start so any more.
        """
        if not self._is_damaged:
            return
        logger.warning("%s was damaged: limits that it had lost count as used up in this period", self._path)
        self._rewrite(self._saved)
        self._is_damaged = False

    def tidy(self, limit_ids: Iterable[str], now: Now) -> None:
        """Forgets limits other than these that matter no more, once they are as many as those that do."""
        held = {_digest(limit_id) for limit_id in limit_ids}
        kept = {
            digest: slot
            for digest, slot in self._saved.items()
            if digest in held or now.wall_ns < _SLOT.unpack_from(slot)[-1]
        }
        if len(self._saved) - len(kept) >= max(GONE_MIN, len(kept)):
            with suppress(OSError):  # a disk without room for it has time until the next edit
                self._rewrite(kept)

    def _rewrite(self, slots: dict[bytes, bytes]) -> None:
        self._replace(HEADER + b"".join(slots.values()))
        self._saved = slots
        self._slots = {digest: len(HEADER) + at * SLOT_BYTES for at, digest in enumerate(slots)}
        self._end = len(HEADER) + len(slots) * SLOT_BYTES

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _is_whole(slot: bytes) -> bool:
    return slot[-4:] == struct.pack("<I", crc32(slot[:-4]))


def _digest(limit_id: str) -> bytes:
    return hashlib.sha256(limit_id.encode()).digest()[:16]


def _pack(digest: bytes, meter: Meter, now: Now) -> bytes:
    slot = _SLOT.pack(
        *(digest, meter.limit.amount, *divmod(meter.level, meter.unit)),
        *(meter.at_ns, meter.ends_ns, meter.epoch, meter.exceeded_ns),
        *(meter.later_at_ns, meter.later_ends_ns, meter.later_used, _compute_kept_ns(meter, now)),
    )
    return slot + struct.pack("<I", crc32(slot))


def _compute_kept_ns(meter: Meter, now: Now) -> int:
    """Until when a state matters that nobody changes: some periods after it is that of a new limit again."""
    limit = meter.limit
    assert limit.period is not None
    period_ns = PERIOD_NS[limit.period]
    if not meter.is_bucket:
        kept_ns = max(meter.ends_ns, meter.later_ends_ns) - now.wall_ns + period_ns
    elif limit.amount:
        kept_ns = 2 * period_ns + (limit.amount * meter.unit - meter.level) // limit.amount
    else:
        kept_ns = KEPT_MAX_NS
    return now.wall_ns + min(KEPT_MAX_NS, kept_ns)


def _restore(meter: Meter, slot: bytes, now: Now) -> None:
    _, amount, whole, rest, at_ns, ends_ns, epoch, exceeded_ns, *later, _ = _SLOT.unpack_from(slot)
    unit = meter.unit
    if rest >= unit or (not meter.is_bucket and ends_ns <= at_ns):
        meter.level = 0
        return
    level = whole * unit + rest
    meter.exceeded_ns = exceeded_ns
    if meter.is_bucket:
        meter.level = min(level, meter.limit.amount * unit)
        meter.at_ns = min(at_ns, now.monotonic_ns)  # a machine that was started again counts from 0
    else:  # it goes on in the period that had begun, also of another amount, time zone or clock
        meter.level = min(level + meter.limit.amount - amount, meter.limit.amount)
        meter.at_ns, meter.ends_ns, meter.epoch = at_ns, ends_ns, epoch
        meter.later_at_ns, meter.later_ends_ns, meter.later_used = later
        meter.advance(now)
