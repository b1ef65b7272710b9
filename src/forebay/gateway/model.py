"""The nouns of the data plane: a compiled snapshot, and one request on its way.

A `State` is immutable once built; a request keeps the one that it started with until it ends.  Nothing here
does I/O but through what it is handed.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from forebay.core.errors import (
    CallerLeft,
    ForebayError,
    TargetError,
    TargetMisconfigured,
    Untranslatable,
    UpstreamCredentials,
)
from forebay.core.events import Tokens, UsageSource
from forebay.core.keys import KeyEntry
from forebay.core.routes import Endpoint, Route, Snapshot, Target
from forebay.gateway.call import Call
from forebay.gateway.crossing import Crossing
from forebay.gateway.dialect import Dialect as Dialect
from forebay.gateway.dialect import FindWay
from forebay.gateway.dialect import Meter as Meter
from forebay.gateway.dialect import Reading as Reading
from forebay.gateway.dialect import RequestView as RequestView
from forebay.gateway.metrics import Cells, EndpointCells
from forebay.gateway.policy.attempt import Attempts
from forebay.gateway.policy.progress import Progress
from forebay.gateway.ways import Ways
from forebay.net.client import Address, Client, Origin, parse_address
from forebay.net.connection import Connection

NEVER = 1 << 63  #: nanoseconds of a wall clock that none will show

ReadSecret = Callable[[str], str]  #: resolves `env:NAME` or `file:PATH`; raises LookupError with a reason


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

    @property
    def counts_tokens(self) -> bool:
        """Whether it counts the tokens of a prompt itself."""
        return Endpoint.COUNT_TOKENS in self.heads or Endpoint.COUNT_TOKENS in self.crossings


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteState:
    route: Route
    targets: tuple[TargetState, ...]
    cells: Mapping[Endpoint, EndpointCells]


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
            state = RouteState(route=state.route, targets=targets, cells=cells)
        yield name, state


def build_state(
    snapshot: Snapshot,
    *,
    client: Client,
    cells: Cells,
    read_secret: ReadSecret,
    dialect: Dialect,
    find_way: FindWay,
) -> State:
    """Compiles a snapshot.  Pools of addresses that stay are kept.

    A target that is of no use has a `problem`, and is no reason to refuse the rest: a key that was revoked
    must stop working whatever else has been edited.
    """
    ways = Ways(dialect, find_way)
    targets: dict[str, TargetState] = {}
    routes: dict[str, RouteState] = {}
    for route in snapshot.table.routes:
        for target in route.targets:
            if target.id not in targets:
                targets[target.id] = _build_target(target, client, cells, read_secret, ways)
        routes[route.model] = RouteState(
            route=route,
            targets=tuple(targets[target.id] for target in route.targets),
            cells={endpoint: cells.endpoint(route.model, endpoint.value) for endpoint in route.endpoints},
        )
    return State(
        snapshot=snapshot,
        table_hash=snapshot.table.compute_hash(),
        routes=routes,
        keys={entry.digest: entry for entry in snapshot.keys},
        known={},
        filtered={},
        cells=cells,
        unknown=cells.endpoint("", ""),
    )


def list_problems(state: State) -> list[str]:
    """Why some targets cannot be sent to, each once."""
    found = {
        target.target.id: target.problem.message
        for route in state.routes.values()
        for target in route.targets
        if target.problem is not None
    }
    return list(found.values())


def _build_target(
    target: Target, client: Client, cells: Cells, read_secret: ReadSecret, ways: Ways
) -> TargetState:
    problem: TargetError | None = None
    secret = ""
    heads: dict[Endpoint, bytes] = {}
    crossings: dict[Endpoint, Crossing] = {}
    origin = Origin(client, Address(scheme="http", host="", port=0), 0, None)  # which nobody will ask
    try:
        if target.api_key is not None:
            secret = read_secret(target.api_key)
    except LookupError as error:
        problem = UpstreamCredentials(f"the credentials of target {target.id} are missing: {error}")
    try:
        address, path = parse_address(target.url, target.tls_ca)
        if query := urlsplit(target.url).query:
            path += f"?{query}"
        heads, crossings = ways.build(target, address.authority, path, secret)
        origin = client.origin(address, target.connections_max, target.id)
    except ValueError:  # its words may hold the URL, and that a password
        problem = TargetMisconfigured(f"the address of target {target.id} is of no use")
    except OSError as error:
        reason = "it holds no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        problem = TargetMisconfigured(f"the file `tls_ca` of target {target.id} is of no use: {reason}")
    cell_ok, cell_failed = cells.attempts(target.id)
    return TargetState(
        target=target,
        origin=origin,
        heads=heads,
        crossings=crossings,
        secret=secret.encode(),
        problem=problem,
        cell_ok=cell_ok,
        cell_failed=cell_failed,
    )


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

    answer_bytes = 0
    asked_model = ""  #: what the caller named, where another model answers in its place
    body = b""
    body_bytes = 0
    broken: ForebayError | None = None  #: why a stream that had begun did not end well
    connection: Connection | None = None
    crossing: Crossing | None = None  #: of the current attempt, where its target is not met as OpenAI's are
    cost_estimate: int | None = None  #: nano-USD, where a limit wants to know
    duration_ns = 0  #: as on the record, once it is made
    estimate: Tokens | None = None  #: of what it will use, where a limit wants to know
    deadline = 0.0  #: loop time at which the current attempt ends
    first_token_ns: int | None = None
    key: KeyEntry | None = None
    left = False  #: the caller has gone
    names_output = True  #: how long the answer may become is the caller's word, not a guess
    limit_headers = ""  #: header lines that tell the caller of its limits
    model = ""
    progress: Progress | None = None  #: of the body, while it comes
    reading = True  #: the body is still coming
    recorded = False
    reservation: list[tuple[Any, int, int]] | None = None  #: `quota` explains it
    route: RouteState | None = None  #: without the targets that its key may not be sent to
    sent = False  #: a target may have worked on it
    status = 0  #: what the caller got
    stream = False
    task: asyncio.Task[Any] | None = None
    throttles: tuple[str, ...] = ()  #: ids of limits that hold because others are exceeded
    tokens: Tokens | None = None
    translated_bytes = 0  #: of a body that was translated, while it is held
    units: tuple[tuple[str, int], ...] = ()  #: what else the target counted
    usage_source = UsageSource.NONE
    target_state: TargetState  #: of the current attempt, the first one before any was made; once admitted
    tries = UNTRIED
    view: RequestView
    waited_ns = 0  #: for the target and the caller

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
        return self.status in UNCERTAIN

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
        self.target_state = target = self.route.targets[tries.made]
        tries.begin_next()
        self.deadline = now + target.target.timeouts.total_s

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
