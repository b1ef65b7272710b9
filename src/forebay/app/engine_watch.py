"""Watches the engines of the fleet: asks each replica for its load, has new ones warmed up, and tells the
board.

Level-triggered: what should be asked follows from the snapshot in force, what is published from what was seen
last.  It never holds up the control plane: looks and warm-ups are tasks of their own, so many at once and no
more, each with an end.  It decides nothing about requests: that a place is cold or full is news for the
workers.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import nsmallest
from operator import itemgetter
from pathlib import Path
from typing import Final, Protocol

import msgspec

from forebay.app.atomic_file import write_atomically
from forebay.app.config import Config
from forebay.app.config_engines import WARM_UP_PROMPT, WarmUpConfig, read_prompts
from forebay.app.engine_probe import EngineProbe, Generated, Looked
from forebay.app.engine_state import PlaceState, ReplicaState, Warmth
from forebay.app.liveness import OUTPUT_TOKENS, PROMPT
from forebay.app.watched import PlaceKey, list_replicas
from forebay.core.engine_load import EngineLoad
from forebay.core.routes import RouteTable, Snapshot, decode_snapshot
from forebay.engines.facts import ModelFacts

TICK_S: Final = 0.1
REFUSED_INTERVAL_S: Final = 1.0  #: between two looks at a replica where nothing listens
SILENT_INTERVAL_S: Final = 3.0  #: the same where the last one had no answer in time
MODELS_INTERVAL_S: Final = 10.0  #: between two readings of a list of models
PUBLISH_INTERVAL_S: Final = 1.0  #: between two tellings of what has not changed
LOOKS_MAX: Final = 64  #: at once
WARM_UPS_MAX: Final = 16  #: at once; of a place one request after the other
CHECKS_MAX: Final = 16  #: at once, of whether places generate
RETRY_S: Final = 1.0  #: after a warm-up request that was not answered well
DUE_FILE: Final = "warming.msgpack"

logger = logging.getLogger("forebay.engines")


class Board(Protocol):
    """Who is told."""

    def publish(self, loads: Iterable[EngineLoad], *, at_once: bool = False) -> None: ...


class EngineWatch:
    """See the module.

    Args:
        board: tells the workers.
        folder: where it is kept which places are not warm yet, for the case that this process ends.
        known: places that have served before this process began, so that they are not new.

    Attributes:
        counts: looks and warm-up requests since the start, by `(what, result)`.
    """

    def __init__(
        self, board: Board, probe: EngineProbe, folder: Path, known: frozenset[PlaceKey] = frozenset()
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._board = board
        self._probe = probe
        self._path = folder / DUE_FILE
        self._known = known
        self._states: dict[tuple[str, str | None], ReplicaState] = {}
        self._followed: tuple[RouteTable, Config] | None = None
        self._looking: set[tuple[str, str | None]] = set()
        self._warming: set[PlaceKey] = set()
        self._checking: set[PlaceKey] = set()
        self._look_at: dict[tuple[str, str | None], float] = {}
        self._models_at: dict[tuple[str, str | None], float] = {}
        self._published: dict[str, EngineLoad] = {}
        self._published_at = 0.0
        self._kept: frozenset[PlaceKey] = frozenset()
        self._is_keeping = False

    # --- what is there --------------------------------------------------------------------------------------

    def follow(self, snapshot: Snapshot, config: Config, engine_urls: Mapping[str, str]) -> None:
        """A snapshot is about to be in force.  What is new in it and to be warmed up is told as cold
        first."""
        if self._followed is not None and self._followed[1] is config and self._followed[0] == snapshot.table:
            return
        self._followed = snapshot.table, config
        now = asyncio.get_running_loop().time()
        before, self._states = self._states, {}
        for replica in list_replicas(snapshot, config, engine_urls):
            state = before.get(replica.key) or ReplicaState(replica)
            for place in state.follow(replica, now, self._known):
                logger.info("%s is new: it is warmed up", _name(place))
            self._states[replica.key] = state
        self._known = frozenset()  # from here on what is new is new
        for gone in before.keys() - self._states.keys():
            self._look_at.pop(gone, None)
            self._models_at.pop(gone, None)
        self._publish(now, everything=True, at_once=True)

    def list_states(self) -> tuple[ReplicaState, ...]:
        """Every replica of the table."""
        return tuple(self._states.values())

    # --- the loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    now = loop.time()
                    for state in self._list_due_looks(now):
                        group.create_task(self._look(state, now))
                    for state, place in self._list_due_checks(now):
                        group.create_task(self._check(state, place))
                    for state, place in self._list_due_warm_ups(now):
                        group.create_task(self._warm(state, place))
                    self._publish(now, everything=now >= self._published_at + PUBLISH_INTERVAL_S)
                    self._keep_due(group)
                    await asyncio.sleep(TICK_S)
        finally:
            self._probe.close()

    def _list_due_looks(self, now: float) -> Iterator[ReplicaState]:
        """Those that are due for longest: each has its turn, also where there are more than can be asked."""
        due = [
            (self._look_at.get(key, 0.0), state)
            for key, state in self._states.items()
            if state.replica.is_asked and key not in self._looking
        ]
        free = LOOKS_MAX - len(self._looking)
        for at, state in nsmallest(free, due, key=itemgetter(0)):
            if now >= at:
                self._looking.add(state.replica.key)
                yield state

    async def _look(self, state: ReplicaState, began: float) -> None:
        key, loop = state.replica.key, asyncio.get_running_loop()
        with_models = began >= self._models_at.get(key, 0.0) + MODELS_INTERVAL_S
        looked = Looked(error="the look failed")
        try:
            looked = await self._probe.look(state.replica, with_models=with_models)
        except Exception:  # the loop's outer edge: one look fails, the rest goes on
            logger.exception("a look at %s failed", state.replica.url)
        finally:
            self._looking.discard(key)
        now = loop.time()
        self._look_at[key] = (began if looked.answered else now) + _find_pause_s(looked, state)
        if with_models and looked.readings is not None:  # whether or not it has such pages
            self._models_at[key] = began
        self.counts["look", "ok" if looked.answered and not looked.error else "failed"] += 1
        before = state.error
        for place in state.see(looked, now):
            logger.info("%s has come back: it is warmed up", _name(place))
        if looked.error and not before:
            logger.warning("%s does not tell its load: %s", state.replica.url, looked.error)
        elif before and not looked.error:
            logger.info("%s tells its load again", state.replica.url)

    # --- whether it generates -------------------------------------------------------------------------------

    def _list_due_checks(self, now: float) -> Iterator[tuple[ReplicaState, PlaceState]]:
        for state in self._states.values():
            for key, place in state.places.items():
                if len(self._checking) >= CHECKS_MAX:
                    return
                if key not in self._checking and state.may_check(place, now):
                    self._checking.add(key)
                    yield state, place

    async def _check(self, state: ReplicaState, place: PlaceState) -> None:
        """Has a place generate one token, and says so where that changes what is known of it."""
        live, loop = place.liveness, asyncio.get_running_loop()
        was_stuck = live.is_stuck
        made = Generated("the check failed")
        try:
            timeout_s = live.rules.timeout_s if live.rules is not None else 0.0
            made = await self._probe.generate(state.replica, place.place, PROMPT, timeout_s, OUTPUT_TOKENS)
        except Exception:  # the loop's outer edge: one check fails, the rest goes on
            logger.exception("a check of %s failed", _name(place))
        finally:
            self._checking.discard(place.place.key)
        self.counts["check", "failed" if made.error else "ok"] += 1
        live.note_check(made.error, loop.time(), is_opinion=made.is_opinion)
        if live.is_stuck and not was_stuck:
            logger.error(
                "%s answers and does not generate, it is out of service: %s", _name(place), made.error
            )
        elif was_stuck and not live.is_stuck:
            logger.info("%s generates again", _name(place))

    def find_facts(self) -> dict[PlaceKey, ModelFacts]:
        """What engines say of their models, also those that are silent now."""
        return {
            key: place.facts
            for state in self._states.values()
            for key, place in state.places.items()
            if place.facts is not None
        }

    # --- warm-up --------------------------------------------------------------------------------------------

    def _list_due_warm_ups(self, now: float) -> Iterator[tuple[ReplicaState, PlaceState]]:
        for state in self._states.values():
            for key, place in state.places.items():
                if place.warmth is not Warmth.DUE:
                    continue
                if place.compute_left_s(now) <= 0:
                    place.warmth = Warmth.OVERDUE
                    why = place.error or state.error or "it was not answered"
                    logger.warning("%s is sent to without being warm: %s", _name(place), why)
                elif key not in self._warming and len(self._warming) < WARM_UPS_MAX and state.may_warm(now):
                    self._warming.add(key)
                    yield state, place

    async def _warm(self, state: ReplicaState, place: PlaceState) -> None:
        """Sends warm-up requests until enough were answered well, or there is no use in more."""
        key, loop = place.place.key, asyncio.get_running_loop()
        try:
            prompts = await _load_prompts(place.place.warm_up)
            number = 0
            while place.warmth is Warmth.DUE and state.may_warm(loop.time()) and self._has(state, place):
                left_s = place.compute_left_s(loop.time())
                if left_s <= 0:
                    return
                prompt = prompts[number % len(prompts)]
                asked = place.place.warm_up.output_tokens if place.place.warm_up else OUTPUT_TOKENS
                made = await self._probe.generate(state.replica, place.place, prompt, left_s, asked)
                error = made.error
                self.counts["warm_up", "failed" if error else "ok"] += 1
                place.note_answer(error)
                number += 1
                if error:
                    await asyncio.sleep(RETRY_S)
            if place.warmth is Warmth.DONE:
                logger.info("%s is warm", _name(place))
        except Exception as error:  # the loop's outer edge: it is begun again, until its time has passed
            logger.exception("the warm-up of %s failed", _name(place))
            place.note_answer(str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_S)
        finally:
            self._warming.discard(key)

    def _has(self, state: ReplicaState, place: PlaceState) -> bool:
        """Whether the table still does."""
        return self._states.get(state.replica.key) is state and state.places.get(place.place.key) is place

    def _keep_due(self, group: asyncio.TaskGroup) -> None:
        """Which places are not warm yet, for whoever watches after this process."""
        due = frozenset(
            key
            for state in self._states.values()
            for key, place in state.places.items()
            if place.warmth is Warmth.DUE
        )
        if due != self._kept and not self._is_keeping:
            self._is_keeping, self._kept = True, due
            group.create_task(self._write_due(due))

    async def _write_due(self, due: frozenset[PlaceKey]) -> None:
        keys = sorted(due, key=lambda key: (key[0], key[1], key[2] or ""))
        try:
            with suppress(OSError):  # then the next one takes them for warm
                await asyncio.to_thread(write_atomically, self._path, msgspec.msgpack.encode(keys))
        finally:
            self._is_keeping = False

    # --- telling --------------------------------------------------------------------------------------------

    def _publish(self, now: float, *, everything: bool, at_once: bool = False) -> None:
        loads = {
            load.target_id: load
            for state in self._states.values()
            if state.replica.is_asked
            or any(place.warmth is not Warmth.NONE or place.liveness.rules for place in state.places.values())
            for load in state.list_loads(now)
        }
        if everything:
            self._published_at = now
            changed = list(loads.values())
        else:
            changed = [load for load in loads.values() if self._published.get(load.target_id) != load]
        self._published = loads
        if changed:
            self._board.publish(changed, at_once=at_once)


def load_known(snapshot_path: Path, folder: Path) -> frozenset[PlaceKey]:
    """The places that have served already, as the last control plane left them: those of its last snapshot,
    less those whose warm-up was due."""
    try:
        table = decode_snapshot(snapshot_path.read_bytes()).table
    except (OSError, msgspec.MsgspecError):
        return frozenset()
    served = {
        (target.url, target.model, target.api_key) for route in table.routes for target in route.targets
    }
    try:
        due = msgspec.msgpack.decode((folder / DUE_FILE).read_bytes(), type=list[PlaceKey])
    except (OSError, msgspec.MsgspecError):
        due = []
    return frozenset(served.difference(due))


def _name(state: PlaceState) -> str:
    url, model, _ = state.place.key
    return f"{model} at {url}"


def _find_pause_s(looked: Looked, state: ReplicaState) -> float:
    if looked.answered:
        return state.replica.interval_s
    return REFUSED_INTERVAL_S if looked.refused else SILENT_INTERVAL_S


async def _load_prompts(warm_up: WarmUpConfig | None) -> tuple[str, ...]:
    """Raises OSError, ValueError."""
    if warm_up is not None and warm_up.prompts:
        return warm_up.prompts
    if warm_up is None or warm_up.prompts_file is None:
        return ((warm_up.prompt if warm_up else None) or WARM_UP_PROMPT,)
    return await asyncio.to_thread(read_prompts, warm_up.prompts_file)
