"""Decides how much of one limit is left at a time.  Pure, in integers, so that no unit is ever made or lost.

A bucket's level is kept in units times the period's nanoseconds: each nanosecond adds exactly the amount.  A
calendar counts what was used since the period began.  Time never goes back: a clock that does stands still,
or, where it goes back into an earlier period of a calendar, what was used stays used until it is put right.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from forebay.core.limits import Kind, Limit, Period

PERIOD_NS = {
    Period.SECOND: 1_000_000_000,
    Period.MINUTE: 60_000_000_000,
    Period.HOUR: 3_600_000_000_000,
    Period.DAY: 86_400_000_000_000,
    Period.WEEK: 7 * 86_400_000_000_000,
    Period.MONTH: 30 * 86_400_000_000_000,
}


STILL = -1
CLOCK_SLACK_NS = 300_000_000_000  #: a clock that goes back by less begins no earlier period


class Now(msgspec.Struct, frozen=True):
    """One moment by two clocks."""

    monotonic_ns: int
    wall_ns: int


class Meter(msgspec.Struct):
    """What is left of one limit.

    Attributes:
        level: a bucket's level, times the period's nanoseconds; else the units that are left.
        at_ns: until when a bucket has been filled (monotonic); else when the period began (wall).
        ends_ns: when the calendar's period ends (wall); 0 for others.
        epoch: changes with each period of a calendar: what was lent in an earlier one is worth nothing now.
        exceeded_ns: when it was first exceeded in the period (wall), 0 while it was not.
        later_at_ns, later_ends_ns: a later period that a clock has shown before it went back; 0 without one.
        later_used: units used in that; `STILL` as long as the level counts for it.
    """

    limit: Limit
    level: int
    at_ns: int
    ends_ns: int = 0
    epoch: int = 0
    exceeded_ns: int = 0
    later_at_ns: int = 0
    later_ends_ns: int = 0
    later_used: int = STILL

    def advance(self, now: Now) -> None:
        """Lets time pass."""
        limit = self.limit
        if limit.period is None:
            return
        if self.is_bucket:
            passed = now.monotonic_ns - self.at_ns
            if passed > 0:
                full = limit.amount * PERIOD_NS[limit.period]
                self.level = min(full, self.level + limit.amount * passed)
                self.at_ns = now.monotonic_ns
                if self.level == full:
                    self.exceeded_ns = 0
        elif now.wall_ns >= self.ends_ns or now.wall_ns < self.at_ns - CLOCK_SLACK_NS:
            self._turn(*find_period(limit.period, limit.time_zone, now.wall_ns), now.wall_ns)

    def _turn(self, at_ns: int, ends_ns: int, wall_ns: int) -> None:
        """The clock is in another of the calendar's periods."""
        if (
            wall_ns < self.ends_ns
        ):  # it has gone back: what was used stays used, here and when it is put right
            if not self.later_ends_ns:
                self.later_at_ns, self.later_ends_ns = self.at_ns, self.ends_ns
                self.later_used = STILL
        elif self.later_at_ns <= wall_ns < self.later_ends_ns:  # it is put right
            at_ns, ends_ns = self.later_at_ns, self.later_ends_ns
            if self.later_used != STILL:
                self.level, self.exceeded_ns = self.limit.amount - self.later_used, 0
            self._forget_later()
        elif at_ns < self.ends_ns and ends_ns - wall_ns < wall_ns - at_ns:
            self.ends_ns = ends_ns  # the time zone was edited: the period goes on until the new one's ends
            return
        else:
            if wall_ns >= self.later_ends_ns:
                self._forget_later()
            elif self.later_used == STILL:
                self.later_used = self.limit.amount - self.level
            self.level, self.exceeded_ns = self.limit.amount, 0
        self.at_ns, self.ends_ns, self.epoch = at_ns, ends_ns, at_ns

    def _forget_later(self) -> None:
        self.later_at_ns, self.later_ends_ns, self.later_used = 0, 0, STILL

    @property
    def is_bucket(self) -> bool:
        return self.limit.period is not None and self.limit.kind is Kind.BUCKET

    @property
    def unit(self) -> int:
        """One unit, as the level counts it."""
        period = self.limit.period
        return PERIOD_NS[period] if self.is_bucket and period is not None else 1

    @property
    def left(self) -> int:
        """Whole units that may be taken; negative while more was used than there was."""
        return self.level // self.unit

    def take(self, units: int) -> None:
        """Takes units, whether or not they are there."""
        self.level -= units * self.unit

    def give(self, units: int, epoch: int) -> None:
        """Takes units back that were lent in an epoch."""
        if epoch != self.epoch:
            return
        self.level = min(self.limit.amount * self.unit, self.level + units * self.unit)

    def compute_wait_ns(self, units: int, now: Now) -> int | None:
        """How long until so many units are left, if nobody takes any; None where time does not tell.

        More than the limit's amount will never be there.
        """
        limit = self.limit
        if units > limit.amount or limit.period is None or limit.amount == 0:
            return None
        if units <= self.left:
            return 0
        if limit.kind is Kind.CALENDAR:
            return max(0, self.ends_ns - now.wall_ns)
        lacking = units * PERIOD_NS[limit.period] - self.level
        return max(0, -(-lacking // limit.amount) - (now.monotonic_ns - self.at_ns))

    def change(self, limit: Limit, now: Now) -> None:
        """The same limit with another amount: what was used stays used."""
        self.advance(now)
        before = self.limit
        self.limit = limit
        if self.is_bucket:
            self.level = min(self.level, limit.amount * self.unit)
        else:
            self.level += limit.amount - before.amount
        if limit.amount > before.amount and self.left > 0:
            self.exceeded_ns = 0

    def is_too_much(self, units: int) -> bool:
        """Whether so many are never there: who asks for them has not used the limit up."""
        return units > self.limit.amount + self.limit.grace_units

    def may_overdraw(self, units: int, now: Now) -> bool:
        """Whether grace allows so many more than are left; its time begins with the first who ask."""
        limit = self.limit
        if self.is_too_much(units):
            return False
        if not self.exceeded_ns:
            self.exceeded_ns = now.wall_ns
        has_time = now.wall_ns < self.exceeded_ns + limit.grace_ns
        return has_time and units <= self.left + limit.grace_units


def make_meter(limit: Limit, now: Now) -> Meter:
    """A meter of a limit of which nothing has been used."""
    if limit.period is None:
        return Meter(limit, limit.amount, 0)
    if limit.kind is Kind.BUCKET:
        return Meter(limit, limit.amount * PERIOD_NS[limit.period], now.monotonic_ns)
    start, end = find_period(limit.period, limit.time_zone, now.wall_ns)
    return Meter(limit, limit.amount, start, end, start)


def find_period(period: Period, time_zone: str, wall_ns: int) -> tuple[int, int]:
    """Start and end, in nanoseconds since the epoch, of the calendar's period in which a moment lies.

    Weeks begin on Monday.  Seconds, minutes and hours are those of UTC, days and longer the zone's.
    """
    if period in (Period.SECOND, Period.MINUTE, Period.HOUR):
        length = PERIOD_NS[period]
        start = wall_ns // length * length
        return start, start + length
    zone: tzinfo = UTC if time_zone == "UTC" else ZoneInfo(time_zone)
    day = datetime.fromtimestamp(wall_ns // 1_000_000_000, zone).replace(hour=0, minute=0, second=0)
    if period is Period.WEEK:
        day -= timedelta(days=day.weekday())
    elif period is Period.MONTH:
        day = day.replace(day=1)
    if period is Period.MONTH:
        following = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
    else:
        following = day + timedelta(days=7 if period is Period.WEEK else 1)
    return _to_ns(day, zone), _to_ns(following, zone)


def _to_ns(local: datetime, zone: tzinfo) -> int:
    """The moment at which a local time begins; where clocks go back and it comes twice, the first."""
    return int(local.replace(tzinfo=zone, fold=0).timestamp()) * 1_000_000_000
