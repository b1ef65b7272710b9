"""What is known of a replica and of its places from looks and warm-ups: whether they may be sent to, and
their load.

Pure: it absorbs what was seen, with the time at which it was, and says what follows.  One that does not
answer is unknown after a while, and neither idle nor down.  A place is cold while its warm-up is due: that
begins when it is new or its replica comes back after it was down, and ends when enough was answered well or
the time for it has passed.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forebay.app.engine_probe import Looked
from forebay.app.liveness import Liveness
from forebay.app.watched import Place, PlaceKey, Replica
from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.routes import Target
from forebay.engines.facts import ModelFacts
from forebay.engines.load_health import Health
from forebay.engines.load_page import Reading, clean_adapters
from forebay.engines.load_wait import QueueWait

SIGNAL_S: Final = 2.0  #: after the next look was due, what a replica said last is not known any more
REFUSED_MAX: Final = 3  #: looks in a row that nothing answered, after which a replica has been down

_NOTHING: Final = Reading()


class Warmth(StrEnum):
    """How far the warm-up of a place is."""

    NONE = "none"  #: nobody asked for one
    DUE = "due"
    DONE = "done"
    OVERDUE = "overdue"  #: its time has passed: it is sent to all the same


@dataclass(slots=True)
class PlaceState:
    """Of one model at one replica."""

    place: Place
    warmth: Warmth = Warmth.NONE
    due_since: float = 0.0
    answered: int = 0  #: of its warm-up requests, well
    error: str = ""  #: of the last that was not
    reading: Reading = _NOTHING
    queue_wait_s: float | None = None
    liveness: Liveness = field(default_factory=Liveness)
    facts: ModelFacts | None = None

    def make_due(self, now: float) -> bool:
        """It is to be warmed up, if anybody asked for that."""
        if self.place.warm_up is None:
            self.warmth = Warmth.NONE
            return False
        self.warmth, self.due_since, self.answered, self.error = Warmth.DUE, now, 0, ""
        return True

    def compute_left_s(self, now: float) -> float:
        """Seconds that its warm-up may still take."""
        assert self.place.warm_up is not None
        return self.due_since + self.place.warm_up.timeout_s - now

    def note_answer(self, error: str) -> None:
        """A warm-up request has ended: well where there is no error."""
        if self.warmth is not Warmth.DUE:
            return
        self.error = error
        if error:
            self.answered = 0
            return
        self.answered += 1
        if self.place.warm_up is None or self.answered >= self.place.warm_up.requests:
            self.warmth = Warmth.DONE


class ReplicaState:
    """Of one server.

    Attributes:
        replica: it, as the snapshot in force has it.
        places: by their keys.
        looked_at: when it answered last; None if it never has.
        error: of the last look; empty where it went well.
        was_down: whether it was, and has not come back yet.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.places: dict[PlaceKey, PlaceState] = {}
        self.looked_at: float | None = None
        self.health = Health.SILENT
        self.error = ""
        self.adapters: tuple[str, ...] = ()
        self._listed: tuple[str, ...] = ()
        self._wait: dict[str, QueueWait] = {}
        self._refused = 0
        self.was_down = False

    def follow(self, replica: Replica, now: float, known: frozenset[PlaceKey]) -> list[PlaceState]:
        """Another snapshot is in force; returns the places whose warm-up is due because they are new.

        Args:
            known: places that are not new, although nothing is known of them here.
        """
        self.replica = replica
        before, self.places = self.places, {}
        due = []
        for place in replica.places:
            state = before.get(place.key)
            if state is None:
                state = PlaceState(place)
                if place.key in known:
                    state.warmth = Warmth.NONE if place.warm_up is None else Warmth.DONE
                elif state.make_due(now):
                    due.append(state)
            elif place.warm_up is None:
                state.warmth = Warmth.NONE
            elif state.warmth is Warmth.NONE:
                state.warmth = Warmth.DONE  # it serves already
            state.place, state.liveness.rules = place, place.liveness
            self.places[place.key] = state
        self._wait = {model: self._wait.get(model, QueueWait()) for _, model, _ in self.places}
        return due

    def see(self, looked: Looked, now: float) -> list[PlaceState]:
        """Takes a look; returns the places whose warm-up is due because the replica has come back."""
        self.error = looked.error
        if not looked.answered:
            self._refused = self._refused + 1 if looked.refused else 0
            self.was_down = self.was_down or self._refused >= REFUSED_MAX
            return []
        self._refused = 0
        self.looked_at, self.health = now, looked.health
        if looked.health in (Health.LOADING, Health.FAILED):
            self.was_down = True
            for state in self.places.values():
                state.due_since = now  # its own time to load is none of the warm-up's
                state.reading, state.queue_wait_s = _NOTHING, None
            return []
        self._absorb_load(looked, now)
        if not self.was_down:
            return []
        self.was_down = False
        return [state for state in self.places.values() if state.make_due(now)]

    def _absorb_load(self, looked: Looked, now: float) -> None:
        if looked.adapters is not None:
            self._listed = looked.adapters
        readings = looked.readings or {}
        running = (name for reading in readings.values() for name in reading.adapters)
        self.adapters = clean_adapters((*self._listed, *running))
        for state in self.places.values():
            model = state.place.model
            state.reading = reading = readings.get(model, _NOTHING)
            state.queue_wait_s = self._wait[model].see(now, reading.queue_sum_s, reading.queue_count)
            state.liveness.see_counter(reading.generated, now)
            if looked.facts is not None:
                state.facts = looked.facts.get(model, state.facts)

    def may_check(self, state: PlaceState, now: float) -> bool:
        """Whether it is time, and of any use, to see if one of its places generates."""
        if self._refused or self.health in (Health.LOADING, Health.FAILED):
            return False
        return state.warmth is not Warmth.DUE and state.liveness.is_due(now)

    def is_fresh(self, now: float) -> bool:
        """Whether what it said last still holds."""
        return self.looked_at is not None and now - self.looked_at <= self.replica.interval_s + SIGNAL_S

    def may_warm(self, now: float) -> bool:
        """Whether there is any use in warm-up requests: not where it says itself that it does not serve."""
        if not self.replica.is_asked:
            return True
        return self.is_fresh(now) and self.health not in (Health.LOADING, Health.FAILED)

    def compute_state(self, state: PlaceState, now: float) -> EngineState:
        """Whether one of its places may be sent to."""
        is_fresh = self.is_fresh(now)
        if is_fresh and self.health is Health.LOADING:
            return EngineState.COLD
        if is_fresh and self.health is Health.FAILED:
            return EngineState.DOWN
        if state.warmth is Warmth.DUE:
            return EngineState.COLD
        if state.liveness.is_stuck:
            return EngineState.DOWN
        return EngineState.READY if is_fresh else EngineState.UNKNOWN

    def list_loads(self, now: float) -> list[EngineLoad]:
        """What is published, of every target."""
        return [
            self.compute_load(state, target, now)
            for state in self.places.values()
            for target in state.place.targets
        ]

    def compute_load(self, state: PlaceState, target: Target, now: float) -> EngineLoad:
        """What is known of one of its places now."""
        kind = self.compute_state(state, now)
        if not self.is_fresh(now):
            return EngineLoad(target.id, kind)
        reading = state.reading
        return EngineLoad(
            target.id,
            kind,
            reading.running,
            reading.waiting,
            reading.kv_cache_used,
            state.queue_wait_s,
            self.adapters,
        )
