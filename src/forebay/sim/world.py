"""A fleet behind the gateway's policies, under a load: what became of each request.  Pure.

Where a request goes is decided by `gateway.policy.route` over `gateway.loads`, where it waits by
`policy.crowd`, both exactly as in a worker; engines tell their load once a second as the control plane would
have asked them.  One worker sees all requests.  What never happens here: failures, refusals by engines or
providers, callers that leave, hedges, fallbacks, limits of keys, slow starts, prefix caches.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from zlib import crc32

import msgspec

from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.limits import QueueRules
from forebay.core.routes import Affinity, Route, RouteTable, Target
from forebay.gateway.loads import Loads
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.load import OUTPUT_GUESS, OUTPUT_MIN, ReplicaLoad
from forebay.gateway.policy.route import choose, choose_first
from forebay.gateway.policy.want import Want
from forebay.sim.direct import draw_factors
from forebay.sim.engine import Engine, EngineProfile, Job
from forebay.sim.lines import Lines
from forebay.sim.load import Ask
from forebay.sim.timeline import Timeline

TOLD_S = 1.0  #: between two looks at what an engine says of its load
SWEEP_S = 0.1  #: as in a worker


class Trip(msgspec.Struct, kw_only=True):
    """What became of a request.  Times in seconds, from when it came.

    Attributes:
        target: the id of the one that answered; empty where it was refused.
        waited_s: at the gateway, for a place.
    """

    ask: Ask
    model: str
    target: str = ""
    pool: str = ""
    tier: str = ""
    waited_s: float = 0.0
    ttft_s: float = 0.0
    e2el_s: float = 0.0

    @property
    def is_refused(self) -> bool:
        return not self.target


class PoolUse(msgspec.Struct, frozen=True, kw_only=True):
    """How full the engines of a pool were."""

    replicas: int
    streams_max: int  #: at once on one replica
    streams_measured: int  #: up to how many that was measured


class _Model:
    """A public name, and where its requests may go."""

    def __init__(self, route: Route, fleet: Fleet | None, loads: Mapping[str, ReplicaLoad]) -> None:
        self.route, self.fleet = route, fleet
        self.loads = [loads.get(target.id) for target in route.targets]
        self.queue: QueueRules | None = route.choosing.queue if fleet is not None else None


class World:
    """See the module.

    Args:
        table: as the control plane compiles it.
        profiles: of the engines of each pool that a target names.
        tells: pools whose engines are asked for their load.

    Raises:
        ValueError: a pool has no profile.
    """

    def __init__(
        self,
        table: RouteTable,
        profiles: Mapping[str, EngineProfile],
        tells: Iterable[str] = (),
        seed: int = 0,
    ) -> None:
        self.time = Timeline()
        self.trips: list[Trip] = []
        self._draw = Random(f"gateway {seed}")
        self._factors = Random(f"engines {seed}")
        self._loads = Loads()
        parts = self._loads.follow(table, 1)
        self._loads.commit(parts)
        self._models = {
            route.model: _Model(
                route,
                Fleet(parts.groups[route.model], route.choosing) if route.model in parts.groups else None,
                parts.replicas,
            )
            for route in table.routes
        }
        self._lines = Lines(self._draw.random)
        self._tells = frozenset(tells)
        targets = [target for route in table.routes for target in route.targets]
        for target in targets:
            if target.pool not in profiles:
                raise ValueError(f"the pool {target.pool} has no profile")
        self._engines: dict[str, Engine] = {}
        self._pools: dict[str, set[Engine]] = {}
        for target in targets:
            engine = self._engines.get(target.url)
            if engine is None:
                engine = self._engines[target.url] = Engine(profiles[target.pool], self.time)
            self._pools.setdefault(target.pool, set()).add(engine)
        self._told = [target for target in targets if target.pool in self._tells]
        self._open = 0
        self._has_more = True
        self._number = 0

    def run(
        self, load: Iterable[Ask], default_model: str = "", on_end: Callable[[Trip], None] | None = None
    ) -> list[Trip]:
        """Until all that was asked has ended.  Trips are in the order in which they began.

        Args:
            load: by time.
            on_end: told of each that has ended.
        """
        self._default, self._on_end = default_model, on_end
        self._asks = iter(load)
        self._come_next()
        self.time.call_at(SWEEP_S, self._sweep)
        self.time.call_at(TOLD_S, self._tell)
        self.time.run()
        return self.trips

    @property
    def uses(self) -> dict[str, PoolUse]:
        """How full each pool was."""
        return {
            pool: PoolUse(
                replicas=len(engines),
                streams_max=max(engine.running_max for engine in engines),
                streams_measured=min(engine.profile.streams_measured for engine in engines),
            )
            for pool, engines in self._pools.items()
        }

    # --- time -----------------------------------------------------------------------------------------------

    def _come_next(self) -> None:
        ask = next(self._asks, None)
        if ask is None:
            self._has_more = False
        else:
            self.time.call_at(ask.at_s, partial(self._come, ask))

    @property
    def _is_over(self) -> bool:
        return not self._has_more and not self._open

    def _sweep(self) -> None:
        now = self.time.now
        self._loads.sweep(now)
        self._lines.look_at_all(now)
        if not self._is_over:
            self.time.call_at(now + SWEEP_S, self._sweep)

    def _tell(self) -> None:
        now = self.time.now
        for target in self._told:
            engine = self._engines[target.url]
            load = EngineLoad(
                target.id,
                EngineState.READY,
                running=engine.running,
                waiting=engine.waiting,
                queue_wait_s=engine.compute_wait_s(),
            )
            self._loads.hear_engine(load, now, now)
        if self._told and not self._is_over:
            self.time.call_at(now + TOLD_S, self._tell)

    # --- a request ------------------------------------------------------------------------------------------

    def _come(self, ask: Ask) -> None:
        name = ask.model or self._default
        model = self._models[name]
        trip = Trip(ask=ask, model=name)
        self.trips.append(trip)
        self._open += 1
        self._number += 1
        self._come_next()
        if model.fleet is None:  # the order of the file, of which nothing fails here
            self._send(trip, model, 0, None)
            return
        now = self.time.now
        want = self._make_want(ask, model.fleet)
        index = choose_first(model.fleet, want, now, self._draw.random())
        if index is None:
            index = choose(model.fleet, want, now, self._draw.random(), 1).order[0]
        if model.queue is None or self._lines.is_open(model.fleet, index, now):
            self._send(trip, model, index, want)
            return
        seat = partial(self._seat, trip, model, want)
        turn, allowed_s = self._lines.find_turn(name, ask.tenant, model.fleet, want, now, seat, model.queue)
        if turn is not None:
            self.time.call_at(
                now + allowed_s, lambda: self._refuse(trip) if self._lines.expire(turn) else None
            )
        elif allowed_s < 0:
            self._refuse(trip)

    def _make_want(self, ask: Ask, fleet: Fleet) -> Want:
        """As `gateway.wants` reads it from a request of a key without limits of tokens."""
        tokens, output = ask.input_tokens + OUTPUT_GUESS, OUTPUT_GUESS
        affinity = None
        if ask.session:
            affinity = crc32(ask.session.encode())
        elif fleet.choosing.affinity is Affinity.ADAPTER:
            return Want(tokens, output, 0, ask.priority, fleet.adapter_key, is_adapter=True)
        elif fleet.choosing.affinity is Affinity.PREFIX:
            affinity = crc32(b"%d" % self._number)  # no two begin alike
        return Want(tokens, output, 0, ask.priority, affinity, bool(ask.session))

    def _seat(self, trip: Trip, model: _Model, want: Want, index: int) -> None:
        self._send(trip, model, index, want)

    def _refuse(self, trip: Trip) -> None:
        trip.waited_s = self.time.now - trip.ask.at_s
        self._end(trip)

    def _end(self, trip: Trip) -> None:
        self._open -= 1
        if self._on_end is not None:
            self._on_end(trip)

    def _send(self, trip: Trip, model: _Model, index: int, want: Want | None) -> None:
        target, load = model.route.targets[index], model.loads[index]
        _note_place(trip, target)
        began = self.time.now
        trip.waited_s = began - trip.ask.at_s
        tokens = 0 if want is None else want.tokens
        if load is not None:
            load.begin(tokens, began)
        engine = self._engines[target.url]
        engine.submit(
            Job(
                trip.ask.input_tokens,
                trip.ask.output_tokens,
                partial(self._see_first, trip, load, began),
                partial(self._see_end, trip, load, began, tokens),
                *draw_factors(engine.profile, self._factors),
            )
        )

    def _see_first(self, trip: Trip, load: ReplicaLoad | None, began: float) -> None:
        now = self.time.now
        trip.ttft_s = now - trip.ask.at_s
        if load is not None:
            load.tell_first(now - began, now)

    def _see_end(self, trip: Trip, load: ReplicaLoad | None, began: float, tokens: int) -> None:
        now = self.time.now
        trip.e2el_s = now - trip.ask.at_s
        if load is not None:
            load.end(tokens, now)
            self._lines.look(load.pools, now)
            load.succeed(now, began)
            output = trip.ask.output_tokens
            if output >= OUTPUT_MIN:
                load.tell_token((trip.e2el_s - trip.ttft_s) / output, now)
        self._end(trip)


def _note_place(trip: Trip, target: Target) -> None:
    trip.target, trip.pool, trip.tier = target.id, target.pool, target.tier
