"""Decides what reported load is worth at a time, and which amounts follow from it.  Pure.

A report holds for its time, by the monotonic clock from when it was first seen here; then the default of the
signal stands in its place.  For a team, the values of its projects that have ever reported are added up.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

import msgspec

from forebay.core.expressions import Expression
from forebay.gateway.policy.meter import Now
from forebay.gateway.signals import MICRO, SignalRecord

SKEW_NS = 60_000_000_000  #: a report from further in the future is by a clock that was wrong: it is stale

Place = tuple[str, str, str]  #: team, project, name


class SignalRule(msgspec.Struct, frozen=True):
    """What the configuration says of one signal."""

    default_micro: int
    stale_after_ns: int


class Source(msgspec.Struct, frozen=True):
    """What an amount is computed from; limits whose sources are the same have the same amount.

    Attributes:
        project: empty where the reports of all projects of the team count.
        unit: how many units 1 is.
        maximum: the most that the amount may be.
    """

    expression: Expression
    team: str
    project: str
    unit: int
    maximum: int


class Reading(msgspec.Struct, frozen=True):
    """A signal's value as an expression sees it.

    Attributes:
        fresh: projects whose reports count, as `TEAM/PROJECT`.
        stale: projects whose reports are too old, so that the default counts for each.
    """

    name: str
    value_micro: int
    fresh: tuple[str, ...]
    stale: tuple[str, ...]


class _Seen(msgspec.Struct, frozen=True):
    record: SignalRecord
    since_ns: int | None  #: when it was reported, by this process's monotonic clock; None if it is too old


class SignalBoard:
    """The last report of each signal, and which of them hold."""

    def __init__(self) -> None:
        self._rules: Mapping[str, SignalRule] = {}
        self._seen: dict[Place, _Seen] = {}
        self._projects: dict[tuple[str, str], list[Place]] = {}  # by team and name
        self._looked_ns: int | None = None  # when these were all reports that there were

    def set_rules(self, rules: Mapping[str, SignalRule]) -> None:
        """From now on the configuration says so."""
        self._rules = rules

    def absorb(self, records: Iterable[SignalRecord], now: Now) -> None:
        """These are all reports that there are.

        One that was not there at the last look is no older than that look, whatever the clocks of several
        machines say.
        """
        age_max_ns = None if self._looked_ns is None else now.monotonic_ns - self._looked_ns
        before, self._seen, self._projects = self._seen, {}, {}
        for record in records:
            known = before.get(record.place)
            if known is None or known.record != record:
                known = _see(record, now, age_max_ns)
            self._seen[record.place] = known
            self._projects.setdefault((record.team, record.name), []).append(record.place)

    def confirm(self, now: Now) -> None:
        """At this moment there were no other reports than those that were absorbed last."""
        self._looked_ns = now.monotonic_ns

    def find_next_change_ns(self, now: Now) -> int | None:
        """When the next report gets stale, by the monotonic clock; None if none will."""
        ends = (self._find_end_ns(seen) for seen in self._seen.values())
        return min((end for end in ends if end is not None and end > now.monotonic_ns), default=None)

    def is_fresh(self, record: SignalRecord, now: Now) -> bool:
        """Whether a report holds, also one that was not absorbed yet."""
        seen = self._seen.get(record.place)
        return self._is_fresh(seen if seen and seen.record == record else _see(record, now), now)

    def read(self, source: Source, now: Now) -> tuple[Reading, ...]:
        """The values that an expression sees, in the order of their names."""
        return tuple(self._read(source, name, now) for name in sorted(source.expression.names))

    def compute_amount(self, source: Source, now: Now) -> int:
        values = {each.name: Fraction(each.value_micro, MICRO) for each in self.read(source, now)}
        return source.expression.compute_amount(values, unit=source.unit, maximum=source.maximum)

    def _read(self, source: Source, name: str, now: Now) -> Reading:
        rule = self._rules[name]
        if source.project:
            place = source.team, source.project, name
            places = [place] if place in self._seen else []
        else:
            places = self._projects.get((source.team, name), [])
        fresh: list[Place] = []
        stale: list[Place] = []
        for place in places:
            (fresh if self._is_fresh(self._seen[place], now) else stale).append(place)
        value = sum(self._seen[place].record.value_micro for place in fresh)
        value += rule.default_micro * (len(stale) if places else 1)
        return Reading(name, value, _spell(fresh), _spell(stale))

    def _is_fresh(self, seen: _Seen, now: Now) -> bool:
        end_ns = self._find_end_ns(seen)
        return end_ns is not None and now.monotonic_ns < end_ns

    def _find_end_ns(self, seen: _Seen) -> int | None:
        rule = self._rules.get(seen.record.name)
        if rule is None or seen.since_ns is None:
            return None
        return seen.since_ns + (seen.record.ttl_ns or rule.stale_after_ns)


def _see(record: SignalRecord, now: Now, age_max_ns: int | None = None) -> _Seen:
    """A report that is new to this process.

    Args:
        age_max_ns: for so long it may have been there unseen; None where nobody knows.
    """
    # Of a clock that went back a little, the report counts as just made; so it holds no longer than its time
    # from now on, whatever the clock does then.
    age_ns = now.wall_ns - record.reported_ns
    if age_max_ns is not None:
        age_ns = min(max(0, age_ns), age_max_ns)
    return _Seen(record, now.monotonic_ns - max(0, age_ns) if age_ns >= -SKEW_NS else None)


def _spell(places: Iterable[Place]) -> tuple[str, ...]:
    return tuple(sorted(f"{team}/{project}" for team, project, _ in places))


def compute_default(expression: Expression, rules: Mapping[str, SignalRule], unit: int, maximum: int) -> int:
    """The amount where nothing has been reported."""
    values = {name: Fraction(rules[name].default_micro, MICRO) for name in expression.names}
    return expression.compute_amount(values, unit=unit, maximum=maximum)
