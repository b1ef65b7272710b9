"""Copies of requests for mirrors: which requests, whether there is room, and one attempt for each.

A copy is an exchange of its own, after its request or beside it, with a record of its own and an answer that
nobody reads.  It must never touch what its request has: its answer, record, time, limits, memory, or what is
known of places.  Whatever stands in its way, it is dropped; nothing waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import Draining, ForebayError, InternalError
from forebay.core.keys import ALL_MODELS, KeyEntry
from forebay.core.routes import Mirror
from forebay.gateway.attempting import Attempter
from forebay.gateway.choosing import Chooser
from forebay.gateway.ending import DRAINING, Ending
from forebay.gateway.memory import Memory
from forebay.gateway.mirror_digest import COMPARED, compute_digest
from forebay.gateway.mirror_lane import Lane, is_sampled, share
from forebay.gateway.mirror_sink import Sink
from forebay.gateway.model import Exchange, RouteState, State
from forebay.gateway.policy.attempt import Attempts
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.records import Recorder

logger = logging.getLogger("forebay.gateway")

MEMORY_PART = 4  #: of `gateway.memory_max_bytes`, copies may hold one part of so many, beside it
PRESSURE_PART = 2  #: one part of so many in use by requests, and copies are dropped
ANSWER_BYTES_MAX = 16 * 1024 * 1024  #: of a copy's answer, and of an event in it
LAG_MAX_S = 0.05  #: that the event loop may take for a turn
CLOSE_MAX_S = 1.0  #: for copies to be put on record at the end

MakeAttempter = Callable[[Memory], Attempter]


class _Ticket(NamedTuple):
    """A request's place at one of its mirrors."""

    lane: "Lane[_Copy]"
    mirror: Mirror
    number: int  #: of the mirror in its route, from 1 on


class _Copy(NamedTuple):
    exchange: Exchange
    mirror: Mirror


class Mirrors:
    """All copies of one worker.

    Args:
        memory: what requests hold.
        make_attempter: with another account for what it holds.
    """

    def __init__(
        self,
        chooser: Chooser,
        ending: Ending,
        memory: Memory,
        recorder: Recorder,
        clock: Clock,
        make_attempter: MakeAttempter,
    ) -> None:
        self._chooser = chooser
        self._ending = ending
        self._requests_memory = memory
        self._memory = Memory(0)
        self._recorder = recorder
        self._monotonic_ns = clock.monotonic_ns
        self._attempter = make_attempter(self._memory)
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[tuple[str, str], Lane[_Copy]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._parent: State | None = None  # to which what follows belongs
        self._state: State | None = None
        self._routes: dict[tuple[object, ...], RouteState | None] = {}

    # --- which requests -------------------------------------------------------------------------------------

    def choose(self, exchange: Exchange) -> None:
        """Decides which mirrors get a copy of an admitted request whose route has some."""
        assert exchange.route is not None
        route, routes, endpoint = exchange.route.route, exchange.state.routes, exchange.endpoint
        for number, mirror in enumerate(route.mirrors, start=1):
            other = routes.get(mirror.model)
            if other is None or endpoint not in other.cells or not is_sampled(exchange.id, mirror):
                continue
            names = route.model, mirror.model
            ticket = _Ticket(self._lanes.setdefault(names, Lane(*names)), mirror, number)
            if mirror.at_once:
                self._loop.call_soon(self._offer_beside, exchange, ticket, self._loop.time())
            else:
                exchange.mirrors = (*exchange.mirrors, ticket)
                exchange.keeps_answer = endpoint in COMPARED

    def follow(self, exchange: Exchange) -> None:
        """Copies a request that has ended, if a target has seen it and its caller did not leave."""
        if exchange.sent and not exchange.left:
            for ticket in exchange.mirrors:  # in the next turn: first of all the answer goes out
                self._loop.call_soon(self._offer, exchange, ticket, self._loop.time())

    def _offer_beside(self, exchange: Exchange, ticket: _Ticket, asked_at: float) -> None:
        """Copies a request that is under way by now: one that was refused is not, and one that waits for a
        place is copied once it has ended."""
        if exchange.turn is not None:
            exchange.mirrors = (*exchange.mirrors, ticket)
        elif exchange.sent or not exchange.recorded:
            self._offer(exchange, ticket, asked_at)

    def _offer(self, exchange: Exchange, ticket: _Ticket, asked_at: float) -> None:
        lane, now = ticket.lane, self._loop.time()
        is_late = now - asked_at > LAG_MAX_S
        refusal = "gateway_busy" if is_late else self._find_refusal(exchange, ticket, now)
        copy = None if refusal else self._copy(exchange, ticket)
        if copy is None:
            self._drop(lane, exchange, refusal or "barred")
            return
        self._memory.held += copy.exchange.body_bytes
        lane.waiting.append((copy, now + copy.mirror.timeout_s))
        self._start(lane)

    def _find_refusal(self, exchange: Exchange, ticket: _Ticket, now: float) -> str:
        if self._closed:
            return "ended"
        if self._recorder.is_full or self._recorder.waiting:
            return "records_unwritable"
        size, requests = len(exchange.body), self._requests_memory
        workers = exchange.state.snapshot.quota_workers
        refusal = ticket.lane.find_refusal(ticket.mirror, size, workers, now)
        if refusal:
            return refusal
        self._memory.max_bytes = requests.max_bytes // MEMORY_PART
        if requests.held > requests.max_bytes // PRESSURE_PART or not self._memory.has_room_for(size):
            return "memory_full"
        return ""

    def _copy(self, exchange: Exchange, ticket: _Ticket) -> _Copy | None:
        """None where the copy may go nowhere: where a key's requests may not go, neither may their copies."""
        key = exchange.key
        assert key is not None
        state = self._find_state(exchange.state)
        route = self._find_route(state, ticket.mirror.model, key)
        if route is None:
            return None
        copy = Exchange(
            state,
            f"{exchange.id}-m{ticket.number}",
            Sink(exchange.call.headers),
            exchange.endpoint,
            exchange.dialect,
            0,
            exchange.at_ns,
        )
        copy.mirror_of = exchange.id
        copy.key = msgspec.structs.replace(key, limits=(), priority="batch")
        copy.model, copy.route, copy.cells = route.route.model, route, route.cells[exchange.endpoint]
        copy.view, copy.stream, copy.reading = exchange.view, exchange.stream, False
        copy.body, copy.body_bytes = exchange.body, len(exchange.body)
        copy.load_tokens = exchange.load_tokens
        copy.tries = Attempts(1, 1)
        copy.target_state = route.targets[0]
        if exchange.answer:
            copy.mirror_digest = compute_digest(exchange.endpoint, exchange.answer)
            copy.keeps_answer = copy.mirror_digest is not None
        return _Copy(copy, ticket.mirror)

    def _find_state(self, parent: State) -> State:
        """The snapshot in force, with less room for answers."""
        if self._parent is not parent or self._state is None:
            limits = parent.snapshot.limits
            limits = msgspec.structs.replace(
                limits,
                answer_max_bytes=min(limits.answer_max_bytes, ANSWER_BYTES_MAX),
                event_max_bytes=min(limits.event_max_bytes, ANSWER_BYTES_MAX),
            )
            snapshot = msgspec.structs.replace(parent.snapshot, limits=limits)
            self._parent, self._state = parent, replace(parent, snapshot=snapshot)
            self._routes = {}
        return self._state

    def _find_route(self, state: State, model: str, key: KeyEntry) -> RouteState | None:
        """A mirror's model without the places that the key's requests may not be sent to, and without others
        that take over; None where no place is left."""
        names = (model, key.regions, key.tier_max)
        if names not in self._routes:
            # Which models and endpoints a key may call is no matter: the copy is the platform's, not its.
            anyone = msgspec.structs.replace(key, models=ALL_MODELS, project_models=ALL_MODELS, endpoints=())
            found = state.filter_route(model, anyone)
            if found is not None and found.targets:
                route = msgspec.structs.replace(found.route, fallbacks=(), mirrors=())
                self._routes[names] = replace(found, route=route, fleets={})
            else:
                self._routes[names] = None
        return self._routes[names]

    # --- copies ---------------------------------------------------------------------------------------------

    def _start(self, lane: "Lane[_Copy]") -> None:
        """Sends what waits, as far as there is room."""
        while lane.waiting:
            copy, late_at = lane.waiting[0]
            if not lane.may_start(copy.mirror, copy.exchange.state.snapshot.quota_workers):
                return
            lane.waiting.popleft()
            if self._loop.time() > late_at:
                self._forget(lane, copy, "late")
                continue
            lane.running += 1
            task = self._loop.create_task(self._run(lane, copy))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, lane: "Lane[_Copy]", copy: _Copy) -> None:
        """One copy, from here to its record; never raises."""
        exchange = copy.exchange
        exchange.started_ns = self._monotonic_ns()
        load: ReplicaLoad | None = None
        try:
            self._chooser.prepare(exchange)
            if _is_busy(exchange):
                self._drop(lane, exchange, "target_busy")
                return
            exchange.mirrors_dropped, lane.dropped = lane.dropped, 0
            now = self._loop.time()
            exchange.begin_attempt(now)
            # It is one of those in flight there, and no more: how it ends says nothing to requests.
            load, exchange.load = exchange.load, None
            exchange.deadline = min(exchange.deadline, now + copy.mirror.timeout_s)
            await self._attempter.try_once(exchange)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the outer edge
            self._fail(exchange, error)
        finally:
            if load is not None:
                load.end(exchange.load_tokens, self._loop.time())
            self._close(lane, exchange)

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        """Records whatever went wrong."""
        match error:
            case ForebayError():
                self._ending.answer_error(exchange, error)
            case asyncio.CancelledError():
                self._ending.answer_error(exchange, Draining(DRAINING))
            case _:
                cells = exchange.state.cells
                cells.cells[cells.internal_errors] += 1
                logger.error("the copy %s failed in the gateway", exchange.id, exc_info=error)
                self._ending.answer_error(exchange, InternalError("the gateway failed"))

    def _close(self, lane: "Lane[_Copy]", exchange: Exchange) -> None:
        lane.running -= 1
        self._release(exchange)
        if exchange.recorded:
            is_good = exchange.status < 300 and exchange.broken is None
            exchange.state.cells.count_mirror(lane.model, lane.mirror, "ok" if is_good else "failed")
        connection = exchange.connection
        if connection is not None:
            exchange.connection = None
            connection.abort()
        if not self._closed:
            self._start(lane)

    def _drop(self, lane: "Lane[_Copy]", exchange: Exchange, reason: str) -> None:
        lane.dropped += 1
        exchange.state.cells.count_mirror(lane.model, lane.mirror, reason)

    def _forget(self, lane: "Lane[_Copy]", copy: _Copy, reason: str) -> None:
        """Drops a copy that had been taken."""
        self._release(copy.exchange)
        self._drop(lane, copy.exchange, reason)

    def _release(self, exchange: Exchange) -> None:
        self._memory.held -= exchange.body_bytes + exchange.translated_bytes

    async def close(self) -> None:
        """Cuts all copies, each with its record, and takes no more."""
        self._closed = True
        for lane in self._lanes.values():
            while lane.waiting:
                self._forget(lane, lane.waiting.popleft()[0], "ended")
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_MAX_S)


def _is_busy(exchange: Exchange) -> bool:
    """Whether the place to which a copy would go is half full: the rest of it is for requests."""
    target = exchange.target_state
    most, load = target.target.requests_max, target.load
    if most is None or load is None or not load.requests:
        return False
    return 2 * (load.requests + 1) > share(most, exchange.state.snapshot.quota_workers)
