"""What a set of events adds up to, for each UTC hour, owner and place that answered.

Pure: the same events in any order and any portions give the same totals, so the stored table can be thrown
away and folded anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

from forebay.core.events import Event, Outcome, UsageSource
from forebay.core.prices import TOKEN_CLASSES, Cost

HOUR_NS = 3600 * 10**9
DAY_HOURS = 24
DAY_NS = DAY_HOURS * HOUR_NS

Named = TypeVar("Named", str, tuple[str, str])
Pair = tuple[str, str]  #: an experiment and a variant
NO_PAIR: Pair = ("", "")
#: Of a text that callers choose, in UTF-8: longer ones have no totals of their own.  No key of a table of
#: totals may come near the 2,704 bytes that a row of PostgreSQL's index holds.
LABEL_BYTES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollups:
    """What has totals of its own, and how much of what callers name there is room for."""

    tags: tuple[str, ...] = ()
    values_max: int = 500  #: of each tag in a day
    pairs_max: int = 100  #: of an experiment and a variant in an hour


NO_ROLLUPS = Rollups()


class Priced(NamedTuple):
    """An event and what it cost."""

    event: Event
    cost: Cost
    is_other: bool = False  #: its hour has no room for its experiment and variant


class UsageCell(NamedTuple):
    """Where an event is counted.  `hour` is hours since the epoch, UTC; `key_id` a key's id."""

    hour: int
    team: str
    project: str
    key_id: str
    model: str
    pool: str
    tier: str
    region: str
    kind: str
    version: str
    experiment: str
    variant: str
    is_other: int  #: 1 for all pairs that found no room


class TagCell(NamedTuple):
    """Where an event is counted for one tag.  `place.hour` is that at which the day begins."""

    tag: str
    day: int
    is_rest: int  #: 1 for all values that found no room
    value: str
    place: UsageCell


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotals:
    """Sums over events.  A token class is None while no event knew it, and so is the cost; `_count` says how
    many events a sum of nanoseconds was made of."""

    requests: int = 0
    failed: int = 0
    abandoned: int = 0
    estimated: int = 0  #: requests whose tokens were counted by us, because the target never said
    tokens_input: int | None = None
    tokens_input_cached: int | None = None
    tokens_input_audio: int | None = None
    tokens_output: int | None = None
    tokens_output_reasoning: int | None = None
    tokens_output_audio: int | None = None
    tokens_input_cache_write: int | None = None
    unpriced: int = 0  #: requests whose cost is unknown, and not in the sum
    cost_nano_usd: int | None = None
    duration_ns_sum: int = 0
    duration_count: int = 0
    first_token_ns_sum: int = 0
    first_token_count: int = 0
    overhead_ns_sum: int = 0
    overhead_count: int = 0

    @property
    def input_total(self) -> int | None:
        """Over all classes; None where none is known."""
        return add_known(
            getattr(self, f"tokens_{name}") for name in TOKEN_CLASSES if name.startswith("input")
        )

    @property
    def output_total(self) -> int | None:
        return add_known(
            getattr(self, f"tokens_{name}") for name in TOKEN_CLASSES if name.startswith("output")
        )


TOTALS = tuple(field.name for field in fields(UsageTotals))
NOTHING = UsageTotals()


def compute_cell(event: Event, *, is_other: bool = False) -> UsageCell:
    experiment, variant = NO_PAIR if is_other else (event.experiment, event.variant)
    return UsageCell(
        event.at_ns // HOUR_NS,
        event.team,
        event.project,
        event.key,
        event.model,
        event.pool,
        event.tier,
        event.region,
        event.kind.value,
        event.version,
        experiment,
        variant,
        int(is_other),
    )


def mark_others(
    priced: Iterable[Priced], known: Mapping[int, Iterable[Pair]], pairs_max: int
) -> list[Priced]:
    """The same, with those marked that find no room: the first pairs of an hour have it, but for long ones.

    Args:
        priced: in the order in which they are stored.
        known: the pairs that are there already, by hour.
    """
    rooms = {hour: set(pairs) for hour, pairs in known.items()}
    marked = []
    for each in priced:
        event = each.event
        if event.experiment or event.variant:
            room = rooms.setdefault(event.at_ns // HOUR_NS, set())
            pair = (event.experiment, event.variant)
            has_room = all(map(can_be_named, pair)) and _find_room(room, pair, pairs_max)
            each = each._replace(is_other=not has_room)
        marked.append(each)
    return marked


def fold_usage(priced: Iterable[Priced]) -> dict[UsageCell, UsageTotals]:
    """The totals of the events, by cell."""
    groups: defaultdict[UsageCell, list[Priced]] = defaultdict(list)
    for each in priced:
        groups[compute_cell(each.event, is_other=each.is_other)].append(each)
    return {cell: compute_totals(group) for cell, group in groups.items()}


def fold_tag(
    priced: Iterable[Priced], tag: str, known: Mapping[int, Iterable[str]], values_max: int
) -> dict[TagCell, UsageTotals]:
    """The totals of the events of each day, by a tag's value.  The first values of a day have room, but for
    long ones.

    Args:
        priced: in the order in which they are stored, and marked as for the hours.
        known: the values that are there already, by day.
    """
    rooms = {day: set(values) for day, values in known.items()}
    groups: defaultdict[TagCell, list[Priced]] = defaultdict(list)
    for each in priced:
        day = each.event.at_ns // DAY_NS
        value = dict(each.event.tags).get(tag, "")
        has_room = can_be_named(value) and (
            not value or _find_room(rooms.setdefault(day, set()), value, values_max)
        )
        place = compute_cell(each.event, is_other=each.is_other)._replace(hour=day * DAY_HOURS)
        groups[TagCell(tag, day, int(not has_room), value if has_room else "", place)].append(each)
    return {cell: compute_totals(group) for cell, group in groups.items()}


def can_be_named(label: str) -> bool:
    """Whether a text that a caller chose is short enough for totals of its own."""
    return len(label) <= LABEL_BYTES_MAX // 4 or len(label.encode()) <= LABEL_BYTES_MAX


def _find_room(room: set[Named], name: Named, most: int) -> bool:
    if name not in room:
        if len(room) >= most:
            return False
        room.add(name)
    return True


def compute_totals(priced: list[Priced]) -> UsageTotals:
    """The totals of all the events, whatever their cells."""
    events = [each.event for each in priced]
    tokens = [event.tokens for event in events]
    first_tokens = [event.first_token_ns for event in events if event.first_token_ns is not None]
    overheads = [event.overhead_ns for event in events if event.overhead_ns is not None]
    costs = [each.cost.nano_usd for each in priced]
    return UsageTotals(
        requests=len(events),
        failed=sum(event.outcome is Outcome.FAILED for event in events),
        abandoned=sum(event.outcome is Outcome.ABANDONED for event in events),
        estimated=sum(event.usage_source is UsageSource.ESTIMATED for event in events),
        tokens_input=add_known(t.input for t in tokens),
        tokens_input_cached=add_known(t.input_cached for t in tokens),
        tokens_input_audio=add_known(t.input_audio for t in tokens),
        tokens_output=add_known(t.output for t in tokens),
        tokens_output_reasoning=add_known(t.output_reasoning for t in tokens),
        tokens_output_audio=add_known(t.output_audio for t in tokens),
        tokens_input_cache_write=add_known(t.input_cache_write for t in tokens),
        unpriced=costs.count(None),
        cost_nano_usd=add_known(costs),
        duration_ns_sum=sum(event.duration_ns for event in events),
        duration_count=len(events),
        first_token_ns_sum=sum(first_tokens),
        first_token_count=len(first_tokens),
        overhead_ns_sum=sum(overheads),
        overhead_count=len(overheads),
    )


def add_known(numbers: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None when none is, as SQL's `sum` has it."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def merge_totals(one: UsageTotals, other: UsageTotals) -> UsageTotals:
    """The totals of two disjoint sets of events together."""
    sums = {name: add_known((getattr(one, name), getattr(other, name))) for name in TOTALS}
    return UsageTotals(**sums)  # type: ignore[arg-type]  # None comes out only where None went in


def fold_days(cells: Mapping[UsageCell, UsageTotals]) -> dict[UsageCell, UsageTotals]:
    """The totals of days, from those of hours; `hour` is then that at which the day begins."""
    days: dict[UsageCell, UsageTotals] = {}
    for cell, totals in cells.items():
        day = cell._replace(hour=cell.hour // DAY_HOURS * DAY_HOURS)
        days[day] = merge_totals(days.get(day, NOTHING), totals)
    return days
