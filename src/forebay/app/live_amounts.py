"""Keeps the amounts of limits with an expression in line with what applications report.

Level-triggered: what the amounts should be follows from the limits, the reports in the database and the time;
the authority is told where they are others.  A report of any process is seen within `POLL_S`, one of this
process at once.  No snapshot is written for it.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from forebay.app.config_signals import SignalConfig, compile_signals, find_unit
from forebay.app.quota_server import QuotaServer
from forebay.core.clock import Clock
from forebay.core.expressions import parse_combined
from forebay.core.keys import KeyEntry
from forebay.core.limits import Limit, Measure
from forebay.core.routes import Snapshot
from forebay.gateway.policy.meter import Now
from forebay.gateway.policy.signals import Reading, SignalBoard, Source
from forebay.gateway.repo_signals import SignalRepo
from forebay.gateway.signals import SignalRecord
from forebay.store.errors import StoreError

POLL_S: Final = 0.25  #: between two looks at whether another process took a report
SPACING_S: Final = 0.2  #: between two evaluations, however many reports come

logger = logging.getLogger("forebay.control")


class LiveAmounts:
    """See the module.

    Args:
        quota: is told of amounts that change.
    """

    def __init__(self, repo: SignalRepo, quota: QuotaServer, clock: Clock) -> None:
        self._repo = repo
        self._quota = quota
        self._clock = clock
        self._board = SignalBoard()
        self._signals: Mapping[str, SignalConfig] = {}
        self._quotas: tuple[Limit, ...] = ()
        self._keys: tuple[KeyEntry, ...] = ()
        self._sources: list[tuple[Source, list[str]]] = []  # with the limits that have the amount
        self._by_limit: dict[str, Source] = {}
        self._stamp: tuple[int, int] | None = None  # of the reports that the board has
        self._looking = asyncio.Lock()  # of two looks, the later one sees what is newer
        self._reported = asyncio.Event()
        self._trouble = ""

    async def prepare(self, snapshot: Snapshot, signals: Mapping[str, SignalConfig]) -> Mapping[str, int]:
        """The amounts that limits with an expression have now, by id; from now on for these limits.

        Raises StoreError.
        """
        if any(limit.expression for limit in snapshot.quotas):
            await self._look()
        if signals != self._signals:
            self._signals = signals
            self._board.set_rules(compile_signals(signals))
        if snapshot.quotas != self._quotas or snapshot.keys != self._keys:
            self._quotas, self._keys = snapshot.quotas, snapshot.keys
            self._sources = _find_sources(snapshot)
            self._by_limit = {limit_id: source for source, ids in self._sources for limit_id in ids}
        return self._compute()

    def note_report(self) -> None:
        """This process has taken a report, or removed one."""
        self._reported.set()

    def read(self, limit_id: str) -> tuple[Reading, ...]:
        """The signals as the expression of a limit sees them; none where it has none."""
        source = self._by_limit.get(limit_id)
        return () if source is None else self._board.read(source, self._now())

    def is_fresh(self, record: SignalRecord) -> bool:
        """Whether a report holds."""
        return self._board.is_fresh(record, self._now())

    def is_declared(self, name: str) -> bool:
        """Whether the configuration knows the signal."""
        return name in self._signals

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wait()
            if not self._sources:
                continue
            try:
                await self._look()
                self._quota.set_amounts(self._compute())
                self._trouble = ""
            except (StoreError, OSError) as error:
                # The last reports hold for their time, and then the defaults do.
                if str(error) != self._trouble:
                    logger.error("limits can't follow what is reported: %s", error)
                self._trouble = str(error)
                with suppress(OSError):
                    self._quota.set_amounts(self._compute())
            await asyncio.sleep(SPACING_S)

    async def _wait(self) -> None:
        """Until something may have changed."""
        now = self._now()
        next_ns = self._board.find_next_change_ns(now)
        wait_s = POLL_S if next_ns is None else min(POLL_S, (next_ns - now.monotonic_ns) / 1e9)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._reported.wait()
        self._reported.clear()

    async def _look(self) -> None:
        """Reads the reports, if there are others.  Raises StoreError."""
        async with self._looking:
            began = self._now()
            stamp = await asyncio.to_thread(self._repo.find_stamp)  # first: what follows is newer
            if stamp == self._stamp:
                self._board.confirm(began)
                return
            records = await asyncio.to_thread(self._repo.list)
            self._board.absorb(records, self._now())
            self._board.confirm(began)
            self._stamp = stamp

    def _compute(self) -> Mapping[str, int]:
        now = self._now()
        return {
            limit_id: amount
            for source, limit_ids in self._sources
            for amount in (self._board.compute_amount(source, now),)
            for limit_id in limit_ids
        }

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ns(), self._clock.wall_ns())


def _find_sources(snapshot: Snapshot) -> list[tuple[Source, list[str]]]:
    """What the amounts of limits with an expression are computed from; those of the same project share it."""
    limits = [limit for limit in snapshot.quotas if limit.expression]
    keys = {key.id: key for key in snapshot.keys} if limits else {}
    found: dict[tuple[str, Measure, str, str], list[str]] = {}
    for limit in limits:
        place = (limit.expression, limit.measure, *_find_place(limit, keys))
        found.setdefault(place, []).append(limit.id)
    parsed = {text: parse_combined(text) for text in {limit.expression for limit in limits}}
    return [
        (Source(parsed[text], team, project, *find_unit(measure)), ids)
        for (text, measure, team, project), ids in found.items()
    ]


def _find_place(limit: Limit, keys: Mapping[str, KeyEntry]) -> tuple[str, str]:
    """Team and project whose reports count; no project where those of all the team's do."""
    kind, _, name = limit.owner.partition(" ")  # as `Limit.owner` says
    if kind == "key":
        return keys[name].team, keys[name].project
    team, _, project = name.partition("/")
    return team, project
