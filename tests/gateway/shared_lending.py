"""The script in Redis or Valkey with a clock of the test's own, and one control plane that calls it.

Where the script would ask the server for the time, it reads a key.
"""

import hashlib
import itertools
from typing import Any

import redis

from forebay.app.quota_script import (
    SCRIPT,
    Answer,
    Book,
    Done,
    Shown,
    make_prefix,
)
from forebay.core.limits import Exceeded, Kind, Limit, Measure, Period
from forebay.gateway.policy.lending import Want
from forebay.gateway.policy.meter import Now
from forebay.gateway.quota_wire import Held

S = 1_000_000_000
START_NS = 1_790_000_000 * S
CLOCKED = SCRIPT.replace("redis.call('TIME')", "redis.call('HMGET', '{clock}', 's', 'us')")
assert CLOCKED != SCRIPT
FLEETS = itertools.count()


def make(name: str, amount: int, period: Period | None, kind: Kind = Kind.BUCKET, **more: Any) -> Limit:
    measure = Measure.CONCURRENT if period is None else Measure.REQUESTS
    return Limit(
        id=name,
        owner="team a",
        measure=more.pop("measure", measure),
        amount=amount,
        period=period,
        kind=kind,
        **more,
    )


LIMITS = (
    make("small", 3, Period.MINUTE),
    make("odd", 997, Period.SECOND),
    make("week", 123_456_789, Period.WEEK),
    make("cost", 10**15, Period.MONTH, measure=Measure.COST),
    make("none", 0, Period.DAY),
    make("hour", 500, Period.HOUR, Kind.CALENDAR, grace_units=50, grace_ns=60 * S),
    make("month", 7_777, Period.MONTH, Kind.CALENDAR, time_zone="Europe/Berlin", exceeded=Exceeded.DOWNGRADE),
    make("places", 5, None),
)
NAMES = [limit.id for limit in LIMITS]


class Shared:
    """The script with a clock of its own, and one control plane that calls it."""

    def __init__(self, client: "redis.Redis", fleet: str = "", name: str = "a") -> None:
        self.fleet = fleet or f"f{next(FLEETS)}"
        self.client = client
        self.book = Book(name)
        self.sha = hashlib.sha1(CLOCKED.encode(), usedforsecurity=False).hexdigest()
        self.set_clock(START_NS)

    def set_clock(self, now_ns: int) -> None:
        self.now = Now(now_ns, now_ns)
        seconds, rest = divmod(now_ns // 1000, 1_000_000)
        self.client.hset("{clock}", mapping={"s": seconds, "us": rest})

    def call(self, payload: bytes) -> Answer:
        key = make_prefix(self.fleet)
        try:
            reply = self.client.evalsha(self.sha, 1, key, payload)
        except redis.exceptions.NoScriptError:
            reply = self.client.eval(CLOCKED, 1, key, payload)
        return self.book.read(reply)

    def join(self, worker: str, *held: Held) -> None:
        assert isinstance(self.call(self.book.join(worker, held, self.now)), Done)

    def leave(self, worker: str) -> None:
        assert isinstance(self.call(self.book.leave(worker)), Done)

    def ask(self, worker: str, *wants: Want, final: bool = False) -> Answer:
        return self.call(self.book.ask(worker, wants, self.now, final=final))

    def give(self, worker: str, limit_id: str, epoch: int, units: int) -> None:
        assert isinstance(
            self.call(self.book.give_back(worker, [Held(limit_id, epoch, units)], self.now)), Done
        )

    def set_limits(self, limits: tuple[Limit, ...]) -> None:
        self.call(self.book.touch(self.book.set_limits(limits, self.now), self.now))

    def tick(self, *workers: str) -> Answer:
        return self.call(self.book.tick(workers, self.now))

    def left(self) -> dict[str, int]:
        shown = self.call(self.book.show(sorted(self.book.limits), self.now))
        assert isinstance(shown, Shown)
        return {each.limit.id: each.left for each in shown.standings}

    def begin(self, *workers: str, limits: tuple[Limit, ...] = LIMITS) -> None:
        self.book.set_limits(limits, self.now)
        for worker in workers:
            self.join(worker)
        self.set_clock(self.now.wall_ns + S)  # it settles after its first call ever


def make_amount(limit: Limit, amount: int) -> Limit:
    return make(
        limit.id, amount, limit.period, limit.kind, measure=limit.measure, time_zone=limit.time_zone,
        exceeded=limit.exceeded, grace_units=limit.grace_units, grace_ns=limit.grace_ns,
    )  # fmt: skip
