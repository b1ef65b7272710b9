"""The fleet as it is: every replica, what its engine says of its load, and how far its warm-up is.

For the admin API as JSON, and for Prometheus as a page.  Both read what `engine_watch` knows, and ask no
engine.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from pydantic import Field
from starlette.responses import Response

from forebay.app.board_server import BoardServer
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.discovered import list_contradictions
from forebay.app.engine_state import PlaceState, ReplicaState, Warmth
from forebay.app.engine_watch import EngineWatch
from forebay.app.machine_id import read_machine_id
from forebay.core.engine_load import EngineState
from forebay.core.keys import TIERS
from forebay.engines.facts import ModelFacts
from forebay.gateway.place_names import PlaceNames, find_place

_COUNTERS: Final = (
    ("look", "forebay_engine_looks"),
    ("warm_up", "forebay_warm_up_requests"),
    ("check", "forebay_engine_checks"),
)
_LABELS: Final = ("pool", "tier", "region", "model", "target")


class WarmUpView(View):
    state: str = Field(description="`due`, `done`, or `overdue`: it is sent to without being warm.")
    answered: int = Field(description="Warm-up requests that were answered well, one after the other.")
    requests: int = Field(description="How many have to be.")
    error: str | None = Field(description="Why the last one was not answered well.")


class ReplicaView(View):
    """One model at one replica."""

    pool: str
    tier: str
    region: str | None
    engine: str | None = Field(description="The software, where forebay.yaml names it.")
    model: str = Field(description="Its name there.")
    url: str
    targets: list[str] = Field(description="The targets that it answers.")
    state: EngineState = Field(description="`ready`, `cold`, `down` or `unknown`.")
    running: int | None = Field(description="Requests in progress there; null where it does not say.")
    waiting: int | None = Field(description="Requests in its queue.")
    kv_cache_used: float | None = Field(description="Share of its key-value cache, from 0 to 1.")
    queue_wait_s: float | None = Field(description="Mean time in its queue over the last 10 s.")
    adapters: list[str] = Field(description="LoRA adapters that it holds.")
    age_s: float | None = Field(description="Seconds since it said so; null where it never answered.")
    error: str | None = Field(description="Why it does not tell its load.")
    context_window: int | None = Field(description="Tokens of one request that its engine takes, as it says.")
    real_model: str | None = Field(description="What its model was loaded from, as its engine says.")
    engine_version: str | None = Field(description="As its engine says.")
    generates: bool | None = Field(
        description="False where it answers and does not generate; null where that is not known."
    )
    generation_error: str | None = Field(description="What the last check of that said, where it failed.")
    contradictions: list[str] = Field(description="Where its engine says otherwise than forebay.yaml.")
    requests: int = Field(description="In progress, of this machine's workers, as far as they count them.")
    requests_elsewhere: int = Field(description="Likewise of the workers of other machines.")
    ejected_by: int = Field(
        description="Workers of this machine that have put it out of service for its failures."
    )
    warm_up: WarmUpView | None = Field(description="Null where its pool asks for none.")


class MachineView(View):
    """Another machine, with which this one shares what workers know of loads."""

    name: str
    workers: int = Field(description="That run there.")
    requests: int = Field(description="In progress, of all of them.")
    age_s: float = Field(description="Seconds since it said anything.")


class SharingView(View):
    """The line to the boards of other machines."""

    connected: bool
    trouble: str | None = Field(description="Why it is not connected.")
    machines: list[MachineView]


class FleetView(View):
    data: list[ReplicaView]
    sharing: SharingView | None = Field(description="Null where no `limits.authority` is named.")


class FleetRoutes:
    """See the module."""

    def __init__(self, engines: EngineWatch, board: BoardServer, *collectors: Collector) -> None:
        self._engines = engines
        self._board = board
        self._names = PlaceNames(read_machine_id())
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engines))
        self._registry.register(_SharingCollector(board))
        for collector in collectors:
            self._registry.register(collector)

    def install(self, app: FastAPI) -> None:
        RouteAdder(app)("GET", "/fleet", self.get_fleet, "Replicas, their load and their warm-up")
        app.add_api_route("/metrics", self.get_metrics, methods=["GET"], include_in_schema=False)

    async def get_fleet(self) -> FleetView:
        """As their engines said last, in the order of tiers, pools and addresses."""
        now = asyncio.get_running_loop().time()
        found = ((state, place) for state in self._engines.list_states() for place in state.places.values())
        views = [_show(state, place, now, *self._count(place)) for state, place in found]
        return FleetView(data=sorted(views, key=_order), sharing=self._show_sharing(now))

    def _count(self, place: PlaceState) -> tuple[tuple[int, int], int]:
        name = self._names.name_place(find_place(place.place.targets[0]))
        return self._board.count_requests(name), self._board.count_ejecting(name)

    def _show_sharing(self, now: float) -> SharingView | None:
        state = self._board.fleet
        if state is None:
            return None
        machines = [
            MachineView(
                name=machine.name,
                workers=machine.workers,
                requests=self._board.count_at(machine.instance),
                age_s=round(now - machine.heard_at, 3),
            )
            for machine in sorted(state.machines, key=lambda machine: (machine.name, machine.instance))
        ]
        return SharingView(connected=not state.trouble, trouble=state.trouble or None, machines=machines)

    async def get_metrics(self) -> Response:
        """For Prometheus, with the token of the admin API."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def _order(view: ReplicaView) -> tuple[int, str, str, str]:
    tier = TIERS.index(view.tier) if view.tier in TIERS else len(TIERS)
    return tier, view.pool, view.url, view.model


def _show(
    state: ReplicaState, place: PlaceState, now: float, counts: tuple[int, int], ejected_by: int
) -> ReplicaView:
    target = place.place.targets[0]
    load = state.compute_load(place, target, now)
    warm_up, live, facts = place.place.warm_up, place.liveness, place.facts or ModelFacts()
    return ReplicaView(
        pool=target.pool,
        tier=target.tier,
        region=target.region or None,
        engine=state.replica.engine or None,
        model=target.model,
        url=target.url,
        targets=[each.id for each in place.place.targets],
        state=load.state,
        running=load.running,
        waiting=load.waiting,
        kv_cache_used=load.kv_cache_used,
        queue_wait_s=load.queue_wait_s,
        adapters=list(load.adapters),
        age_s=None if state.looked_at is None else round(now - state.looked_at, 3),
        error=state.error or None,
        context_window=facts.context_window,
        real_model=facts.real_name or None,
        engine_version=facts.version or None,
        generates=False if live.is_stuck else None if live.alive_at is None else True,
        generation_error=live.error or None,
        contradictions=list_contradictions(target, place.facts),
        requests=counts[0],
        requests_elsewhere=counts[1],
        ejected_by=ejected_by,
        warm_up=None
        if warm_up is None
        else WarmUpView(
            state=place.warmth.value,
            answered=place.answered,
            requests=warm_up.requests,
            error=place.error or None,
        ),
    )


class _EngineCollector(Collector):
    """Reads the watch when a page is asked for; nothing is kept twice."""

    def __init__(self, engines: EngineWatch) -> None:
        self._engines = engines

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        now = asyncio.get_running_loop().time()
        gauges = {
            name: GaugeMetricFamily(f"forebay_engine_{name}", words, labels=_LABELS)
            for name, words in (
                ("requests_running", "Requests in progress in the engine, as it says."),
                ("requests_waiting", "Requests in the engine's queue, as it says."),
                ("kv_cache_usage_ratio", "Share of the engine's key-value cache, as it says."),
                ("queue_wait_seconds", "Mean time in the engine's queue over the last 10 s."),
                ("signal_age_seconds", "Since the engine answered last."),
                ("context_window_tokens", "Of one request, as the engine says."),
                ("generating", "0 where the engine answers and does not generate, 1 where it was seen to."),
            )
        }
        states = GaugeMetricFamily(
            "forebay_engine_state", "1 for the state of the engine.", labels=(*_LABELS, "state")
        )
        cold = GaugeMetricFamily(
            "forebay_warm_up_due", "1 while the warm-up is not answered well.", labels=_LABELS
        )
        for state in self._engines.list_states():
            for place in state.places.values():
                self._add(gauges, states, cold, (state, place, now))
        yield from gauges.values()
        yield states
        yield cold
        for what, name in _COUNTERS:
            counter = CounterMetricFamily(name, f"Of engines, by result: {what}.", labels=("result",))
            for result in ("ok", "failed"):
                counter.add_metric((result,), self._engines.counts[what, result])
            yield counter

    def _add(
        self,
        gauges: dict[str, GaugeMetricFamily],
        states: GaugeMetricFamily,
        cold: GaugeMetricFamily,
        seen: tuple[ReplicaState, PlaceState, float],
    ) -> None:
        state, place, now = seen
        target = place.place.targets[0]
        load = state.compute_load(place, target, now)
        live = place.liveness
        labels = (target.pool, target.tier, target.region, target.model, target.id)
        values: dict[str, Any] = {
            "requests_running": load.running,
            "requests_waiting": load.waiting,
            "kv_cache_usage_ratio": load.kv_cache_used,
            "queue_wait_seconds": load.queue_wait_s,
            "context_window_tokens": None if place.facts is None else place.facts.context_window,
            "generating": 0 if live.is_stuck else None if live.alive_at is None else 1,
            "signal_age_seconds": None if state.looked_at is None else now - state.looked_at,
        }
        for name, value in values.items():
            if value is not None:  # what is not known has no sample: a 0 would say something
                gauges[name].add_metric(labels, value)
        for kind in EngineState:
            states.add_metric((*labels, kind.value), float(load.state is kind))
        if place.place.warm_up is not None:
            cold.add_metric(labels, float(place.warmth is Warmth.DUE))


class _SharingCollector(Collector):
    """The line to the boards of other machines; nothing for a machine alone."""

    def __init__(self, board: BoardServer) -> None:
        self._board = board

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        state = self._board.fleet
        if state is None:
            return
        yield GaugeMetricFamily(
            "forebay_boards_connected",
            "1 while loads are shared with other machines.",
            value=float(not state.trouble),
        )
        yield GaugeMetricFamily(
            "forebay_boards_machines", "Other machines that are heard.", value=float(len(state.machines))
        )
        yield GaugeMetricFamily(
            "forebay_boards_workers",
            "Workers of other machines.",
            value=float(sum(machine.workers for machine in state.machines)),
        )
        counter = CounterMetricFamily(
            "forebay_boards_messages", "Of loads, to and from other machines.", labels=("direction",)
        )
        counter.add_metric(("told",), state.told)
        counter.add_metric(("heard",), state.heard)
        yield counter
