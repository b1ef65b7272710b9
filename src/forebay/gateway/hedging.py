"""Sends a request that is late to a second place as well, and lets the first content win.

It owns the time between sending and the first content of requests to models that hedge, and nothing after it:
then one attempt is left, which is the exchange's current one, and goes on as any other.  What it reads until
then it puts back.  Both attempts are closed in their places' loads exactly once, whoever wins, fails or
leaves.  `policy.hedging` says what is late; `policy.attempt` and the budget say whether a second place may be
asked.
"""

import asyncio
from collections.abc import Callable

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import ForebayError, StaleConnection, TargetError, UpstreamTruncated
from forebay.core.routes import Hedge
from forebay.gateway.answers import JSON_TYPE, STREAM_TYPE, Answer, read_answer
from forebay.gateway.deciding import Decider, is_overflow
from forebay.gateway.hedge_run import FIELDS, Run
from forebay.gateway.memory import Memory
from forebay.gateway.model import Dialect, Exchange, TargetState
from forebay.gateway.policy.attempt import Happened, Step, choose_step, name_error, name_status
from forebay.gateway.policy.hedging import Hedging
from forebay.gateway.speaking import Payload, encode_request
from forebay.net.connection import Connection

Send = Callable[[Exchange, TargetState, Connection, Payload], None]
CountFailure = Callable[[Exchange, TargetError | None], None]


class Verdict(msgspec.Struct, frozen=True):
    """What an attempt has shown: content, an error, or an answer that is one."""

    error: ForebayError | None = None
    answer: Answer | None = None
    is_too_long: bool = False  #: the answer says so of the request

    @property
    def is_good(self) -> bool:
        return self.error is None and self.answer is None

    @property
    def happened(self) -> Happened:
        if self.error is not None:
            return name_error(self.error) if isinstance(self.error, TargetError) else Happened.HOPELESS
        if self.answer is None:
            return Happened.ANSWERED
        if self.is_too_long:
            return Happened.TOO_LONG
        return name_status(self.answer.status)


class Hedger:
    """See the module.

    Args:
        send: sends the current attempt's request over a connection.
        count_failure: counts the current attempt as failed.
    """

    def __init__(
        self, decider: Decider, memory: Memory, clock: Clock, send: Send, count_failure: CountFailure
    ) -> None:
        self._decider = decider
        self._memory = memory
        self._clock = clock
        self._send = send
        self._count_failure = count_failure
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, Hedging] = {}  # by model; as many as the configuration names

    async def wait(self, exchange: Exchange, hedge: Hedge) -> Connection:
        """Waits for the first content of a request that has been sent; gives the connection to go on with.

        The exchange's current attempt is then the one that won, or the last one left.  What failed is told
        by that connection again.

        Raises:
            TargetError: the last attempt that was left has no connection to tell by.
            CancelledError: the request was ended; nothing but its current attempt is left.
        """
        known = self._find_known(exchange)
        known.begin(hedge.max_share)
        begun, begun_ns = self._loop.time(), self._clock.monotonic_ns()
        first = Run(exchange)
        first.is_current = True
        delay = known.find_delay(hedge.after_quantile, hedge.after_min_s, stream=exchange.stream)
        try:
            if delay is None:
                verdict = await self._peek(exchange, first)
            else:
                verdict = await self._wait_or_race(exchange, first, known, delay)
        finally:
            exchange.waited_ns += self._clock.monotonic_ns() - begun_ns
        if verdict.is_good:  # of one that lost, it is at least so long
            (known.first if exchange.stream else known.whole).see(self._loop.time() - begun)
        if exchange.connection is None:
            assert verdict.error is not None
            raise verdict.error
        return exchange.connection

    def _find_known(self, exchange: Exchange) -> Hedging:
        known = self._known.get(exchange.model)
        if known is None:
            routes = exchange.state.routes
            self._known = {name: each for name, each in self._known.items() if name in routes}
            known = self._known[exchange.model] = Hedging()
        return known

    async def _wait_or_race(self, exchange: Exchange, first: Run, known: Hedging, delay: float) -> Verdict:
        task = self._loop.create_task(self._peek(exchange, first))
        try:
            await asyncio.wait((task,), timeout=delay)
            if not task.done():
                second = self._begin_second(exchange, known)
                if second is not None:
                    return await self._race(exchange, (first, task), *second)
                await asyncio.wait((task,))
            return task.result()
        finally:
            await _stop(task)

    def _begin_second(self, exchange: Exchange, known: Hedging) -> tuple[Run, Payload] | None:
        """Counts an attempt at the next place, if one may be made."""
        decider, tries, route = self._decider, exchange.tries, exchange.route
        assert route is not None
        decider.complete_plan(exchange)
        target = decider.find_next(exchange)
        if target is None:
            return None
        has_budget = known.has_allowance and decider.has_room(exchange)
        if choose_step(tries, Happened.SILENT, has_budget=has_budget) is not Step.HEDGE:
            exchange.state.cells.count_hedge(exchange.model, "denied")
            return None
        before = {name: getattr(exchange, name) for name in FIELDS}
        held, exchange.translated_bytes = exchange.translated_bytes, 0  # both bodies are held until the end
        exchange.load = exchange.connection = None
        exchange.begin_attempt(self._loop.time())
        try:
            payload = encode_request(exchange, target, self._memory)
            second = Run(exchange)
        except ForebayError:  # it can't be told this, or there is no room: the first goes on alone
            tries.made -= 1
            tries.targets_left += 1
            if exchange.load is not None:
                exchange.end_load(self._loop.time())
            return None
        finally:
            exchange.translated_bytes += held
            for name, value in before.items():
                setattr(exchange, name, value)
        known.spend()
        decider.spend(exchange)
        return second, payload

    async def _race(
        self, exchange: Exchange, one: tuple[Run, asyncio.Task[Verdict]], second: Run, payload: Payload
    ) -> Verdict:
        """Ends with one attempt, which is the current one; what it has shown is given."""
        first, task = one
        other = self._loop.create_task(self._send_and_peek(exchange, second, payload))
        running = [(task, first), (other, second)]
        exchange.tries.has_other = True
        exchange.hedged = second.name
        result = "failed"
        try:
            while True:
                await asyncio.wait([each for each, _ in running], return_when=asyncio.FIRST_COMPLETED)
                won = self._sort_out(exchange, running)
                if won is not None:
                    break
            if won[1] is second:
                result = "won"
            elif len(running) > 1:
                result = "lost"
            return won[0].result()
        finally:
            exchange.tries.has_other = False
            now = self._loop.time()
            for each, run in running:
                await _stop(each)
                if not run.is_current:
                    if run.connection is not None:  # it may have cost as much as its prompt
                        exchange.hedged_tokens = exchange.dialect.estimate_tokens(exchange.body, 0).input or 0
                        run.note_silence(exchange, now)
                    run.close(exchange, now)
            exchange.state.cells.count_hedge(exchange.model, result)

    def _sort_out(
        self, exchange: Exchange, running: list[tuple[asyncio.Task[Verdict], Run]]
    ) -> tuple[asyncio.Task[Verdict], Run] | None:
        """Who has won, if one has; takes those out that have lost.  Of two at once it is the first."""
        for each in tuple(running):
            task, run = each
            if not task.done():
                continue
            verdict = task.result()
            if len(running) > 1 and not self._decides(exchange, run, verdict):
                running.remove(each)
                self._give_up(exchange, run, verdict, running[0][1])
                continue
            if not run.is_current:
                for _, loser in running:
                    if loser is not run:
                        loser.keep(exchange)
                        loser.is_current = False
                        exchange.hedged = loser.name
                run.is_current = True
                run.lend(exchange)
            return each
        return None

    def _decides(self, exchange: Exchange, run: Run, verdict: Verdict) -> bool:
        """Whether what one has shown ends the race although the other is under way."""
        if verdict.is_good:
            return True
        if verdict.error is not None and not isinstance(verdict.error, TargetError):
            return run.is_current  # the caller left, or the gateway ends: that is told over this one
        return choose_step(exchange.tries, verdict.happened).is_end

    def _give_up(self, exchange: Exchange, run: Run, verdict: Verdict, left: Run) -> None:
        """One has failed: it is told of, and the other goes on as the current one."""
        with run.stand_in(exchange):
            error = verdict.error if isinstance(verdict.error, TargetError) else None
            self._count_failure(exchange, error)
            if error is not None:
                self._decider.tell_error(exchange, error)
            elif verdict.answer is not None and verdict.happened is not Happened.TOO_LONG:
                self._decider.tell_status(exchange, verdict.answer)
        exchange.hedged = run.name
        run.close(exchange, self._loop.time())
        if run.is_current:
            run.is_current = False
            left.is_current = True
            left.lend(exchange)
        if left.connection is not None and not self._decider.has_way_on(exchange):
            left.connection.first_at = None  # it is the last candidate now

    async def _send_and_peek(self, exchange: Exchange, run: Run, payload: Payload) -> Verdict:
        origin, timeouts = run.target_state.origin, run.target_state.target.timeouts
        try:
            connection = origin.pop_idle()
            if connection is not None:
                verdict = await self._try(exchange, run, connection, payload)
                if not isinstance(verdict.error, StaleConnection):
                    return verdict
            left_s = run.deadline - self._loop.time()
            connection = await origin.connect(min(timeouts.connect_s, left_s))
            return await self._try(exchange, run, connection, payload)
        except ForebayError as error:
            return Verdict(error=error)

    async def _try(self, exchange: Exchange, run: Run, connection: Connection, payload: Payload) -> Verdict:
        try:
            with run.stand_in(exchange):
                self._send(exchange, run.target_state, connection, payload)
            verdict = await self._peek(exchange, run)
        except StaleConnection as error:
            verdict = Verdict(error=error)
        if isinstance(verdict.error, StaleConnection):
            connection.release()
            with run.stand_in(exchange):
                exchange.connection = None
        return verdict

    async def _peek(self, exchange: Exchange, run: Run) -> Verdict:
        """Waits until an attempt shows what it is, and puts back what was read for that."""
        connection = run.connection
        assert connection is not None
        try:
            if run.meter is not None:
                data = await connection.some()
                kind = STREAM_TYPE if run.crossing is None else run.crossing.stream_type
                if connection.status == 200 and connection.header(b"content-type").startswith(kind):
                    return await self._peek_stream(exchange, run, connection, data)
                connection.put_back(data)
            body = await connection.all()
        except ForebayError as error:
            return Verdict(error=error)
        connection.put_back(body)
        return self._judge(exchange, run, connection, body)

    async def _peek_stream(
        self, exchange: Exchange, run: Run, connection: Connection, data: bytes
    ) -> Verdict:
        meter, pieces = run.meter, [data]
        assert meter is not None
        error: ForebayError | None = None
        try:
            while True:
                ended = connection.complete
                if data:
                    meter.feed(data)
                if ended:
                    meter.finish()
                if meter.content_seen or meter.error is not None or ended:
                    break
                data = await connection.some()
                pieces.append(data)
        except ForebayError as caught:
            error = caught
        connection.put_back(b"".join(pieces))
        if error is not None:
            return Verdict(error=error)
        connection.content_seen = meter.content_seen
        if meter.error is not None:
            status = _find_spoken(exchange, run).read_error_status(meter.error)
            return _make_verdict(exchange, run, Answer(status, JSON_TYPE, meter.error))
        if meter.content_seen or meter.ended_well:
            return Verdict()
        return Verdict(error=UpstreamTruncated("the target's stream ended before any content came"))

    def _judge(self, exchange: Exchange, run: Run, connection: Connection, body: bytes) -> Verdict:
        """What a whole answer is."""
        answer = read_answer(connection, body, self._clock)
        spoken, crossing = _find_spoken(exchange, run), run.crossing
        if answer.status < 300:
            error = spoken.read_error(body) if body.startswith(spoken.ERROR_START) else None
            if error is None:
                return Verdict()
            answer = msgspec.structs.replace(answer, status=spoken.read_error_status(error))
        elif crossing is not None:
            status, after = crossing.read_error_head(answer.status, answer.retry_after, body)
            answer = msgspec.structs.replace(answer, status=status, retry_after=after)
        return _make_verdict(exchange, run, answer)


def _make_verdict(exchange: Exchange, run: Run, answer: Answer) -> Verdict:
    return Verdict(answer=answer, is_too_long=is_overflow(exchange, run.target_state, answer))


def _find_spoken(exchange: Exchange, run: Run) -> Dialect:
    """What is read of an answer before it is translated."""
    return run.crossing.inner if run.crossing and run.crossing.is_translated else exchange.dialect


async def _stop(task: asyncio.Task[Verdict]) -> None:
    """Ends a task, and waits until it has."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # it was read, or is of no interest any more
