"""What the deployer goes by: who is busy, who is free to end, and how revisions answer.

It asks the ledger, the workers' counters, the board and engines, and decides nothing.  What can't be told is
None or left out, never a guess.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from sqlalchemy import select

from forebay.app.applied import load_applied
from forebay.app.config_engines import join_root
from forebay.app.control_plane import ControlPlane
from forebay.app.deployer_state import Attempts
from forebay.app.engine_probe import EngineProbe
from forebay.app.engine_watch import EngineWatch
from forebay.app.machine_id import read_machine_id
from forebay.app.watched import Place as WatchedPlace
from forebay.app.watched import Replica as WatchedReplica
from forebay.core.clock import Clock
from forebay.core.keys import TIERS
from forebay.core.routes import RouteTable, Target
from forebay.engines.deployment import Deployment, ReplicaStatus
from forebay.engines.judging import Figures
from forebay.engines.scaling import Demand
from forebay.gateway.metrics import Collector
from forebay.gateway.place_names import PlaceNames, find_place
from forebay.gateway.policy.news import News
from forebay.ledger.tables import events
from forebay.store.database import Database
from forebay.store.errors import StoreError

EVENTS_MAX: Final = 5000  #: that times are taken from
BEFORE_S: Final = 600.0  #: before a phase began, from which the old revision's times count
LINGER_S: Final = 1.0  #: after no worker sends to a replica any more, before it may be asked to end
UNASKED_S: Final = 30.0  #: the same where its engine does not tell whether it answers anybody
MISSED_AT: Final = 0.8  #: of the capacity before it in use, a deployment without replicas is missed
REFUSED_S: Final = 10.0  #: how long a refused request tells that
WATCHED_MAX: Final = 10_000  #: addresses of which it is remembered how they are asked
_REFUSED: Final = (429, 503)

logger = logging.getLogger("forebay.deployer")


class DeployerFacts:
    """See the module.

    Args:
        metrics: the folder of the workers' counters.
        run: the folder `run` of the data folder.
    """

    def __init__(
        self,
        plane: ControlPlane,
        engines: EngineWatch,
        database: Database,
        read_news: Callable[[], News],
        *,
        metrics: Path,
        run: Path,
        clock: Clock,
    ) -> None:
        self._plane, self._engines, self._database = plane, engines, database
        self._read_news, self._metrics, self._run, self._clock = read_news, metrics, run, clock
        self._probe = EngineProbe(clock)
        self._names = PlaceNames(read_machine_id())
        self._watched: dict[str, WatchedReplica] = {}  # by address, also of those that have just left
        self._unlisted_s: dict[str, float] = {}  # since when nobody sends to an address any more

    def close(self) -> None:
        self._probe.close()

    # --- who may end ----------------------------------------------------------------------------------------

    def observe(self) -> None:
        """How the replicas that serve are asked: to be known when they serve no more."""
        for state in self._engines.list_states():
            self._watched[state.replica.url] = state.replica
        while len(self._watched) > WATCHED_MAX:
            del self._watched[next(iter(self._watched))]

    async def find_free(self, leaving: Iterable[ReplicaStatus]) -> frozenset[str]:
        """Those to which no worker sends any more, and that answer nobody."""
        by_url = {status.url: status.id for status in leaving if status.url}
        unlisted = await asyncio.to_thread(self._find_unlisted, frozenset(by_url))
        now = asyncio.get_running_loop().time()
        for url in by_url:
            if url in unlisted:
                self._unlisted_s.setdefault(url, now)
            else:
                self._unlisted_s.pop(url, None)
        while len(self._unlisted_s) > WATCHED_MAX:
            del self._unlisted_s[next(iter(self._unlisted_s))]
        due = [url for url in unlisted if now - self._unlisted_s[url] >= LINGER_S]
        idle = await asyncio.gather(*(self._is_idle(url, now) for url in due))
        return frozenset(by_url[url] for url, is_idle in zip(due, idle, strict=True) if is_idle)

    def _find_unlisted(self, urls: frozenset[str]) -> frozenset[str]:
        """Addresses that no living worker's snapshot has."""
        state = self._plane.snapshot_state
        if not urls or state is None:
            return frozenset()
        for worker in load_applied(self._run).values():
            if worker.snapshot_hash != state.hash and _is_alive(worker.pid):
                return frozenset()
        return urls - {target.url for target in _list_targets(state.snapshot.table)}

    async def _is_idle(self, url: str, now: float) -> bool:
        looked = await self._probe.look(self._watched.get(url) or _guess_way(url))
        if not looked.readings:
            return looked.refused or now - self._unlisted_s[url] >= UNASKED_S
        counts = [
            count for reading in looked.readings.values() for count in (reading.running, reading.waiting)
        ]
        return not any(counts)

    # --- how busy -------------------------------------------------------------------------------------------

    def measure_demand(self, deployment: Deployment, *, has_replicas: bool) -> Demand | None:
        state = self._plane.snapshot_state
        if state is None:
            return None
        news = self._read_news()
        told = {count.place: count.requests for count in news.counts}
        queued = {
            each.load.target_id: (each.load.running or 0) + (each.load.waiting or 0) for each in news.engines
        }

        def count(target: Target) -> int:
            return max(told.get(self._names.name_place(find_place(target)), 0), queued.get(target.id, 0))

        names = (deployment.model, *deployment.spec.adapters)
        table = state.snapshot.table
        routes = [route for route in table.routes if route.model in names]
        busy: dict[str, int] = {}
        for route in routes:
            for target in route.targets:
                if target.pool == deployment.name:
                    busy[target.url] = max(busy.get(target.url, 0), count(target))
        is_missed = not has_replicas and any(
            self._is_missed(route.targets, deployment, count) for route in routes
        )
        return Demand(busy=sum(busy.values()), slots=max(1, deployment.spec.slots), is_missed=is_missed)

    def _is_missed(
        self, targets: Sequence[Target], deployment: Deployment, count: Callable[[Target], int]
    ) -> bool:
        """Whether what comes before it is nearly full, or requests come that nobody takes."""
        others = [target for target in targets if target.pool != deployment.name]
        before = [target for target in others if _rank(target.tier) < _rank(deployment.tier)]
        if any(target.requests_max is None for target in before):
            return False
        capacity = sum(target.requests_max or 0 for target in before)
        in_flight = sum(map(count, others))
        return in_flight > 0 and in_flight >= MISSED_AT * capacity

    async def was_refused(self, deployment: Deployment) -> bool:
        """Whether requests for its model have been refused of late."""
        since_ns = self._clock.wall_ns() - int(REFUSED_S * 1e9)
        query = (
            select(events.c.id)
            .where(
                events.c.at_ns >= since_ns,
                events.c.model.in_((deployment.model, *deployment.spec.adapters)),
                events.c.status.in_(_REFUSED),
            )
            .limit(1)
        )

        def ask() -> bool:
            with self._database.read() as connection:
                return connection.execute(query).first() is not None

        try:
            return await asyncio.to_thread(ask)
        except StoreError:
            return False

    # --- how revisions answer -------------------------------------------------------------------------------

    async def count_attempts(self) -> Mapping[str, Attempts] | None:
        """By replica, of all time."""
        try:
            _, sums = await asyncio.to_thread(Collector(self._metrics).add_up)
        except OSError:
            return None
        found: dict[str, Attempts] = {}
        for (target, result), values in sums.get("forebay_attempts", {}).items():
            replica, count = target.partition("#")[2], int(values[0])
            ok, failed = found.get(replica, (0, 0))
            found[replica] = (ok + count, failed) if result == "ok" else (ok, failed + count)
        return found

    async def measure(
        self,
        pool: str,
        revisions: Mapping[str, str],
        new: str,
        since_s: float,
        counted: Mapping[str, Attempts],
    ) -> Mapping[str, Figures]:
        """By revision; empty where nobody can say.

        Args:
            revisions: of each replica, by its id.
            new: the revision whose times count from `since_s` on.
            counted: attempts of each replica at that time.
        """
        attempts = await self.count_attempts()
        if attempts is None:
            return {}
        try:
            times = await asyncio.to_thread(self._load_times, pool, revisions, new, since_s)
        except StoreError:
            return {}
        found = {}
        for revision in set(revisions.values()):
            mine = [id for id, each in revisions.items() if each == revision]
            pairs = [(attempts.get(id, (0, 0)), counted.get(id, (0, 0))) for id in mine]
            ok = sum(max(0, now[0] - before[0]) for now, before in pairs)
            failed = sum(max(0, now[1] - before[1]) for now, before in pairs)
            streams, answers = times.get(revision, ([], []))
            found[revision] = Figures(
                requests=ok + failed,
                failed=failed,
                first_token_s=median(streams) if streams else None,
                streams=len(streams),
                answer_s=median(answers) if answers else None,
                answers=len(answers),
            )
        return found

    def _load_times(
        self, pool: str, revisions: Mapping[str, str], new: str, since_s: float
    ) -> dict[str, tuple[list[float], list[float]]]:
        """Seconds to the first token of streams, and of whole answers, that needed one attempt."""
        since_ns = int(since_s * 1e9)
        columns = events.c
        query = (
            select(
                columns.at_ns, columns.target, columns.first_token_ns, columns.duration_ns, columns.queued_ns
            )
            .where(
                columns.at_ns >= since_ns - int(BEFORE_S * 1e9),
                columns.pool == pool,
                columns.outcome == "ok",
                columns.attempts == 1,
            )
            .order_by(columns.id.desc())
            .limit(EVENTS_MAX)
        )
        found: dict[str, tuple[list[float], list[float]]] = {}
        with self._database.read() as connection:
            for at_ns, target, first_token_ns, duration_ns, queued_ns in connection.execute(query):
                revision = revisions.get(str(target).partition("#")[2])
                if revision is None or (revision == new and at_ns < since_ns):
                    continue
                streams, answers = found.setdefault(revision, ([], []))
                if first_token_ns is not None:
                    streams.append((first_token_ns - (queued_ns or 0)) / 1e9)
                else:
                    answers.append((duration_ns - (queued_ns or 0)) / 1e9)
        return found


def _guess_way(url: str) -> WatchedReplica:
    """To one that left before this process began: engines have their page there, and all of it counts."""
    target = Target(id="", pool="", url=url, model="")
    place = WatchedPlace(key=(url, "", None), targets=(target,), endpoint=None, warm_up=None)
    return WatchedReplica(target=target, metrics_url=join_root(url, "/metrics"), places=(place,))


def _list_targets(table: RouteTable) -> Iterable[Target]:
    return (target for route in table.routes for target in route.targets)


def _rank(tier: str) -> int:
    return TIERS.index(tier) if tier in TIERS else len(TIERS)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
