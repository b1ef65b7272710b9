"""Makes the calls of `quota.lua`, reads its answers, and remembers what they say of each limit.  No I/O.

What it remembers goes along with every call: a server that has lost something goes on from there.  The script
counts microseconds, the rest of Forebay nanoseconds; this is where one becomes the other.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from forebay.core.limits import Exceeded, Kind, Limit
from forebay.gateway.policy.lending import Loan, Shortage, Standing, Want
from forebay.gateway.policy.meter import PERIOD_NS, Now, find_period
from forebay.gateway.quota_wire import Held

PARTS = "quota_meter.lua", "quota_known.lua", "quota.lua"
SCRIPT = "".join(files("forebay.app").joinpath(name).read_text() for name in PARTS)
SCRIPT_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
FORMAT = 2  #: of the keys; versions of Forebay that write others share nothing
US = 1000  #: nanoseconds
TOTAL_MAX = 4 * 10**15  #: units that one name takes or returns; the script counts to 2^53
KNOWN_MAX = 100_000  #: limits whose last state is remembered, though they may not hold any more

_encode = msgspec.msgpack.Encoder().encode
#: What is published: `returned` or `recall`, the limit's id, and workers.
decode_news = msgspec.msgpack.Decoder(list[str]).decode


class Lent(msgspec.Struct, frozen=True):
    """Yes."""

    loans: tuple[Loan, ...]


class Short(msgspec.Struct, frozen=True):
    """No, and who else has something of it."""

    shortage: Shortage
    holders: tuple[str, ...]


class Early(msgspec.Struct, frozen=True):
    """Not yet: ask again after so long."""

    wait_ns: int


class Stranger(msgspec.Struct, frozen=True):
    """The worker counts as gone; it has to say anew what it holds."""


class OtherPeriods(msgspec.Struct, frozen=True):
    """Nothing was done: the server's clock is in none of the periods that it was told.  Call anew."""


class Done(msgspec.Struct, frozen=True):
    """It is written down."""


class Ticked(msgspec.Struct, frozen=True):
    """How many workers there are, and which of those named count as gone."""

    members: int
    strangers: tuple[str, ...]


class Shown(msgspec.Struct, frozen=True):
    """How the limits stand."""

    standings: tuple[Standing, ...]


class Holders(msgspec.Struct, frozen=True):
    """Workers that may have something of each of the limits asked about."""

    names: tuple[tuple[str, ...], ...]


Answer = Holders | Lent | Short | Early | Stranger | OtherPeriods | Done | Ticked | Shown


def make_prefix(fleet: str) -> str:
    """Of all keys of the machines that share limits.  In braces: a cluster keeps them in one place."""
    return f"{{forebay:{fleet}}}:{FORMAT}"


class Book:
    """See the module.

    Args:
        name: of this control plane, unique over all that there ever were.
    """

    def __init__(self, name: str) -> None:
        self._limits: dict[str, Limit] = {}
        self._known: dict[str, Sequence[Any]] = {}  # as the script describes a meter, by id
        self._learned_ns: dict[str, int] = {}  # when the amount was told, by the monotonic clock
        self._ahead_ns = 0  # of the server's clock before this machine's
        self._now = Now(0, 0)
        self._names = (f"{name}-{number}" for number in itertools.count())
        self._name = next(self._names)  # under which its totals stand in the server

    def rename(self) -> None:
        """To be called once answers may have been missed: totals of the name so far grow no more.

        Others may have heard more of them than this control plane has; what it takes from now on, if that
        was lost, could not be told from that.
        """
        self._name = next(self._names)

    def list_known(self) -> list[str]:
        """Limits that hold, and of which a server could have lost something."""
        return [limit_id for limit_id in self._known if limit_id in self._limits]

    def set_limits(self, limits: Iterable[Limit], now: Now) -> list[str]:
        """From now on these hold; returns those whose amounts are others than before.

        Of two control planes with different amounts, the later edit counts.
        """
        changed = []
        before, self._limits = self._limits, {limit.id: limit for limit in limits}
        for limit_id, limit in self._limits.items():
            known = before.get(limit_id)
            if known is None or known.amount != limit.amount:
                self._learned_ns[limit_id] = now.monotonic_ns
                if limit_id in self._known:
                    changed.append(limit_id)
        self._learned_ns = {key: value for key, value in self._learned_ns.items() if key in self._limits}
        if len(self._known) > KNOWN_MAX:  # what is known of those that are gone is kept: they may come again
            self._known = {key: value for key, value in self._known.items() if key in self._limits}
        return changed

    @property
    def limits(self) -> dict[str, Limit]:
        return self._limits

    # --- calls ----------------------------------------------------------------------------------------------

    def ask(self, worker: str, wants: Iterable[Want], now: Now, *, final: bool = False) -> bytes:
        wants = [want for want in wants if want.limit_id in self._limits]
        limits = self._describe([want.limit_id for want in wants], now)
        needs, likes = [want.need for want in wants], [want.like for want in wants]
        return self._call("ask", worker, final, limits, needs, likes)

    def give_back(
        self, worker: str, returned: Sequence[Held], now: Now, recalled: str = "", number: int = 0
    ) -> bytes:
        limits = self._describe([held.limit_id for held in returned], now)
        epochs, units = [held.epoch // US for held in returned], [held.units for held in returned]
        return self._call("give", worker, limits, epochs, units, recalled, number)

    def join(self, worker: str, held: Sequence[Held], now: Now, *, is_first: bool = True) -> bytes:
        held = [each for each in held if each.limit_id in self._limits]
        limits = self._describe([each.limit_id for each in held], now)
        return self._call("join", worker, is_first, limits, [each.units for each in held])

    def leave(self, worker: str) -> bytes:
        return self._call("leave", worker)

    def tick(self, workers: Iterable[str], now: Now) -> bytes:
        self._now = now
        return self._call("tick", list(workers))

    def touch(self, limit_ids: Iterable[str], now: Now) -> bytes:
        return self._call("touch", self._describe(limit_ids, now))

    def recall(self, limit_id: str, workers: Sequence[str]) -> bytes:
        return self._call("recall", limit_id, workers)

    def list_holders(self, limit_ids: Sequence[str]) -> bytes:
        return self._call("holders", limit_ids)

    def show(self, limit_ids: Iterable[str], now: Now) -> bytes:
        return self._call("show", self._describe(limit_ids, now))

    def _call(self, operation: str, *arguments: Any) -> bytes:
        return _encode((operation, self._name, *arguments))

    def _describe(self, limit_ids: Iterable[str], now: Now) -> list[Any]:
        self._now = now
        return [self._describe_one(limit_id, now) for limit_id in limit_ids]

    def _describe_one(self, limit_id: str, now: Now) -> Sequence[Any]:
        limit = self._limits.get(limit_id)
        if limit is None:
            return limit_id, "", 0, 0, 0, (), 0, 0, False, ()
        age = max(0, now.monotonic_ns - self._learned_ns[limit_id]) // US
        period = 0 if limit.period is None else PERIOD_NS[limit.period] // US
        rest = limit.grace_units, limit.grace_ns // US, limit.exceeded is not Exceeded.REFUSE
        known = self._known.get(limit_id, ())
        kind = "places" if limit.period is None else limit.kind.value
        periods: Sequence[tuple[int, int]] = ()
        if kind == Kind.CALENDAR:
            periods = _list_periods(limit, now.wall_ns + self._ahead_ns)
        return limit_id, kind, limit.amount, age, period, periods, *rest, known

    # --- answers --------------------------------------------------------------------------------------------

    def read(self, reply: Any) -> Answer:
        """Raises ValueError for what is none of the script's answers."""
        match reply:
            case [b"lent", loans, states]:
                self._remember(states)
                return Lent(tuple(_read_loan(*loan) for loan in loans))
            case [b"short", limit_id, left, wait, holders, states]:
                self._remember(states)
                shortage = Shortage(limit_id.decode(), left, None if wait < 0 else wait * US)
                return Short(shortage, tuple(name.decode() for name in holders))
            case [b"done", states]:
                self._remember(states)
                return Done()
            case [b"ticked", now_us, members, strangers]:
                self._set_clock(now_us)
                return Ticked(members, tuple(name.decode() for name in strangers))
            case [b"shown", rows]:
                return Shown(
                    tuple(self._read_standing(*row) for row in rows if row[0].decode() in self._limits)
                )
            case [b"held", found]:
                return Holders(tuple(tuple(name.decode() for name in names) for names in found))
            case [b"early", wait]:
                return Early(wait * US)
            case [b"stranger"]:
                return Stranger()
            case [b"periods", now_us]:
                self._set_clock(now_us)
                return OtherPeriods()
        raise ValueError(f"the script answers {reply!r:.200}")

    def _remember(self, states: Iterable[Sequence[Any]]) -> None:
        for limit_id, *numbers, totals in states:
            named: list[Any] = [each.decode() if isinstance(each, bytes) else each for each in totals]
            self._known[limit_id.decode()] = *numbers, named
            if self._name in named:
                at = named.index(self._name)
                if max(named[at + 1 : at + 3]) > TOTAL_MAX:
                    self.rename()

    def _set_clock(self, now_us: int) -> None:
        self._ahead_ns = now_us * US - self._now.wall_ns

    def _read_standing(
        self, limit_id: bytes, left: int, lent: int, full: int, epoch: int, exceeded: int, amount: int
    ) -> Standing:
        limit = self._limits[limit_id.decode()]
        if limit.amount != amount:
            limit = msgspec.structs.replace(limit, amount=amount)  # of another control plane's later edit
        full_in_ns = None if full < 0 else full * US
        return Standing(limit, left, lent, full_in_ns, epoch * US, exceeded * US)


def _list_periods(limit: Limit, wall_ns: int) -> tuple[tuple[int, int], ...]:
    """The calendar's period of a moment, the one before, and the one after."""
    assert limit.period is not None
    start, end = find_period(limit.period, limit.time_zone, wall_ns)
    before = find_period(limit.period, limit.time_zone, start - 1)
    after = find_period(limit.period, limit.time_zone, end)
    return tuple((first // US, last // US) for first, last in (before, (start, end), after))


def _read_loan(
    limit_id: bytes, epoch: int, units: int, left: int, full: int, ends: int, is_exceeded: int
) -> Loan:
    return Loan(limit_id.decode(), epoch * US, units, left, full * US, ends * US, bool(is_exceeded))
