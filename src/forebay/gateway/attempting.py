"""Sends a request to one target after another, until its caller has an answer.

What comes after a failure is `policy.attempt`'s to decide, and where to is `choosing`'s; this carries it out.
It must never send a request again after content went out.
"""

import asyncio
from typing import cast

from forebay.core.clock import Clock
from forebay.core.errors import CallerLeft, Fault, StaleConnection, TargetError
from forebay.core.routes import MEDIA, Endpoint
from forebay.gateway.answers import Answer, read_answer, refuse_compressed
from forebay.gateway.choosing import Chooser
from forebay.gateway.deciding import Decider, explain_overflow
from forebay.gateway.dialect import MeasuredView
from forebay.gateway.ending import Ending
from forebay.gateway.hedging import Hedger
from forebay.gateway.memory import Memory
from forebay.gateway.model import Exchange, TargetState
from forebay.gateway.policy.attempt import Step
from forebay.gateway.policy.load import OUTPUT_GUESS
from forebay.gateway.relay import Relay
from forebay.gateway.relay_binary import BinaryRelay, refuse_others
from forebay.gateway.speaking import Payload, encode_request, new_meter, write_head
from forebay.gateway.trouble import TroubleLog
from forebay.net.connection import Connection


class Attempter:
    """See the module."""

    def __init__(
        self, chooser: Chooser, decider: Decider, relay: Relay, ending: Ending, memory: Memory, clock: Clock
    ) -> None:
        self._chooser = chooser
        self._decider = decider
        self._relay = relay
        self._binary = BinaryRelay(relay, clock)
        self._ending = ending
        self._memory = memory
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._loop = asyncio.get_running_loop()
        self._troubles = TroubleLog(self._loop)
        self._hedger = Hedger(decider, memory, clock, self.send, self._count_failure)

    async def run(self, exchange: Exchange) -> None:
        if not await self._chooser.prepare_whole(exchange):
            self._ending.finish_explained(exchange, self._chooser.explain(exchange))
            return
        tries = exchange.tries
        if exchange.endpoint is Endpoint.COUNT_TOKENS and not exchange.target_state.counts_tokens:
            self._ending.finish_here(exchange)
            return
        if exchange.endpoint in MEDIA:  # whose bytes say little of what they take
            guess = cast(MeasuredView, exchange.view).input_tokens + OUTPUT_GUESS
            exchange.load_tokens = exchange.load_tokens or guess
        while True:
            if exchange.connection is None and not tries.resent:
                exchange.begin_attempt(self._loop.time())
            target = exchange.target_state
            try:
                answer = await self._attempt(exchange, target)
            except TargetError as error:
                if error.fault is Fault.TARGET:
                    self._count_failure(exchange, error)
                step = await self._decider.decide_after_error(exchange, error)
                if step.is_end:
                    raise
                tries.resent = step is Step.SAME
                if tries.resent and tries.made == 1:
                    exchange.sent = False  # no target has seen it yet
                continue
            if answer is None:
                return
            target = exchange.target_state
            self._count_failure(exchange)
            step = await self._decider.decide_after_status(exchange, answer)
            if step.is_end:
                self._ending.finish_answer(exchange, target.secret, explain_overflow(exchange, answer))
                return
            tries.resent = False

    async def try_once(self, exchange: Exchange) -> None:
        """The attempt that has begun, and no other: what it brings is the answer.

        Raises:
            TargetError: it brings none.
        """
        target = exchange.target_state
        try:
            try:
                answer = await self._attempt(exchange, target)
            except StaleConnection:  # nobody has seen it
                exchange.tries.resent = True
                answer = await self._attempt(exchange, target)
        except TargetError as error:
            self._count_failure(exchange, error)
            raise
        if answer is not None:
            self._count_failure(exchange)
            self._ending.finish_answer(exchange, target.secret, answer)

    async def _attempt(self, exchange: Exchange, target: TargetState) -> Answer | None:
        """One try; None when the caller has its answer, else the target's error answer.

        A request that has been sent already, from where it began, is only waited for.
        """
        problem = target.problem
        if problem is not None:
            raise type(problem)(problem.message)  # not itself: it would keep each request that it ended
        connection = exchange.connection
        try:
            if connection is None:
                payload = encode_request(exchange, target, self._memory)
                connection = await self._acquire(exchange, target)
                self.send(exchange, target, connection, payload)
                hedge = None if exchange.route is None else exchange.route.hedge
                if hedge is not None and self._may_hedge(exchange):
                    connection = None  # the hedger's, until it says which one goes on
                    connection = await self._hedger.wait(exchange, hedge)
                    target = exchange.target_state
            if exchange.endpoint is Endpoint.SPEECH:
                answer = await self._binary.stream(
                    exchange, connection, target.secret, self._ending.finish_stream
                )
            elif exchange.stream:
                answer = await self._relay.stream(
                    exchange, connection, new_meter(exchange), target.secret, self._ending.finish_stream
                )
            else:
                answer = await self._wait_whole(exchange, connection)
        finally:
            load = exchange.load
            if load is not None and load.account is not None and exchange.first_token_ns is None:
                exchange.hear_quota(self._loop.time())
            if exchange.connection is not None:
                connection = exchange.connection
            exchange.connection = None
            if connection is not None:
                connection.release()
        if answer is None:
            self.count_stream(exchange)
            return None
        if answer.status >= 300:
            return answer
        if exchange.endpoint in MEDIA:
            refuse_others(answer.content_type)
        self._ending.finish_answer(exchange, target.secret, answer)
        self._count_attempt(exchange, good=exchange.broken is None)
        if exchange.outpaced is not None:
            exchange.tell_outpaced(self._loop.time())
        return None

    def _may_hedge(self, exchange: Exchange) -> bool:
        """Not what costs much, no copy for a mirror, and no request of which a place was asked already."""
        return exchange.tries.made == 1 and exchange.endpoint not in MEDIA and not exchange.mirror_of

    async def _acquire(self, exchange: Exchange, target: TargetState) -> Connection:
        connection = None if exchange.tries.resent else target.origin.pop_idle()
        if connection is not None:
            return connection
        begun = self._monotonic_ns()
        try:
            left_s = exchange.deadline - self._loop.time()
            return await target.origin.connect(min(target.target.timeouts.connect_s, left_s))
        finally:
            exchange.waited_ns += self._monotonic_ns() - begun

    def send(
        self,
        exchange: Exchange,
        target: TargetState,
        connection: Connection,
        payload: Payload,
    ) -> None:
        exchange.connection = connection
        if exchange.left:
            raise CallerLeft("the caller left")
        timeouts = target.target.timeouts
        head = write_head(exchange, target, payload, self._clock)
        # Not for a whole answer, whose first byte comes when all its tokens are there.
        first_s = timeouts.first_token_s if exchange.stream and self._decider.has_way_on(exchange) else None
        target.origin.watch(connection, first_s, timeouts.idle_s, exchange.deadline)
        connection.send(head, payload, exchange.state.snapshot.limits.answer_max_bytes, self._memory)
        exchange.sent = True

    async def _wait_whole(self, exchange: Exchange, connection: Connection) -> Answer:
        begun = self._monotonic_ns()
        try:
            whole = await connection.all()
        finally:
            exchange.waited_ns += self._monotonic_ns() - begun
        if not whole.startswith(b"{"):
            refuse_compressed(connection)
        answer = read_answer(connection, whole, self._clock)
        crossing = exchange.crossing
        if answer.status < 300 and (crossing is not None or whole.startswith(exchange.dialect.ERROR_START)):
            answer = self._relay.correct_status(exchange, answer)
        return answer if crossing is None else self._relay.translate(exchange, answer)

    def _count_failure(self, exchange: Exchange, error: TargetError | None = None) -> None:
        """Counts the current attempt as failed."""
        self._count_attempt(exchange, good=False)
        if error is not None:
            self._troubles.tell(exchange.target_state.target.id, error)

    def _count_attempt(self, exchange: Exchange, *, good: bool) -> None:
        target = exchange.target_state
        exchange.state.cells.cells[target.cell_ok if good else target.cell_failed] += 1

    def count_stream(self, exchange: Exchange) -> None:
        """Counts an attempt whose stream the caller has had, up to where it broke."""
        broken = exchange.broken if isinstance(exchange.broken, TargetError) else None
        self._count_attempt(exchange, good=broken is None)
        if broken is not None:
            self._decider.tell_error(exchange, broken)
            self._troubles.tell(exchange.target_state.target.id, broken)
