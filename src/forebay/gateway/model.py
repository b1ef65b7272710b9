"""The nouns of the data plane: a compiled snapshot, and one request on its way.

A `State` is immutable once built; a request keeps the one that it started with until it ends.  Nothing here
does I/O but through what it is handed.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.core.errors import (
    CallerLeft,
    ForebayError,
    TargetError,
    Untranslatable,
)
from forebay.core.events import Tokens, UsageSource
from forebay.core.filler import Filler
from forebay.core.keys import KeyEntry
from forebay.core.limits import QueueRules
from forebay.core.routes import Endpoint, Hedge, Route, Snapshot, Target
from forebay.gateway.call import Call
from forebay.gateway.crossing import Crossing
from forebay.gateway.dialect import Dialect as Dialect
from forebay.gateway.dialect import Meter as Meter
from forebay.gateway.dialect import Reading as Reading
from forebay.gateway.dialect import RequestView as RequestView
from forebay.gateway.headroom import hear_quota
from forebay.gateway.metrics import Cells, EndpointCells
from forebay.gateway.policy.attempt import Attempts
from forebay.gateway.policy.fleet import Fleet, Group
from forebay.gateway.policy.load import OUTPUT_MIN, ReplicaLoad, estimate_tokens
from forebay.gateway.policy.progress import Progress
from forebay.net.client import Origin
from forebay.net.connection import Connection

NEVER = 1 << 63  #: nanoseconds of a wall clock that none will show


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A target, ready to be sent to."""

    target: Target
    origin: Origin
    heads: Mapping[Endpoint, bytes]  #: the head of a request, up to what differs between requests
    crossings: Mapping[Endpoint, Crossing]  #: for endpoints that it answers, and that are not in `heads`
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


def build_head_rest(request_id: str, size: int, headers: Mapping[bytes, bytes]) -> bytes:
    """What differs between two requests' heads, and the end of the head."""
    trace = headers.get(b"traceparent")
    if trace is None:
        return f"content-length: {size}\r\nx-request-id: {request_id}\r\n\r\n".encode()
    state = headers.get(b"tracestate")
    return b"content-length: %d\r\nx-request-id: %b\r\ntraceparent: %b\r\n%b\r\n" % (
        size,
        request_id.encode(),
        trace,
        b"" if state is None else b"tracestate: %b\r\n" % state,
    )


#: Answers after which nobody knows how much of the work was done.
UNCERTAIN = frozenset({500, 502, 504})

UNTRIED = Attempts(limit=0, targets_left=0)  #: for requests that never get that far; never changed


class Exchange:
    """One request, from its head's arrival to its record.

    The defaults live on the class: most requests change few of them, and setting all of them anew would be
    a good part of what a request costs.
    """

    answer = b""  #: whole and good, where it is to be compared
    answer_bytes = 0
    attempt_at = 0.0  #: loop time at which the current attempt began, where its target is counted
    asked_model = ""  #: what the caller named, where another model answers in its place
    blamed: ReplicaLoad | None = None  #: a place against which a status that it answered with was counted
    body = b""
    body_bytes = 0
    broken: ForebayError | None = None  #: why a stream that had begun did not end well
    connection: Connection | None = None
    crossing: Crossing | None = None  #: of the current attempt, where its target is not met as OpenAI's are
    cost_estimate: int | None = None  #: nano-USD, where a limit wants to know
    duration_ns = 0  #: as on the record, once it is made
    estimate: Tokens | None = None  #: of what it will use, where a limit wants to know
    fallbacks: tuple[tuple[int, "RouteState"], ...] = ()  #: models that take over, by their place in `plan`
    filler: Filler | None = None  #: that the stream began with, and to which the answer is joined
    filler_ns: int | None = None  #: from the head's arrival to it
    deadline = 0.0  #: loop time at which the current attempt ends
    holds_place = False  #: it is counted at its place already, where no attempt has begun
    first_s = 0.0  #: of the current attempt until its first token, where its target is counted
    first_token_ns: int | None = None
    kept: Collection[Any] = ()  #: leases that it holds while it reserves more for another model
    is_filler_due = True  #: there may still be one
    key: KeyEntry | None = None
    guessed_units: tuple[tuple[str, int], ...] = ()  #: that it will cost, where a limit wants to know
    hedged = ""  #: id of the target that was asked at the same time, and did not answer
    hedged_tokens = 0  #: prompt tokens that it may have cost, by estimate
    is_binary = False  #: its stream is no text, so that no error can be told inside it
    keeps_answer = False  #: it is to be compared
    is_cleared = False  #: what was counted against `blamed` was taken back
    is_retry_denied = False  #: there was another place, and no budget for it
    is_plan_whole = True  #: else `plan` goes no further than the first attempt
    left = False  #: the caller has gone
    names_output = True  #: how long the answer may become is the caller's word, not a guess
    load: ReplicaLoad | None = None  #: which counts the current attempt
    load_tokens = 0  #: that it counts
    limit_headers = ""  #: header lines that tell the caller of its limits
    meant_status = 0  #: of an error that had to be told in a stream whose head was out already
    mirror_digest: bytes | None = None  #: of a copy: of what its request's answer held
    mirror_of = ""  #: of a copy for a mirror, the id of the request
    mirrors: tuple[Any, ...] = ()  #: which get a copy once it has ended; `mirrors` explains them
    mirrors_dropped = 0  #: copies before it that its mirror did not get
    model = ""
    plan: tuple[TargetState, ...] | None = None  #: where it goes; None: as the route lists them
    progress: Progress | None = None  #: of the body, while it comes
    queued_ns = 0  #: of `waited_ns`, for room in limits and at places
    reading = True  #: the body is still coming
    recorded = False
    reservation: list[tuple[Any, int, int]] | None = None  #: `quota` explains it
    route: RouteState | None = None  #: without the targets that its key may not be sent to
    sent = False  #: a target may have worked on it
    status = 0  #: what the caller got
    silent_bytes = -1  #: of the answer that had gone out when `silence` last looked
    silent_since = 0.0  #: loop time; since when nothing has gone out, if that is so
    stream = False
    task: asyncio.Task[Any] | None = None
    throttles: tuple[str, ...] = ()  #: ids of limits that hold because others are exceeded
    tokens: Tokens | None = None
    translated_bytes = 0  #: of a body that was translated, while it is held
    units: tuple[tuple[str, int], ...] = ()  #: what else the target counted
    usage_source = UsageSource.NONE
    target_state: TargetState  #: of the current attempt, the first one before any was made; once admitted
    tries = UNTRIED
    turn: Any = None  #: where it stands in the line for a place; `crowd` explains it
    view: RequestView
    waited_ns = 0  #: for the target and the caller
    window_tried = 0  #: the largest context window for which it was too long

    def __init__(
        self,
        state: State,
        request_id: str,
        call: Call,
        endpoint: Endpoint,
        dialect: Dialect,
        started_ns: int,
        at_ns: int,
    ) -> None:
        self.state = state
        self.id = request_id
        self.call = call
        self.endpoint = endpoint
        self.dialect = dialect  # that of the caller
        self.started_ns = started_ns
        self.at_ns = at_ns
        self.cells = state.unknown

    @property
    def spoken(self) -> Dialect:
        """What is read of the current target's answer, before it is translated for the caller."""
        crossing = self.crossing
        return crossing.inner if crossing is not None and crossing.is_translated else self.dialect

    @property
    def attempts(self) -> int:
        return self.tries.made

    @property
    def target(self) -> Target | None:
        """The last target tried, None when none was."""
        return self.target_state.target if self.tries.made else None

    @property
    def is_uncertain(self) -> bool:
        """Whether nobody knows how much of the work was done."""
        return (self.meant_status or self.status) in UNCERTAIN

    def redirect(self, model: str) -> bool:
        """Lets another model answer that the key may call; False, and nothing is changed, if none can."""
        assert self.key is not None
        key = self.state.find_key(self.key.digest)
        route = None if key is None else key.routes.get(model)
        cells = None if route is None else route.cells.get(self.endpoint)
        if route is None or cells is None or not route.targets:
            return False
        asked, self.model, self.route, self.cells = self.model, model, route, cells
        self.tries = Attempts(self.state.snapshot.table.attempts_max, len(route.targets))
        self.target_state = route.targets[0]
        self.plan = None
        self.cost_estimate = self.estimate = None  # another price, and answers of another length
        self.asked_model = self.asked_model or asked
        return True

    def begin_attempt(self, now: float) -> None:
        """The next target's turn, and its time: a request takes no longer than its attempts may together.

        Args:
            now: the loop's time.
        """
        assert self.route is not None
        tries = self.tries
        plan = self.plan
        self.target_state = target = (self.route.targets if plan is None else plan)[tries.made]
        for at, route in self.fallbacks:
            if at == tries.made:
                self._answer_with(route)
        tries.begin_next()
        self.deadline = now + target.target.timeouts.total_s
        load = target.load
        if self.holds_place and load is self.load:
            self.holds_place, self.attempt_at = False, now
            return
        if self.load is not None:
            self.end_load(now)  # the attempt before this one has failed
        if load is not None:
            self.load, self.attempt_at = load, now
            self.load_tokens = self.load_tokens or estimate_tokens(self.body_bytes)
            load.begin(self.load_tokens, now)

    def _answer_with(self, route: RouteState) -> None:
        """Another model takes over, after all places of the one before it that were to be tried."""
        asked, self.model, self.route = self.model, route.route.model, route
        self.cells = route.cells[self.endpoint]
        self.asked_model = self.asked_model or asked

    def tell_first(self, now: float) -> None:
        """The first token of the current attempt, which is counted, has come."""
        assert self.load is not None
        self.first_s = now - self.attempt_at
        self.load.tell_first(self.first_s, now)
        if self.load.account is not None:
            self.hear_quota(now)

    def hear_quota(self, now: float) -> None:
        """What the answer's head says of the quota of an account, which there is, is told to it."""
        connection, load = self.connection, self.load
        if connection is not None and load is not None and load.account is not None:
            hear_quota(load.account, connection, now, self.at_ns * 1e-9)

    def end_load(self, now: float) -> None:
        """The current attempt, which is counted, has ended.

        Args:
            now: the loop's time.
        """
        load = self.load
        assert load is not None
        self.load = None
        load.end(self.load_tokens, now)
        status = self.meant_status or self.status
        if self.recorded and status < 300 and self.broken is None and not self.left:
            load.succeed(now, self.attempt_at)
            output = self.tokens.output_total if self.tokens is not None else 0
            taken_s = now - self.attempt_at
            if self.first_token_ns is None and output < OUTPUT_MIN:
                load.tell_first(taken_s, now)
            elif output >= OUTPUT_MIN:
                load.tell_token(max(0.0, taken_s - self.first_s) / output, now)

    def is_body_late(self, now_ns: int) -> bool:
        """Whether the caller takes too long to send the body."""
        progress = self.progress
        if progress is None:
            progress = self.progress = Progress(self.started_ns, self.started_ns)
        return progress.is_too_slow(now_ns, self.call.received)

    def leave(self) -> None:
        """The caller has gone: let the target go at once."""
        self.left = True
        if self.recorded:
            return
        if self.connection is not None:
            self.connection.fail(CallerLeft("the caller left"))
        elif self.task is not None:
            self.task.cancel()
