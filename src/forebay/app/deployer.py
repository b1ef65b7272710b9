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

from forebay.app.deployer_state import Attempts, DeployerState, Kept, load_state, name_serving, save_state
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
from forebay.engines.rollout_state import Decision, Start, Stop, Told, Track, World
from forebay.engines.rollout_view import describe
from forebay.engines.scaling import Demand, Scale, rescale

LOOK_S: Final = 0.5
LIST_S: Final = 10.0  #: that a look waits for a launcher to tell what runs
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
        tell: keeps a move for the audit; must not raise.

    Attributes:
        serving: the replicas that callers' requests may be sent to, by deployment; another object each time.
        errors: of launchers that could not be asked, by kind.
        exits: how often replicas ended by themselves since this process began, by deployment and reason.
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
        tell: Callable[[str, Told], Awaitable[None]],
    ) -> None:
        self._store, self._launchers, self._facts = store, launchers, facts
        self._run, self._clock, self._publish, self._tell = run, clock, publish, tell
        self._kept = dict(_restore(run).kept)
        self._saved: DeployerState | None = None
        self._listed: dict[LauncherKind, tuple[ReplicaStatus, ...]] = {}
        self._asked: dict[LauncherKind, asyncio.Task[Sequence[ReplicaStatus]]] = {}  # at most one of each
        self._statuses: dict[str, DeploymentStatus] = {}
        self.errors: dict[LauncherKind, str] = {}
        self.exits: Counter[tuple[str, ExitReason]] = Counter()
        self._ends: dict[str, int] = {}  # of each replica, how often it ended by itself
        self.serving: Serving = self._list_serving()

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
            for task in self._asked.values():
                task.cancel()
            await asyncio.gather(*self._asked.values(), return_exceptions=True)
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
        await self._list_replicas(self._find_kinds(wanted.values()))
        decisions: dict[str, Decision] = {}
        names = {*wanted, *self._kept, *(each.deployment for each in self._all_replicas())}
        for name in sorted(names):
            decisions[name] = await self._decide(name, wanted.get(name))
        if not self._save():
            return  # nothing may follow from what might be forgotten
        await self._publish_serving()
        silent: set[LauncherKind] = set()
        for name, decision in decisions.items():
            for told in decision.told:
                logger.info("%s: %s: %s (%s)", name, told.turn.value, told.message, told.revision)
                await self._tell(name, told)
            for action in decision.actions:
                await self._act(decision.track, action, silent)
        self._forget(wanted)

    # --- what runs ------------------------------------------------------------------------------------------

    def _find_kinds(self, wanted: Iterable[Deployment]) -> frozenset[LauncherKind]:
        """Launchers that run something, or may: no other is reached for."""
        kept = (kind for each in self._kept.values() for kind in (*each.launchers, *_name_kinds(each.track)))
        return frozenset((LauncherKind.LOCAL, *(each.launcher for each in wanted), *kept))

    async def _list_replicas(self, kinds: frozenset[LauncherKind]) -> None:
        """Of each launcher; one that can't be asked is left out, and nothing is done with its replicas."""
        self._listed = {kind: listed for kind, listed in self._listed.items() if kind in kinds}
        await asyncio.gather(
            *(self._ask(kind, each) for kind, each in self._launchers.items() if kind in kinds)
        )
        self._count_exits()

    async def _ask(self, kind: LauncherKind, launcher: Launcher) -> None:
        """One that was silent the last time is not waited for again: its answer is taken when it comes."""
        task = self._asked.get(kind)
        patience_s = LIST_S if task is None else 0.0
        if task is None:
            task = self._asked[kind] = asyncio.ensure_future(launcher.list())
        await asyncio.wait({task}, timeout=patience_s)
        if not task.done():
            self._note_error(kind, f"no answer within {LIST_S:g} s")
            return
        del self._asked[kind]
        try:
            self._listed[kind] = tuple(task.result())
        except LauncherError as error:
            self._note_error(kind, error.message)
        else:
            self.errors.pop(kind, None)

    def _count_exits(self) -> None:
        ends: dict[str, int] = {}
        for status in self._all_replicas():
            is_down = status.state in (ReplicaState.BACKOFF, ReplicaState.REFUSED)
            ends[status.id] = status.restarts + is_down
            # What ended before this process began was counted by the one before.
            new = ends[status.id] - self._ends.get(status.id, status.restarts)
            if new > 0:
                self.exits[status.deployment, status.reason] += new
                logger.warning("%s ended by itself (%s): %s", status.id, status.reason.value, status.message)
        self._ends = ends

    def _note_error(self, kind: LauncherKind, words: str) -> None:
        if self.errors.get(kind) != words:
            logger.warning("replicas of %s can't be listed: %s", kind.value, words)
        self.errors[kind] = words
        self._listed.pop(kind, None)

    def _all_replicas(self) -> Sequence[ReplicaStatus]:
        return [status for listed in self._listed.values() for status in listed]

    def _find_replicas(self, name: str, kinds: frozenset[LauncherKind]) -> tuple[ReplicaStatus, ...] | None:
        """None where a launcher that may run some of it could not be asked."""
        if not kinds <= self._listed.keys():
            return None
        return tuple(each for each in self._all_replicas() if each.deployment == name)

    # --- one deployment -------------------------------------------------------------------------------------

    async def _decide(self, name: str, wanted: Deployment | None) -> Decision:
        kept = self._kept.get(name) or Kept(track=Track(name=name), scale=Scale(count=_count_first(wanted)))
        before = kept.track
        kinds = frozenset((*((wanted.launcher,) if wanted else ()), *_name_kinds(before)))
        replicas = self._find_replicas(name, kinds)
        now_s = self._clock.wall_ns() / 1e9
        scale = await self._rescale(kept.scale, wanted, replicas, now_s)
        leaving = [each for each in replicas or () if each.id in before.leaving]
        world = World(
            replicas=replicas,
            free=await self._facts.find_free(leaving) if leaving else frozenset(),
            figures=await self._measure(kept, replicas or ()),
            count=scale.count,
            now_s=now_s,
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
        status = describe(decision.track, wanted, replicas or (), scale.count)
        if replicas is None:
            status = msgspec.structs.replace(status, message=self._explain_blindness(kinds))
        self._statuses[name] = status
        return decision

    def _find_launchers(
        self, name: str, kept: Kept, named: Collection[LauncherKind]
    ) -> tuple[LauncherKind, ...]:
        """Those that are named, and of earlier ones those that have something of it left, or may."""
        left = {
            kind
            for kind in kept.launchers
            if kind not in self._listed or any(each.deployment == name for each in self._listed[kind])
        }
        return tuple(sorted({*named, *left}))

    def _explain_blindness(self, kinds: frozenset[LauncherKind]) -> str:
        kind = min(kinds - self._listed.keys())
        if kind not in self._launchers:
            return f"there is no launcher {kind.value} here: see `launchers` in forebay.yaml"
        return f"{kind.value} can't be asked what runs: {self.errors.get(kind, 'it was not asked yet')}"

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
        state = DeployerState(kept=dict(self._kept))
        if state == self._saved:
            return True
        try:
            save_state(self._run, state)
        except OSError as error:
            logger.error("nothing is done for deployments, for it can't be written down: %s", error)
            return False
        self._saved = state
        return True

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
                kinds = [
                    kind for kind, listed in self._listed.items() if any(each.id == id for each in listed)
                ]
        for kind in kinds:
            launcher = self._launchers.get(kind)
            if launcher is None or kind in silent:
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
        there = {each.deployment for each in self._all_replicas()}
        for name in [name for name in self._kept if name not in wanted and name not in there]:
            kinds = {kind for kind in self._kept[name].launchers if kind in self._launchers}
            if kinds <= self._listed.keys():
                del self._kept[name]
                self._statuses.pop(name, None)
        for name in [name for name in self._statuses if name not in self._kept]:
            del self._statuses[name]


def _name_kinds(track: Track) -> tuple[LauncherKind, ...]:
    return tuple(each.launcher for each in (track.serving, track.candidate) if each)


def _count_first(wanted: Deployment | None) -> int:
    return wanted.replicas_min if wanted else 0


def _restore(run: Path) -> DeployerState:
    try:
        return load_state(run)
    except (OSError, msgspec.MsgspecError) as error:
        logger.error("how far deployments are is forgotten: %s", error)
        return DeployerState()
