"""Where a request would go, for the admin API: what a route, a key and a request's needs leave, and why.

It decides by the same pure functions as the workers, over the table that they have, and by the loads that
they have told the board.  What is out of service for its failures at all workers of this machine counts as
that here; at how many it is so is told.  It does not know how fast places are: that a worker tells itself,
with the header `x-forebay-debug: route`.
"""

import time
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from fastapi import FastAPI, Query
from pydantic import Field, StringConstraints

from forebay.app.control_plane import ControlPlane
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import KeyId, View
from forebay.app.machine_id import read_machine_id
from forebay.core.errors import EndpointForbidden, Forbidden, InvalidValue, ModelNotFound, Overloaded
from forebay.core.keys import KeyEntry
from forebay.core.routes import Endpoint, Route, RouteTable
from forebay.gateway.board import hear_news
from forebay.gateway.loads import Loads
from forebay.gateway.place_names import PlaceNames, find_place
from forebay.gateway.policy.explain import Candidate, Explained, explain, explain_barred, explain_listed
from forebay.gateway.policy.fleet import Fleet, Group, compute_mask
from forebay.gateway.policy.listed import ListedPlace
from forebay.gateway.policy.load import OUTPUT_GUESS
from forebay.gateway.policy.news import News
from forebay.gateway.policy.want import Want
from forebay.providers.translators import can_answer

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Capability = Literal["tools", "images", "audio", "documents", "json_schema"]
_ANYONE = KeyEntry(id="", digest=b"", name="", prefix="")


class EngineStateView(View):
    """What an engine said of itself; null for what it does not say."""

    state: Literal["ready", "cold", "down", "unknown"]
    age_s: float
    running: int | None
    waiting: int | None
    kv_cache_used: float | None
    queue_wait_s: float | None


class CandidateView(View):
    target: str
    pool: str
    tier: str
    region: str | None
    rank: int | None = Field(description="0 is tried first; null where it is not tried at all.")
    rejected: str | None = Field(
        description="tier, region, endpoint, capability, window, ejected, busy, cold or down; null for none "
        "of them."
    )
    why: str = Field(description="The same in words.")
    weight: float | None
    requests: int | None = Field(description="In flight, of all workers; null where they are not counted.")
    used: float | None = Field(description="Share of its pool's capacity; null if nobody knows.")
    engine: EngineStateView | None = Field(description="What its engine said in the last 5 s.")
    ejected_by: int = Field(
        description="Workers of this machine that have put it out of service for its failures."
    )
    retry_after_s: float | None = Field(description="Until it is asked again, while it is left alone.")
    quota_used: float | None = Field(description="Used share of its account's quota, as its provider said.")


class ExplainedView(View):
    """One plan of those that there may be: between equal places the draw decides."""

    model: str
    key: str | None
    endpoint: str
    chosen_by: Literal["load", "listed"]
    priority: str
    tokens: int
    needs: list[str]
    fallbacks: list[str] = Field(description="Models that answer where no candidate does.")
    candidates: list[CandidateView]


class ExplainRoutes:
    """The route over one control plane.

    Args:
        read_news: all that workers, engines and providers said of late; nothing by default.
    """

    def __init__(self, plane: ControlPlane, read_news: Callable[[], News] = News) -> None:
        self._plane = plane
        self._read_news = read_news

    def install(self, app: FastAPI) -> None:
        RouteAdder(app)("GET", "/routes/explain", self.get_explained, "Where a request would go, and why")

    async def get_explained(
        self,
        model: Annotated[ModelName, Query(description="The public name.")],
        key: Annotated[KeyId | None, Query(description="Whose request it is; without, anybody's.")] = None,
        endpoint: Annotated[Endpoint, Query(description="The path below `/v1/`.")] = Endpoint.CHAT,
        priority: Annotated[
            Literal["interactive", "standard", "batch"] | None,
            Query(description="Its class; else the key's."),
        ] = None,
        tokens: Annotated[int, Query(ge=0, le=1 << 40, description="Of the prompt.")] = 0,
        output_tokens: Annotated[int, Query(ge=0, le=1 << 40, description="Of the answer.")] = OUTPUT_GUESS,
        needs: Annotated[
            list[Capability] | None, Query(description="What it needs beyond text.", max_length=5)
        ] = None,
        draw: Annotated[float, Query(ge=0, lt=1, description="The random number that decides.")] = 0.5,
    ) -> ExplainedView:
        """By the routes in force and the loads that are known here."""
        written = self._plane.snapshot_state
        if written is None:
            raise Overloaded("no snapshot has been written yet", retry_after_s=1)
        snapshot = written.snapshot
        entry = _find_key(snapshot.keys, key)
        want = Want(
            tokens + output_tokens, output_tokens, compute_mask(needs or ()), priority or entry.priority
        )
        route = _find_route(snapshot.table, model, endpoint, entry)
        news = self._read_news()
        explained = explain_route(snapshot.table, route, endpoint, entry, want, draw, news)
        outs = {out.place: out.workers for out in news.outs}
        names, places = PlaceNames(read_machine_id()), {each.id: find_place(each) for each in route.targets}
        return ExplainedView(
            model=model,
            key=key,
            endpoint=endpoint.value,
            chosen_by="load" if explained.chosen_by == "load" else "listed",
            priority=want.priority,
            tokens=want.tokens,
            needs=sorted(set(needs or ())),
            fallbacks=[name for name in route.fallbacks if entry.allows(name)],
            candidates=[
                _show(each, outs.get(names.name_place(places[each.target]), 0) if outs else 0)
                for each in explained.candidates
            ],
        )


def explain_route(
    table: RouteTable,
    route: Route,
    endpoint: Endpoint,
    entry: KeyEntry,
    want: Want,
    draw: float,
    news: News,
) -> Explained:
    """What becomes of such a request."""
    now = time.monotonic()
    allowed = [target for target in route.targets if entry.allows_target(target.tier, target.region)]
    loads = Loads(PlaceNames(read_machine_id()))
    parts = loads.follow(table, 1)
    loads.commit(parts)
    hear_news(loads, news, now)
    _hear_outs(loads, news, now)
    loads.sweep(now)
    groups = parts.groups.get(route.model, ())
    if groups and len(allowed) > 1:
        kept = [group for group in groups if entry.allows_target(group.tier, group.region)]
        able = [group for group in kept if _answers(group, endpoint)]
        fleet = Fleet(able or kept, route.choosing)
        explained = explain(fleet, want, now, draw, table.attempts_max, kept)
    else:
        listed = [ListedPlace(target, parts.replicas.get(target.id)) for target in allowed]
        explained = explain_listed(listed, table.attempts_max, now)
    explained.candidates.extend(explain_barred(entry, route.targets))
    return explained


def _hear_outs(loads: Loads, news: News, now: float) -> None:
    """Out of service is what is so wherever a request may come."""
    for out in news.outs:
        replica = loads.by_id.get(out.place)
        if replica is not None and out.is_everywhere:
            replica.ejected_until = out.until
            replica.settle(now)


def _find_key(keys: tuple[KeyEntry, ...], key_id: str | None) -> KeyEntry:
    if key_id is None:
        return _ANYONE
    for entry in keys:
        if entry.id == key_id:
            return entry
    raise InvalidValue(f"no live key {key_id}; `forebay keys list` names them", param="key")


def _find_route(table: RouteTable, model: str, endpoint: Endpoint, entry: KeyEntry) -> Route:
    route = next((route for route in table.routes if route.model == model), None)
    if route is None:
        raise ModelNotFound(
            f"no model `{model}`; there is {', '.join(route.model for route in table.routes) or 'none'}",
            param="model",
        )
    if not entry.allows(model):
        raise Forbidden(f"the key {entry.id} may not call the model `{model}`", param="key")
    if endpoint not in route.endpoints:
        answered = ", ".join(route.endpoints)
        raise InvalidValue(
            f"`{model}` does not answer {endpoint.value}; it answers {answered}", param="endpoint"
        )
    if not entry.allows_endpoint(endpoint):
        raise EndpointForbidden(f"the key {entry.id} may not use {endpoint.value}", param="key")
    return route


def _answers(group: Group, endpoint: Endpoint) -> bool:
    return can_answer(group.members[0].target.dialect, endpoint)


def _show(candidate: Candidate, ejected_by: int) -> CandidateView:
    engine = candidate.engine
    return CandidateView(
        target=candidate.target,
        pool=candidate.pool,
        tier=candidate.tier,
        region=candidate.region or None,
        rank=candidate.rank,
        rejected=candidate.rejected,
        why=candidate.why,
        weight=candidate.weight,
        requests=candidate.requests,
        used=candidate.used,
        engine=None if engine is None else EngineStateView(**msgspec.structs.asdict(engine)),
        ejected_by=ejected_by,
        retry_after_s=candidate.retry_after_s,
        quota_used=candidate.quota_used,
    )
