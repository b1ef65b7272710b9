"""A compiled snapshot: its routes, targets and keys, ready for requests.

Immutable once built; a request keeps the one that it started with until it ends.  Nothing here does I/O.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from forebay.core.errors import TargetError, Untranslatable
from forebay.core.keys import PRIORITIES, KeyEntry
from forebay.core.limits import QueueRules
from forebay.core.routes import Endpoint, Hedge, Route, Snapshot, Target
from forebay.gateway.crossing import Crossing
from forebay.gateway.metrics import Cells, EndpointCells
from forebay.gateway.policy.fleet import Fleet, Group
from forebay.gateway.policy.load import ReplicaLoad, Trouble
from forebay.net.client import Origin

NEVER = 1 << 63  #: nanoseconds of a wall clock that none will show


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A target, ready to be sent to."""

    target: Target
    origin: Origin
    heads: Mapping[Endpoint, bytes]  #: the head of a request, up to what differs between requests
    crossings: Mapping[Endpoint, Crossing]  #: for endpoints that it answers, and that are not in `heads`
    forced: Mapping[Endpoint, Crossing]  #: for requests that force a call which its engine does not enforce
    secret: bytes
    problem: TargetError | None  #: why it cannot be sent to
    cell_ok: int
    cell_failed: int
    load: ReplicaLoad | None  #: where its requests are counted; None if nothing is chosen by that

    def find_crossing(self, endpoint: Endpoint) -> Crossing:
        """Of an endpoint without a head.  Raises Untranslatable where the target can't answer it."""
        crossing = self.crossings.get(endpoint)
        if crossing is None:
            raise Untranslatable(
                f"the target {self.target.id} can't answer /v1/{endpoint.value} in its dialect, "
                f"{self.target.dialect}",
                param="model",
            )
        return crossing

    def answers(self, endpoint: Endpoint) -> bool:
        return endpoint in self.heads or endpoint in self.crossings

    @property
    def counts_tokens(self) -> bool:
        """Whether it counts the tokens of a prompt itself."""
        return self.answers(Endpoint.COUNT_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteState:
    """A route, or what a key's rights leave of it."""

    route: Route
    targets: tuple[TargetState, ...]
    cells: Mapping[Endpoint, EndpointCells]
    places: tuple[TargetState, ...]  #: all targets of the route, as the members of groups count them
    groups: tuple[Group, ...] = ()  #: of `targets`; none where they are tried in their order
    hedge: Hedge | None = None  #: of a route with several targets
    fleets: dict[Endpoint, Fleet] = field(default_factory=dict)  #: made when they are needed
    queue: QueueRules | None = (
        None  #: how requests wait for its places; None where nobody knows when those are full
    )

    def find_fleet(self, endpoint: Endpoint) -> Fleet:
        """The groups that answer an endpoint; all of them if none does, so that a target says so."""
        fleet = self.fleets.get(endpoint)
        if fleet is None:
            able = [group for group in self.groups if self.places[group.members[0].index].answers(endpoint)]
            fleet = self.fleets[endpoint] = Fleet(able or self.groups, self.route.choosing)
        return fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """A key that is in use.  Its requests know no routes but these, and no targets but theirs."""

    entry: KeyEntry
    expires_ns: int  #: wall clock; NEVER for a key that does not end by itself
    is_bounded: bool  #: whether its requests' context or output has a limit
    routes: Mapping[str, RouteState]  #: what it may call, without the targets that its rights reject
    is_batch: bool = False  #: lines of its batches are asked with it, and nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A compiled snapshot.

    What a key may call is only looked up once the key is used: with many keys and many models it would keep
    every request waiting to do so for all of them when a snapshot is swapped in.
    """

    snapshot: Snapshot
    table_hash: str
    routes: Mapping[str, RouteState]
    keys: Mapping[bytes, KeyEntry]  #: by digest
    known: dict[bytes, KeyState]  #: keys by the header that was recognised; gone with this snapshot
    filtered: dict[
        tuple[object, ...], Mapping[str, RouteState]
    ]  #: routes by the rights of keys that were used
    cells: Cells
    unknown: EndpointCells  #: for requests that name no known model
    trouble: Trouble = field(default_factory=Trouble)  #: of all pools

    def find_key(self, digest: bytes) -> KeyState | None:
        """The key with this digest, and what it may call."""
        entry = self.keys.get(digest)
        if entry is None:
            return None
        rights = (entry.models, entry.project_models, entry.endpoints, entry.regions, entry.tier_max)
        routes = self.filtered.get(rights)
        if routes is None:
            routes = self.filtered[rights] = dict(_filter_routes(self.routes, entry))
        return KeyState(
            entry=entry,
            expires_ns=NEVER if entry.expires_ns is None else entry.expires_ns,
            is_bounded=entry.context_max_tokens is not None or entry.output_max_tokens is not None,
            routes=routes,
        )

    def find_key_for_batches(self, key_id: str) -> KeyState | None:
        """The key with this id, as requests of its batches have it: in the class that waits."""
        entry = next((entry for entry in self.keys.values() if entry.id == key_id), None)
        key = None if entry is None else self.find_key(entry.digest)
        if key is None:
            return None
        return replace(key, entry=msgspec.structs.replace(key.entry, priority=PRIORITIES[-1]), is_batch=True)

    def filter_route(self, model: str, entry: KeyEntry) -> RouteState | None:
        """What a key's rights leave of one route; None if that is nothing."""
        return dict(_filter_routes({model: self.routes[model]}, entry)).get(model)


def _filter_routes(routes: Mapping[str, RouteState], entry: KeyEntry) -> Iterator[tuple[str, RouteState]]:
    """The routes that a key may call in any way, each with those of its targets that it may be sent to."""
    for name, state in routes.items():
        if not entry.allows(name):
            continue
        cells = {endpoint: each for endpoint, each in state.cells.items() if entry.allows_endpoint(endpoint)}
        targets = tuple(
            each for each in state.targets if entry.allows_target(each.target.tier, each.target.region)
        )
        if not cells or (state.targets and not targets):
            continue
        if len(cells) < len(state.cells) or len(targets) < len(state.targets):
            groups = tuple(group for group in state.groups if entry.allows_target(group.tier, group.region))
            state = RouteState(
                route=state.route,
                targets=targets,
                cells=cells,
                places=state.places,
                groups=groups if len(targets) > 1 or state.queue is not None else (),
                queue=state.queue,
                hedge=state.hedge if len(targets) > 1 else None,
            )
        yield name, state
