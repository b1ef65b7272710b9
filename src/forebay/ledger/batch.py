"""Decides what a stretch of a segment is: events, records to set aside, damage, a torn tail.

Reads files and returns values; it writes nothing, and knows neither the database nor the time.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from pathlib import Path

import msgspec

from forebay.core.events import Event, Tokens, decode_event
from forebay.ledger.segment import HEAD_BYTES, HEADER, SegmentCorrupt, find_frame, read_frames

BATCH_BYTES_MAX = 16 * 1024 * 1024
#: Of a damaged stretch, so much is kept; more would help nobody to find out what it was.
DAMAGE_KEPT_BYTES = 64 * 1024

#: Numbers outside are a fault in whoever wrote them; sums of those inside fit the columns of any database.
NUMBER_MAX = 2**48
AT_NS_MAX = 2**62
SMALL_MAX = 2**31 - 1

_RANGES = (
    (0, SMALL_MAX, ("status", "attempts", "worker", "mirrors_dropped")),
    (0, NUMBER_MAX, ("request_bytes", "answer_bytes", "hedged_tokens")),
    (0, NUMBER_MAX, tuple(f"tokens.{n}" for n in Tokens.__struct_fields__)),
    # Differences of clock readings may come out below zero.
    (-NUMBER_MAX, NUMBER_MAX, ("first_token_ns", "duration_ns", "overhead_ns", "filler_ns", "queued_ns")),
)
_TEXTS = (
    *("request_id", "key", "project", "team", "endpoint", "model", "target", "pool", "tier"),
    *("route_hash", "error", "experiment", "variant", "region", "version", "asked_model", "mirror_of"),
    *("hedged", "batch"),
)
# Each record passes here, so a group of fields is fetched by one call in C.
_GROUPS = tuple((low, high, names, attrgetter(*names)) for low, high, names in _RANGES)
_get_texts = attrgetter(*_TEXTS)


class Reason(StrEnum):
    """Why a record is not an event."""

    DAMAGED = "damaged"  #: its bytes are not those that were written
    UNKNOWN = "unknown"  #: this version can't read it; a later one may
    IMPLAUSIBLE = "implausible"  #: it holds a value that no table takes
    REFUSED = "refused"  #: the database would not take it or what it adds up to


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Bytes of a segment that became no event.  `payload` is all of a record, or the start of the damage."""

    position: int
    byte_count: int
    reason: Reason
    detail: str
    payload: bytes


@dataclass(slots=True, kw_only=True)
class Batch:
    """What lies between two positions of a segment."""

    start: int
    end: int
    events: list[tuple[int, Event]] = field(default_factory=list)  #: with the position of each frame
    set_aside: list[SetAside] = field(default_factory=list)
    damaged_bytes: int = 0
    torn_bytes: int = 0
    is_last: bool = False  #: nothing more can be read at present
    waiting: str = ""  #: damage behind which no whole record has come yet, in a file still being written

    @property
    def records(self) -> int:
        return len(self.events) + len(self.set_aside)


def read_batch(path: Path, start: int, records_max: int, *, is_final: bool) -> Batch:
    """Read up to `records_max` records from a position where a frame starts, or 0.

    `is_final` says that the file was known to be final *before* this call, so that what looks torn is torn.
    Raises OSError and SegmentVersionUnknown.
    """
    batch = Batch(start=start, end=start)
    while not batch.is_last:
        try:
            if _take_records(batch, path, records_max):
                return batch
            _pass_tail(batch, path, is_final)
        except SegmentCorrupt as error:
            batch.end = error.offset
            _pass_damage(batch, path, error.message, is_final)
    return batch


def _take_records(batch: Batch, path: Path, records_max: int) -> bool:
    """Take whole frames; True when the batch is full, False when the frames have ended."""
    for payload, after in read_frames(path, batch.end):
        batch.end = after
        position = after - HEAD_BYTES - len(payload)
        event = read_event(position, payload)
        if isinstance(event, SetAside):
            batch.set_aside.append(event)
        else:
            batch.events.append((position, event))
        if batch.records >= records_max or after - batch.start >= BATCH_BYTES_MAX:
            return True
    return False


def _pass_tail(batch: Batch, path: Path, is_final: bool) -> None:
    """The frames have ended quietly: in a final file that is its end, a torn tail, or a damaged length."""
    size = path.stat().st_size
    if size >= len(HEADER):
        batch.end = max(batch.end, len(HEADER))
    if not is_final:
        batch.is_last = True
    elif find_frame(path, batch.end + 1) is not None:
        _pass_damage(batch, path, "the length does not match the record", is_final)
    else:
        batch.torn_bytes = max(size - batch.end, 0)
        batch.end = max(size, batch.end)
        batch.is_last = True


def _pass_damage(batch: Batch, path: Path, detail: str, is_final: bool) -> None:
    """Set everything aside up to the next whole frame.  While a file grows, that frame may be yet to come."""
    found = find_frame(path, batch.end + 1)
    if found is None and not is_final:
        batch.waiting = detail
        batch.is_last = True
        return
    until = path.stat().st_size if found is None else found
    with path.open("rb") as file:
        file.seek(batch.end)
        kept = file.read(min(until - batch.end, DAMAGE_KEPT_BYTES))
    span = until - batch.end
    batch.set_aside.append(
        SetAside(position=batch.end, byte_count=span, reason=Reason.DAMAGED, detail=detail, payload=kept)
    )
    batch.damaged_bytes += span
    batch.end = until
    batch.is_last = found is None


def read_event(position: int, payload: bytes) -> Event | SetAside:
    """The event in a record's payload, or why there is none."""
    try:
        event = decode_event(payload)
    except msgspec.DecodeError as error:  # ValidationError, for what is well-formed but unknown, is one too
        reason, detail = Reason.UNKNOWN, str(error)
    else:
        if not (detail := find_implausible(event)):
            return event
        reason = Reason.IMPLAUSIBLE
    return SetAside(
        position=position, byte_count=len(payload), reason=reason, detail=detail[:500], payload=payload
    )


def find_implausible(event: Event) -> str:
    """Says which field holds a value that no table takes; empty when all is well."""
    if not 0 <= event.at_ns <= AT_NS_MAX:
        return f"at_ns is {event.at_ns}"
    for low, high, names, get in _GROUPS:
        known = list(filter(None, get(event)))  # None and 0 are always right
        if known and not low <= min(known) <= max(known) <= high:
            return f"one of {', '.join(names)} is out of range: {known}"
    if "\0" in "".join(_get_texts(event)):  # PostgreSQL takes no such text
        return "a text holds a NUL"
    if event.tags and any("\0" in text for tag in event.tags for text in tag):
        return "a tag holds a NUL"
    for name, count in event.units:
        if "\0" in name or not 0 <= count <= NUMBER_MAX:
            return f"the unit {name!r} is {count}"
    return ""
