"""Has what runs become what was asked for: looks, has `rollout` decide, remembers, publishes, acts.

It lives in the control plane and may be killed at any time: what it remembers lies in `run/deployer.json`
before anything follows from it, and what it did not come to do it decides again.  The order is always the
same: a replica is in the snapshot only while it is ready, and is asked to end only when no worker sends to it
any more.  It starts no process itself, and never acts on what nobody could tell.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from forebay.app.deployer_replicas import Sightings
from forebay.app.deployer_state import (
    UNTOLD_MAX,
    Attempts,
    DeployerState,
    Kept,
    Move,
    name_serving,
    recall_replica,
    restore_state,
    save_state,
)
from forebay.core.clock import Clock
from forebay.engines.deployment import (
    Deployment,
    DeploymentStatus,
    ExitReason,
    Launcher,
    LauncherKind,
    ReplicaState,
    ReplicaStatus,
    ServingReplica,
)
from forebay.engines.judging import Figures
from forebay.engines.model import LauncherError
from forebay.engines.rollout import decide
from forebay.engines.rollout_state import Decision, Start, Stop, Track, World
from forebay.engines.rollout_view import describe
from forebay.engines.scaling import Demand, Scale, rescale

LOOK_S: Final = 0.5
ACT_S: Final = 10.0  #: that a launcher may take to take a wish in

Serving = Mapping[str, tuple[ServingReplica, ...]]

logger = logging.getLogger("forebay.deployer")


class Deployments(Protocol):
    """Which deployments are to run."""

    @property
    def is_known(self) -> bool:
        """False until that could be read once."""

    def list_current(self) -> Sequence[Deployment]: ...


class Facts(Protocol):
    """What is known of requests; see `deployer_facts`."""

    def observe(self) -> None: ...

    async def find_free(self, leaving: Sequence[ReplicaStatus]) -> frozenset[str]: ...

    def measure_demand(self, deployment: Deployment, *, has_replicas: bool) -> Demand | None: ...

    async def was_refused(self, deployment: Deployment) -> bool: ...

    async def count_attempts(self) -> Mapping[str, Attempts] | None: ...

    async def measure(
        self,
        pool: str,
        revisions: Mapping[str, str],
        new: str,
        since_s: float,
        counted: Mapping[str, Attempts],
    ) -> Mapping[str, Figures]: ...


class Deployer:
    """See the module.

    Args:
        store: which deployments are to run.
        launchers: by their kind; one that is missing is told as such.
        facts: what is known of requests.
        run: the folder `run` of the data folder.
        clock: for times that outlive this process.
        publish: has `serving` take effect; must not raise.
        tell: keeps a move for the audit, once however often it is asked to, and says whether; must not raise.

    Attributes:
        serving: the replicas that callers' requests may be sent to, by deployment; another object each time.
    """

    def __init__(
        self,
        store: Deployments,
        launchers: Mapping[LauncherKind, Launcher],
        facts: Facts,
        *,
        run: Path,
        clock: Clock,
        publish: Callable[[], Awaitable[None]],
        tell: Callable[[Move], Awaitable[bool]],
    ) -> None:
        self._store, self._launchers, self._facts = store, launchers, facts
        self._run, self._clock, self._publish, self._tell = run, clock, publish, tell
        restored = restore_state(run)
        self._kept = dict(restored.kept)
        self._untold = restored.untold
        self._saved: DeployerState | None = None
        self._began_s = clock.wall_ns() / 1e9
        self._sightings = Sightings(launchers)
        self._statuses: dict[str, DeploymentStatus] = {}
        self.serving: Serving = self._list_serving()

    @property
    def errors(self) -> Mapping[LauncherKind, str]:
        """Of launchers that could not be asked."""
        return self._sightings.errors

    @property
    def exits(self) -> Counter[tuple[str, ExitReason]]:
        """How often replicas ended by themselves since this process began, by deployment and reason."""
        return self._sightings.exits

    def recall(self, name: str) -> Deployment | None:
        """What was asked for last of a deployment, as far as it is remembered."""
        kept = self._kept.get(name)
        return None if kept is None else kept.track.candidate or kept.track.serving

    def statuses(self) -> Mapping[str, DeploymentStatus]:
        """By the deployment's name, as of the last look."""
        return dict(self._statuses)

    async def read_logs(self, replica_id: str, lines: int) -> Sequence[str]:
        """The last lines of a replica, living or gone.  Raises LauncherError."""
        for launcher in self._launchers.values():
            if found := await launcher.logs(replica_id, lines):
                return found
        return ()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._sightings.close()
            for launcher in self._launchers.values():
                await launcher.close()

    async def look(self) -> None:
        """One round."""
        try:
            await self._look()
        except Exception:  # the loop's outer edge: what failed is decided again
            logger.exception("a look at deployments failed")

    async def _look(self) -> None:
        if not self._store.is_known:
            return
        wanted = {each.name: each for each in self._store.list_current()}
        self._facts.observe()
        await self._sightings.list_replicas(self._find_kinds(wanted.values()))
        decisions: dict[str, Decision] = {}
        names = {*wanted, *self._kept, *(each.deployment for each in self._sightings.all)}
        for name in sorted(names):
            decisions[name] = await self._decide(name, wanted.get(name))
            self._note_moves(name, decisions[name])
        if not self._save():
            return  # nothing may follow from what might be forgotten
        await self._publish_serving()
        silent: set[LauncherKind] = set()
        await self._tell_moves()
        for decision in decisions.values():
            for action in decision.actions:
                await self._act(decision.track, action, silent)
        self._forget(wanted)

    # --- what runs ------------------------------------------------------------------------------------------

    def _find_kinds(self, wanted: Iterable[Deployment]) -> frozenset[LauncherKind]:
        """Launchers that run something, or may: no other is reached for."""
        kept = (kind for each in self._kept.values() for kind in (*each.launchers, *_name_kinds(each.track)))
        return frozenset((LauncherKind.LOCAL, *(each.launcher for each in wanted), *kept))

    # --- one deployment -------------------------------------------------------------------------------------

    async def _decide(self, name: str, wanted: Deployment | None) -> Decision:
        kept = self._kept.get(name) or Kept(track=Track(name=name), scale=Scale(count=_count_first(wanted)))
        before = kept.track
        kinds = frozenset((*((wanted.launcher,) if wanted else ()), *_name_kinds(before)))
        replicas = self._find_replicas(kept, wanted, kinds)
        now_s = self._clock.wall_ns() / 1e9
        scale = await self._rescale(kept.scale, wanted, replicas, now_s)
        leaving = [each for each in replicas or () if each.id in before.leaving]
        world = World(
            replicas=replicas,
            free=await self._facts.find_free(leaving) if leaving else frozenset(),
            figures=await self._measure(kept, replicas or ()),
            count=scale.count,
            now_s=now_s,
            watched_since_s=self._began_s,
        )
        decision = decide(before, wanted, world)
        counted = kept.counted
        if decision.track.since_s != before.since_s:
            counted = await self._facts.count_attempts() or {}
        serving = kept.serving if decision.serving is None else name_serving(decision)
        self._kept[name] = Kept(
            track=decision.track,
            scale=scale,
            serving=serving,
            counted={id: counted.get(id, (0, 0)) for id in {each.id for each in replicas or ()}},
            launchers=self._find_launchers(name, kept, {*kinds, *_name_kinds(decision.track)}),
        )
        status = describe(decision.track, wanted, replicas or (), scale.count, decision.waits)
        if not kinds <= self._sightings.seen:
            known = "" if replicas is None else status.message
            message = "; ".join(filter(None, (known, self._sightings.explain(kinds))))
            status = msgspec.structs.replace(status, message=message)
        self._statuses[name] = status
        return decision

    def _find_replicas(
        self, kept: Kept, wanted: Deployment | None, kinds: frozenset[LauncherKind]
    ) -> tuple[ReplicaStatus, ...] | None:
        """None where a launcher that may run some of it could not be asked, and what is wanted depends on it.

        Where something else is wanted, a launcher that is gone must not stand in the way: what it had ready
        is taken to be so still, and ends there when it is back.
        """
        seen, track = self._sightings.seen, kept.track
        replicas = self._sightings.list_of(track.name)
        if kinds <= seen:
            return replicas
        if wanted is None or wanted.launcher not in seen:
            return None
        blind = {
            each.revision
            for each in (track.serving, track.candidate)
            if each is not None and each.launcher not in seen
        }
        left = (each for each in kept.serving if each.revision in blind)
        return (*replicas, *(recall_replica(track.name, each) for each in left))

    def _find_launchers(
        self, name: str, kept: Kept, named: Collection[LauncherKind]
    ) -> tuple[LauncherKind, ...]:
        """Those that are named, and of earlier ones those that have something of it left, or may."""
        left = {kind for kind in kept.launchers if self._sightings.has(kind, name)}
        return tuple(sorted({*named, *left}))

    async def _rescale(
        self,
        scale: Scale,
        wanted: Deployment | None,
        replicas: Sequence[ReplicaStatus] | None,
        now_s: float,
    ) -> Scale:
        if wanted is None or replicas is None:
            return scale
        least, most = wanted.replicas_min, max(wanted.replicas_min, wanted.replicas_max)
        if least == most:
            return Scale(count=least)
        ready = any(each.state is ReplicaState.READY for each in replicas)
        demand = self._facts.measure_demand(wanted, has_replicas=ready)
        if demand is not None and scale.count == 0 and not demand.is_missed:
            demand = msgspec.structs.replace(demand, is_missed=await self._facts.was_refused(wanted))
        after = rescale(scale, demand, least, most, now_s)
        if after.count != scale.count:
            logger.info("%s: %d replicas in place of %d", wanted.name, after.count, scale.count)
        return after

    async def _measure(self, kept: Kept, replicas: Sequence[ReplicaStatus]) -> Mapping[str, Figures]:
        """Only while it is of use: it reads the ledger."""
        track = kept.track
        if track.candidate is None or track.share <= 0 or track.is_trusted:
            return {}
        revisions = {each.id: each.revision for each in replicas}
        return await self._facts.measure(
            track.name, revisions, track.candidate.revision, track.since_s, kept.counted
        )

    # --- what follows ---------------------------------------------------------------------------------------

    def _save(self) -> bool:
        state = DeployerState(kept=dict(self._kept), untold=self._untold)
        if state == self._saved:
            return True
        try:
            save_state(self._run, state)
        except OSError as error:
            logger.error("nothing is done for deployments, for it can't be written down: %s", error)
            return False
        self._saved = state
        return True

    def _note_moves(self, name: str, decision: Decision) -> None:
        """Saved with what follows from them, and told from there: none is lost, and none is told twice."""
        if not decision.told:
            return
        at_s = decision.track.since_s
        moves = tuple(Move(name=name, told=told, at_s=at_s) for told in decision.told)
        self._untold = (*self._untold, *moves)[-UNTOLD_MAX:]
        for told in decision.told:
            logger.info("%s: %s: %s (%s)", name, told.turn.value, told.message, told.revision)

    async def _tell_moves(self) -> None:
        """What can't be told now is with the next look."""
        while self._untold and await self._tell(self._untold[0]):
            self._untold = self._untold[1:]

    def _list_serving(self) -> Serving:
        return {name: kept.serving for name, kept in self._kept.items()}

    async def _publish_serving(self) -> None:
        serving = self._list_serving()
        if serving != self.serving:
            self.serving = serving
            await self._publish()

    async def _act(self, track: Track, action: Start | Stop, silent: set[LauncherKind]) -> None:
        """Args:
        silent: launchers that have not answered in this look; they are asked nothing more in it.
        """
        match action:
            case Start(replica):
                revisions = {
                    each.revision: each.launcher for each in (track.serving, track.candidate) if each
                }
                kinds = [revisions[replica.revision]]
            case Stop(id):
                kinds = self._sightings.find_kinds(id)
        for kind in kinds:
            launcher = self._launchers.get(kind)
            if launcher is None or kind in silent or kind not in self._sightings.seen:
                continue
            try:
                async with asyncio.timeout(ACT_S):
                    match action:
                        case Start(replica):
                            await launcher.start(replica)
                        case Stop(id):
                            await launcher.stop(id)
            except LauncherError as error:  # it is decided again
                logger.error("%s: %s", track.name, error.message)
            except TimeoutError:
                logger.error("%s: %s has not answered within %g s", track.name, kind.value, ACT_S)
                silent.add(kind)

    def _forget(self, wanted: Mapping[str, Deployment]) -> None:
        """What is asked for no more, once nothing of it is left."""
        there = {each.deployment for each in self._sightings.all}
        for name in [name for name in self._kept if name not in wanted and name not in there]:
            kinds = {kind for kind in self._kept[name].launchers if kind in self._launchers}
            if kinds <= self._sightings.seen:
                del self._kept[name]
                self._statuses.pop(name, None)
                self._sightings.forget(name)
        for name in [name for name in self._statuses if name not in self._kept]:
            del self._statuses[name]


def _name_kinds(track: Track) -> tuple[LauncherKind, ...]:
    return tuple(each.launcher for each in (track.serving, track.candidate) if each)


def _count_first(wanted: Deployment | None) -> int:
    return wanted.replicas_min if wanted else 0
