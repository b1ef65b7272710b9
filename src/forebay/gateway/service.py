"""Carries one inference request: admit, send, answer, record.

The decisions are `policy`'s; this is the shell that acts on them.  It owns every request in flight and ends
each exactly once, with one record, whoever left, failed or was killed.  It must never send a request again
after content went out, and never let a caller's bytes wait on anything but the target.
"""

import asyncio
import logging
from collections.abc import Mapping

from forebay.core.clock import Clock
from forebay.core.errors import (
    CallerLeft,
    Draining,
    ForebayError,
    InternalError,
    RecordsUnwritable,
    RequestTimeout,
    TargetError,
    TotalTimeout,
)
from forebay.core.events import Finished, Outcome, Tokens, UsageSource
from forebay.core.routes import Endpoint
from forebay.gateway.call import Call, CallerGone
from forebay.gateway.intake import Intake
from forebay.gateway.model import Dialect, Exchange, RequestView, State, TargetState
from forebay.gateway.policy.attempt import Attempts, Step, choose_after_error, choose_after_status
from forebay.gateway.records import Recorder
from forebay.gateway.relay import Answer, Relay, read_answer

ERROR_START = b'{"error"'  #: how some engines begin an answer whose status says 200

logger = logging.getLogger("forebay.gateway")

BODY_MAX_NS = 60_000_000_000  #: how long a body may take to arrive
SWEEP_S = 0.1


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
        dialect: Dialect,
        recorder: Recorder,
        clock: Clock,
        worker: int,
        id_prefix: str,
    ) -> None:
        self.state = state
        self.active: set[Exchange] = set()
        self.recorder = recorder
        self.draining = False
        self._dialect = dialect
        self.intake = Intake(dialect, clock)
        self._relay = Relay(dialect, clock)
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._worker = worker
        self._id_prefix = id_prefix
        self._count = 0
        self._loop = asyncio.get_running_loop()

    # --- one request ----------------------------------------------------------------------------------------

    async def infer(self, call: Call, endpoint: Endpoint) -> None:
        """Serves one request; never raises."""
        self._count += 1
        exchange = Exchange(
            self.state,
            f"req_{self._id_prefix}{self._count:x}",
            call,
            endpoint,
            self._monotonic_ns(),
            self._clock.wall_ns(),
        )
        exchange.task = call.task
        call.on_left = exchange.leave
        self.active.add(exchange)
        intake = self.intake
        cells = exchange.state.cells
        cells.cells[cells.in_flight] += 1
        try:
            key = intake.authenticate(exchange.state, call)
            exchange.key = key.entry
            if self.recorder.is_full:
                raise RecordsUnwritable(
                    "usage can't be recorded at the moment (is the disk full?), so no requests are accepted",
                    retry_after_s=5,
                )
            body = call.take_body() if intake.is_whole(exchange) else await intake.read_body(exchange)
            exchange.reading = False
            await self._attempt_all(exchange, intake.admit(exchange, key, body), body)
        except ForebayError as error:
            self._answer_error(exchange, error)
        except CallerGone:
            self._answer_error(exchange, CallerLeft("the caller left"))
        except asyncio.CancelledError:
            self._answer_error(exchange, self._explain_cancel(exchange))
        except Exception:  # the outer edge: whatever went wrong in us, the caller gets an answer
            cells.cells[cells.internal_errors] += 1
            logger.exception("request %s failed in the gateway", exchange.id)
            self._answer_error(
                exchange, InternalError(f"the gateway failed; its log names the request {exchange.id}")
            )
        finally:
            self.active.discard(exchange)
            intake.release(exchange)
            cells.cells[cells.in_flight] -= 1
            if exchange.connection is not None:
                exchange.connection.abort()
            call.on_left = None

    # --- attempts -------------------------------------------------------------------------------------------

    async def _attempt_all(self, exchange: Exchange, view: RequestView, body: bytes) -> None:
        route = exchange.route
        assert route is not None
        exchange.deadline = self._loop.time() + route.total_s
        attempts = Attempts(
            made=0, limit=exchange.state.snapshot.table.attempts_max, targets_left=len(route.targets)
        )
        step = Step.NEXT
        at = -1
        while True:
            if step is Step.NEXT:
                at += 1
                attempts.made += 1
                attempts.targets_left -= 1
                attempts.resent = False
                exchange.attempts = attempts.made
            else:
                attempts.resent = True
            target = route.targets[at]
            exchange.target = target.target
            try:
                answer = await self._attempt(exchange, target, view, body, attempts)
            except TargetError as error:
                self._count_attempt(exchange, target, good=False)
                step = choose_after_error(attempts, error)
                if step is Step.STOP:
                    raise
                continue
            if answer is None:
                return
            self._count_attempt(exchange, target, good=False)
            step = choose_after_status(attempts, answer.status)
            if step is Step.STOP:
                self._finish_answer(exchange, target, answer)
                return

    async def _attempt(
        self,
        exchange: Exchange,
        target: TargetState,
        view: RequestView,
        body: bytes,
        attempts: Attempts,
    ) -> Answer | None:
        """One try; None when the caller has its answer, else the target's error answer."""
        if target.problem is not None:
            raise target.problem
        endpoint = exchange.endpoint
        timeouts = target.target.timeouts
        limits = exchange.state.snapshot.limits
        payload = self._dialect.encode_request(body, view, endpoint, target.target.model)
        head = target.heads[endpoint] + _build_head_rest(exchange.id, len(payload), exchange.call.headers)
        connection = None if attempts.resent else target.origin.pop_idle()
        if connection is None:
            begun = self._monotonic_ns()
            try:
                connection = await target.origin.connect(timeouts.connect_s)
            finally:
                exchange.waited_ns += self._monotonic_ns() - begun
        exchange.connection = connection
        if exchange.left:
            raise CallerLeft("the caller left")
        # A first-token timeout may not cut the last candidate short; nor a whole answer, whose first byte
        # comes when all tokens are there.
        first_s = timeouts.first_token_s if exchange.stream and attempts.targets_left > 0 else None
        target.origin.watch(connection, first_s, timeouts.idle_s, exchange.deadline)
        exchange.sent = True
        try:
            connection.send(head, payload, limits.answer_max_bytes)
            if exchange.stream:
                meter = self._dialect.new_meter(
                    hide_usage=not view.wants_usage, event_max_bytes=limits.event_max_bytes
                )
                answer = await self._relay.stream(
                    exchange, connection, meter, attempts, target.secret, self._finish_stream
                )
            else:
                begun = self._monotonic_ns()
                try:
                    whole = await connection.all()
                finally:
                    exchange.waited_ns += self._monotonic_ns() - begun
                answer = read_answer(connection, whole)
                if answer.status < 300 and whole.startswith(ERROR_START):
                    answer = self._relay.correct_status(answer)
        finally:
            exchange.connection = None
            connection.release()
        if answer is None:
            self._count_attempt(exchange, target, good=True)
            return None
        if answer.status >= 300:
            return answer
        self._count_attempt(exchange, target, good=True)
        self._finish_answer(exchange, target, answer)
        return None

    def _count_attempt(self, exchange: Exchange, target: TargetState, *, good: bool) -> None:
        exchange.state.cells.cells[target.cell_ok if good else target.cell_failed] += 1

    # --- answers --------------------------------------------------------------------------------------------

    def _finish_answer(self, exchange: Exchange, target: TargetState, answer: Answer) -> None:
        """Records and sends a whole answer, good or bad."""
        if answer.status < 300:
            tokens = self._dialect.read_answer(answer.body)
            if tokens is None:
                tokens = self._dialect.estimate_tokens(exchange.body_bytes, 0)
                exchange.usage_source = UsageSource.ESTIMATED
            else:
                exchange.usage_source = UsageSource.REPORTED
            exchange.tokens = tokens
            outcome, code = Outcome.OK, ""
        else:
            answer = self._relay.translate_error(answer, target.secret, exchange)
            outcome, code = Outcome.FAILED, answer.error_code
        exchange.answer_bytes = len(answer.body)
        # The record first: what the caller has seen is on record, whatever is killed next.
        self._end(exchange, answer.status, outcome, code)
        self._relay.send_whole(exchange, answer)

    def _finish_stream(self, exchange: Exchange, error: ForebayError | None) -> None:
        """Records a stream, before its last bytes go out."""
        if error is None:
            self._end(exchange, 200, Outcome.OK, "")
        elif isinstance(error, CallerLeft):
            self._end(exchange, error.status, Outcome.ABANDONED, error.code)
        else:
            self._end(exchange, 200, Outcome.FAILED, error.code)

    def _answer_error(self, exchange: Exchange, error: ForebayError) -> None:
        if exchange.recorded:
            return  # the answer is out already; what came after it concerns nobody
        left = isinstance(error, CallerLeft)
        if left:
            body = b""
        elif exchange.call.streaming:
            body = self._dialect.encode_error_event(error)
        else:
            body = self._dialect.encode_error(error)
        exchange.answer_bytes += len(body)
        if exchange.sent and exchange.tokens is None:
            # Somebody worked on it, and nobody will say how much: never count that as nothing.
            exchange.tokens = self._dialect.estimate_tokens(exchange.body_bytes, 0)
            exchange.usage_source = UsageSource.ESTIMATED
        streaming = exchange.call.streaming and not left
        status = 200 if streaming else error.status
        self._end(exchange, status, Outcome.ABANDONED if left else Outcome.FAILED, error.code)
        if streaming:
            exchange.call.end_stream(body)
        elif not left:
            self._relay.send_error(exchange, error, body)

    def _end(self, exchange: Exchange, status: int, outcome: Outcome, code: str) -> None:
        """The one place where a request becomes a record."""
        if exchange.recorded:
            return
        exchange.recorded = True
        key, target, route = exchange.key, exchange.target, exchange.route
        if key is None:
            return  # refused before we knew whose it was: counted, but nobody's to record
        duration = self._monotonic_ns() - exchange.started_ns
        record = Finished(
            request_id=exchange.id,
            at_ns=exchange.at_ns,
            key=key.id,
            project=key.project,
            team=key.team,
            endpoint=exchange.endpoint.value,
            model=exchange.model,
            target=target.id if target else "",
            pool=target.pool if target else "",
            tier=target.tier if target else "",
            route_hash=exchange.state.table_hash if route else "",
            stream=exchange.stream,
            status=status,
            outcome=outcome,
            error=code,
            attempts=exchange.attempts,
            tokens=exchange.tokens or Tokens(),
            usage_source=exchange.usage_source,
            first_token_ns=exchange.first_token_ns,
            duration_ns=duration,
            overhead_ns=max(0, duration - exchange.waited_ns),
            request_bytes=exchange.body_bytes,
            answer_bytes=exchange.answer_bytes,
            worker=self._worker,
        )
        self.recorder.record(record)
        exchange.state.cells.count_finished(exchange.cells, record)

    # --- all requests ---------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Looks at everything in flight: who is too late.  To be called every `SWEEP_S`."""
        now_ns = self._monotonic_ns()
        now = self._loop.time()
        for exchange in tuple(self.active):
            age = now_ns - exchange.started_ns
            late = exchange.deadline and now > exchange.deadline + 2 * SWEEP_S
            if (late or (exchange.reading and age > BODY_MAX_NS)) and exchange.task is not None:
                exchange.task.cancel()  # stuck on the caller: no deadline of the target's covers that
        self.recorder.retry()
        cells = self.state.cells
        cells.cells[cells.records_waiting] = self.recorder.waiting

    def cut_all(self) -> int:
        """Ends every request in flight, with an error in its dialect; returns how many."""
        self.draining = True
        error = Draining("the gateway is shutting down; send the request again", retry_after_s=1)
        for exchange in tuple(self.active):
            if exchange.connection is not None and not exchange.call.is_behind:
                exchange.connection.fail(error)
            elif exchange.task is not None:
                exchange.task.cancel()
        return len(self.active)

    def _explain_cancel(self, exchange: Exchange) -> ForebayError:
        if exchange.left:
            return CallerLeft("the caller left")
        if self.draining:
            return Draining("the gateway is shutting down; send the request again", retry_after_s=1)
        if exchange.reading:
            return RequestTimeout("the request body took too long to arrive")
        return TotalTimeout("the request did not finish in time")


def _build_head_rest(request_id: str, size: int, headers: Mapping[bytes, bytes]) -> bytes:
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
