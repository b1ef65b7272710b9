"""Carries one inference request: admit, send, answer, record.

The decisions are `policy`'s; this is the shell that acts on them.  It owns every request in flight and ends
each exactly once, with one record, whoever left, failed or was killed.  How a request is sent to one target
after another is `attempting`'s; here it is sent to the first, where that needs no task.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from forebay.core.batch_calls import MARK_HEADER
from forebay.core.clock import Clock
from forebay.core.errors import (
    CallerLeft,
    Draining,
    ForebayError,
    InternalError,
    RecordsUnwritable,
    StaleConnection,
)
from forebay.core.routes import Endpoint
from forebay.gateway.attempting import Attempter
from forebay.gateway.call import Call, CallerGone
from forebay.gateway.choosing import Chooser
from forebay.gateway.crowd import Crowd
from forebay.gateway.deciding import Decider
from forebay.gateway.ending import DRAINING, Ending, count_estimate, explain_cancel
from forebay.gateway.intake import Intake
from forebay.gateway.memory import Memory
from forebay.gateway.mirrors import Mirrors
from forebay.gateway.model import Dialect, Exchange, KeyState, State
from forebay.gateway.plan import Plan
from forebay.gateway.quota import Quota
from forebay.gateway.records import Recorder
from forebay.gateway.relay import Relay
from forebay.gateway.silence import Silence
from forebay.gateway.speaking import find_forced, new_meter
from forebay.gateway.succession import Succession
from forebay.net.connection import ALL, SOME, Connection

logger = logging.getLogger("forebay.gateway")

SWEEP_S = 0.1
MARK_MAX_CHARS = 100  #: that name the line of a batch


class Service:
    """All requests of one worker.

    Args:
        state: the compiled snapshot to start with; `swap` changes it.
        worker: this worker's number, for the records.
        id_prefix: makes request ids unique over all workers and restarts.
    """

    def __init__(
        self,
        state: State,
        *,
        recorder: Recorder,
        quota: Quota,
        clock: Clock,
        worker: int,
        id_prefix: str,
    ) -> None:
        self.state = state
        self.active: set[Exchange] = set()
        self.recorder = recorder
        self.quota = quota
        self._loop = asyncio.get_running_loop()
        self.draining = False
        self.memory = Memory(state.snapshot.limits.memory_max_bytes)
        self.intake = Intake(clock, self.memory)
        self.crowd = Crowd(self._loop, self.memory)
        self._chooser = Chooser(self._loop.time, Succession(quota).take_over, self.crowd)
        self._relay = Relay(clock)
        self._ending = Ending(self._relay, recorder, clock, worker)
        self._count = 0
        self._refused = 0
        self._decider = Decider(self._chooser, lambda: self._count - self._refused, self._loop.time)
        self._clock = clock
        self._attempter = self._make_attempter(self.memory)
        self.mirrors = Mirrors(
            self._chooser, self._ending, self.memory, recorder, clock, self._make_attempter
        )
        self._silence = Silence(clock)
        self._monotonic_ns = clock.monotonic_ns
        self._id_prefix = id_prefix

    def _make_attempter(self, memory: Memory) -> Attempter:
        return Attempter(self._chooser, self._decider, self._relay, self._ending, memory, self._clock)

    # --- one request ----------------------------------------------------------------------------------------

    def begin(self, call: Call, endpoint: Endpoint, dialect: Dialect) -> Coroutine[Any, Any, None] | None:
        """Serves one request, whose caller speaks `dialect`; never raises.

        Most requests are small, known, and meet an idle connection: they are sent at once and answered from
        where the answer's bytes arrive, without a task.  For the others the rest is returned as a coroutine.
        """
        self._count += 1
        exchange = Exchange(
            self.state,
            f"req_{self._id_prefix}{self._count:x}",
            call,
            endpoint,
            dialect,
            self._monotonic_ns(),
            self._clock.wall_ns(),
        )
        call.on_left = exchange.leave
        self.active.add(exchange)
        intake = self.intake
        try:
            key = intake.authenticate(exchange.state, call, exchange.at_ns)
            exchange.key = key.entry
            if key.is_batch:
                exchange.batch = call.headers.get(MARK_HEADER, b"").decode("latin-1")[:MARK_MAX_CHARS]
            if self.draining:
                raise Draining(DRAINING, retry_after_s=1)
            if self.recorder.is_full:
                raise RecordsUnwritable(
                    "usage can't be recorded at the moment (is the disk full?), so no requests are accepted",
                    retry_after_s=5,
                )
            if not intake.take_whole(exchange):
                return self._run(exchange, self._receive(exchange, key))
            intake.admit(exchange, key)
            if key.entry.limits:
                plan = self.quota.find_plan(key.entry, exchange.model)
                if not self.quota.reserve(exchange, plan):
                    return self._run(exchange, self._borrow(exchange, plan))
            if exchange.route is not None and exchange.route.route.mirrors:
                self.mirrors.choose(exchange)
            if self._send_first(exchange):
                return None
            return self._run(exchange, self._attempter.run(exchange))
        except Exception as error:  # noqa: BLE001 - the outer edge, as in `_run`
            self._fail(exchange, error)
            self._close(exchange)
            return None

    def authenticate(self, call: Call) -> KeyState:
        """Whose call it is that needs no target.  Raises Unauthenticated."""
        return self.intake.authenticate(self.state, call, self._clock.wall_ns())

    async def _receive(self, exchange: Exchange, key: KeyState) -> None:
        exchange.body = await self.intake.read_body(exchange)
        exchange.reading = False
        self.intake.admit(exchange, key)
        await self._borrow(exchange, self.quota.find_plan(key.entry, exchange.model))

    async def _borrow(self, exchange: Exchange, plan: Plan) -> None:
        await self.quota.acquire(exchange, plan)
        if exchange.route is not None and exchange.route.route.mirrors:
            self.mirrors.choose(exchange)
        await self._attempter.run(exchange)

    async def _run(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        exchange.task = exchange.call.task
        try:
            if self.draining:  # all others were cut before this one had a task to cancel
                work.close()
                raise Draining(DRAINING, retry_after_s=1)
            await work
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the outer edge
            self._fail(exchange, error)
        finally:
            self._close(exchange)

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        """Answers and records whatever went wrong."""
        if not exchange.tries.made:
            self._refused += 1  # it is none of those of which a share may be tried again
        match error:
            case ForebayError():
                self._ending.answer_error(exchange, error)
            case CallerGone():
                self._ending.answer_error(exchange, CallerLeft("the caller left"))
            case asyncio.CancelledError():
                self._ending.answer_error(exchange, explain_cancel(exchange, draining=self.draining))
            case _:
                cells = exchange.state.cells
                cells.cells[cells.internal_errors] += 1
                logger.error("request %s failed in the gateway", exchange.id, exc_info=error)
                self._ending.answer_error(
                    exchange, InternalError(f"the gateway failed; its log names the request {exchange.id}")
                )

    def _close(self, exchange: Exchange) -> None:
        self.active.discard(exchange)
        self.memory.held -= exchange.body_bytes + exchange.translated_bytes
        if exchange.turn is not None:
            self.crowd.end(exchange)
        if exchange.load is not None:  # first, so that nothing can leave a place fuller than it is
            exchange.end_load(self._loop.time())
        if exchange.reservation is not None:
            self.quota.settle(exchange)
            count_estimate(exchange)
        connection = exchange.connection
        if connection is not None:
            exchange.connection = None
            connection.abort()
        exchange.call.on_left = None
        if exchange.mirrors:
            self.mirrors.follow(exchange)

    # --- without a task -------------------------------------------------------------------------------------

    def _send_first(self, exchange: Exchange) -> bool:
        """Sends to the first target if a connection to it lies ready."""
        if not self._chooser.prepare(exchange) or exchange.turn is not None:
            return False
        if exchange.fallbacks and self._chooser.is_other_first(exchange):
            return False
        target = exchange.target_state
        if target.problem is not None or exchange.endpoint not in target.heads:
            return False
        if target.forced and find_forced(exchange, target) is not None:
            return False  # its engine would read over the call that it has to make
        if exchange.route is not None and exchange.route.hedge is not None:
            return False  # it may need a second attempt while the first goes on
        # First: a request that can't be sent costs no connection.
        dialect, model = exchange.dialect, target.target.model
        payload = dialect.encode_request(exchange.body, exchange.view, exchange.endpoint, model)
        connection = target.origin.pop_idle()
        if connection is None:
            return False
        exchange.begin_attempt(self._loop.time())
        try:
            self._attempter.send(exchange, target, connection, payload)
        except StaleConnection:
            exchange.tries.resent = True
            exchange.connection = None
            connection.abort()
            return False
        connection.call_when(SOME if exchange.stream else ALL, self._on_answer, exchange)
        return True

    def _on_answer(self, exchange: Exchange) -> None:
        """The first target has answered, or failed: finishes what is simple, leaves the rest to a task."""
        connection = exchange.connection
        assert connection is not None
        if connection.sent_ns:
            exchange.waited_ns += self._monotonic_ns() - connection.sent_ns
        try:
            if connection.complete and connection.status == 200 and not connection.has_failed:
                done = self._finish_stream_at_once if exchange.stream else self._finish_whole_at_once
                if done(exchange, connection):
                    self._close(exchange)
                    return
        except Exception as error:  # noqa: BLE001 - the outer edge, as in `_run`
            self._fail(exchange, error)
            self._close(exchange)
            return
        call = exchange.call
        call.task = self._loop.create_task(self._run(exchange, self._attempter.run(exchange)))

    def _finish_whole_at_once(self, exchange: Exchange, connection: Connection) -> bool:
        body = connection.take()
        if body.startswith(exchange.dialect.ERROR_START) or not body.startswith(b"{"):
            connection.put_back(body)
            return False
        content_type = connection.header(b"content-type")
        load = exchange.load
        if load is not None and load.account is not None:
            exchange.hear_quota(self._loop.time())
        exchange.connection = None
        connection.release()
        self._ending.finish_good(exchange, content_type, body)
        target = exchange.target_state
        cell = target.cell_ok if exchange.broken is None else target.cell_failed
        exchange.state.cells.cells[cell] += 1
        return True

    def _finish_stream_at_once(self, exchange: Exchange, connection: Connection) -> bool:
        meter = new_meter(exchange)
        if not self._relay.stream_at_once(exchange, connection, meter, self._ending.finish_stream):
            return False
        exchange.connection = None
        connection.release()
        self._attempter.count_stream(exchange)
        return True

    # --- all requests ---------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Looks at everything in flight: who is too late, and who has heard nothing for long.

        To be called every `SWEEP_S`.
        """
        now_ns, now = self._monotonic_ns(), self._loop.time()
        for exchange in tuple(self.active):
            # Stuck on the caller: the client's sweep, which ends an attempt and no more, does not see that.
            late = exchange.call.is_behind and exchange.deadline and now > exchange.deadline + 2 * SWEEP_S
            if exchange.stream:
                self._silence.look(exchange, now)
            elif exchange.reading:
                late = exchange.is_body_late(now_ns)
            if late and exchange.task is not None:
                exchange.task.cancel()
        self._decider.look_at_budget(self.state)
        self.recorder.retry()
        self.quota.sweep()
        self.crowd.sweep(now)
        self.state.cells.tell_held(len(self.active), self.recorder.waiting, self.memory.held)
        self.state.cells.tell_waiting(self.quota.waits.counts)
        self.state.cells.tell_queued(self.crowd.waiting)

    def cut_all(self) -> int:
        """Ends every request in flight, with an error in its dialect; returns how many."""
        self.draining = True
        error = Draining(DRAINING, retry_after_s=1)
        for exchange in tuple(self.active):
            if exchange.task is not None and (exchange.connection is None or exchange.call.is_behind):
                exchange.task.cancel()
            elif exchange.connection is not None:
                exchange.connection.fail(error)
        return len(self.active)
