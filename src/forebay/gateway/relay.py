"""Moves an answer from a target to its caller: whole, or as a stream with backpressure.

It reads what passes by through the dialect's meter and copies nothing that it need not.  Only headers on the
allow-list cross; a target's credentials never do, wherever the target may have put them.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import (
    AnswerTooLarge,
    CallerLeft,
    ForebayError,
    TargetError,
    UpstreamCredentials,
    UpstreamError,
    UpstreamProtocol,
    UpstreamRedirect,
    UpstreamTruncated,
)
from forebay.core.events import Tokens, UsageSource
from forebay.gateway.answers import (
    JSON_LENGTH,
    JSON_TYPE,
    STREAM_HEADERS,
    STREAM_TYPE,
    Answer,
    build_headers,
    build_late_headers,
    read_answer,
    redact,
    refuse_compressed,
)
from forebay.gateway.call import CallerGone
from forebay.gateway.metrics_layout import UNUSABLE
from forebay.gateway.model import Exchange, Meter, Reading
from forebay.gateway.passing import Passing
from forebay.net.connection import Connection

logger = logging.getLogger("forebay.gateway")

TOLD_MAX = 10_000  #: usage rules that are told of in the log
ERROR_TEXT_MAX = 1000  #: characters of a target's own words that are passed on when they are no JSON
END_MAX_S = 0.1  #: for a target to end a body of which all has been said; then its connection is closed


FinishStream = Callable[[Exchange, ForebayError | None], None]


class Relay:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monotonic_ns = clock.monotonic_ns
        self._told: set[tuple[str, str]] = set()  # usage rules whose values were of no use

    async def stream(
        self,
        exchange: Exchange,
        connection: Connection,
        meter: Meter,
        secret: bytes,
        finish: FinishStream,
    ) -> Answer | None:
        """Hands a stream on; None when the caller has had all of it.

        Before the first content an answer that is an error, or no stream, is returned instead.

        Args:
            secret: the target's credentials, which an error may echo and no caller may see.

        Raises:
            TargetError: the attempt failed before any content went out.
            CallerLeft: the caller left.
        """
        data = await self._read_some(exchange, connection)
        crossing = exchange.crossing
        stream_type = STREAM_TYPE if crossing is None else crossing.stream_type
        if connection.status != 200 or not connection.header(b"content-type").startswith(stream_type):
            connection.put_back(data)
            return await self._read_whole(exchange, connection)
        refuse_compressed(connection)
        # The head may be out already, for the sake of a caller that waits (`silence`): that decides nothing.
        # Another target may answer until the first content goes out, which `tries.content_sent` says.
        call, tries = exchange.call, exchange.tries
        passing = Passing(exchange, connection, meter, self._monotonic_ns)
        try:
            while True:
                ended = connection.complete
                out = passing.take_rest() + (meter.feed(data) if data else b"")
                if ended:
                    out += meter.finish()
                if not tries.content_sent and (meter.content_seen or ended or meter.error):
                    early = self._read_early_end(exchange, meter)
                    if early is not None:
                        return early
                    connection.content_seen = True
                    out = self._commit(
                        exchange,
                        connection.header(b"content-type") if stream_type == STREAM_TYPE else STREAM_TYPE,
                        meter,
                        out,
                    )
                # Many callers stop at the dialect's end: by then the answer has to be whole and on record.
                if ended or (meter.is_done and meter.error is None and not call.left):
                    break
                if out and tries.content_sent:
                    if meter.error is not None:
                        out = redact(out, secret)
                    if exchange.filler is not None:
                        out = exchange.filler.feed(out)
                    if out:
                        exchange.answer_bytes += len(out)
                        begun = self._monotonic_ns()
                        try:
                            await call.send(out)
                        finally:
                            exchange.waited_ns += self._monotonic_ns() - begun
                data = await self._read_more(exchange, connection, passing)
        except CallerGone:  # with a piece that it has not taken
            raise self._leave(exchange, meter) from None
        except CallerLeft:
            self._leave_after(exchange, meter, finish)
            return None
        except asyncio.CancelledError:
            if tries.content_sent:
                self._settle(exchange, meter)
            raise
        except ForebayError as error:
            if not tries.content_sent:
                raise
            self._end_broken(exchange, meter, finish, error)
            return None
        self._end_stream(exchange, meter, finish, out if meter.error is None else redact(out, secret))
        if not ended:
            await self._await_end(connection)
        return None

    async def _read_whole(self, exchange: Exchange, connection: Connection) -> Answer:
        """An answer that is no stream."""
        begun = self._monotonic_ns()
        try:
            whole = await connection.all()
        finally:
            exchange.waited_ns += self._monotonic_ns() - begun
        answer = read_answer(connection, whole, self._clock)
        if answer.status < 300:
            answer = self.correct_status(exchange, answer)
        if answer.status < 300 and exchange.call.streaming:
            raise UpstreamProtocol(
                "the target gave a whole answer to a request for a stream, which had begun already"
            )
        return answer if exchange.crossing is None else self.translate(exchange, answer)

    async def _await_end(self, connection: Connection) -> None:
        """Gives a target a moment for the body's own end, so that the connection can serve again.

        Many servers send it on its own, right behind the dialect's end.  What else still comes is dropped.
        """
        connection.spare = True
        connection.total_at = min(connection.total_at, asyncio.get_running_loop().time() + END_MAX_S)
        try:
            while not connection.complete:
                await connection.some()
        except ForebayError:
            pass  # the answer was whole: `release` closes the connection, and that is all

    def stream_at_once(
        self, exchange: Exchange, connection: Connection, meter: Meter, finish: FinishStream
    ) -> bool:
        """Hands on a stream that is here as a whole; False, with nothing done, if it needs a second look."""
        content_type = connection.header(b"content-type")
        if not content_type.startswith(STREAM_TYPE) or connection.header(b"content-encoding"):
            return False
        data = connection.take()
        try:
            out = meter.feed(data)
            out += meter.finish()
            is_plain = meter.content_seen and meter.error is None
        except AnswerTooLarge:
            is_plain = False
        if not is_plain:
            connection.put_back(data)
            return False
        out = self._commit(exchange, content_type, meter, out)
        self._end_stream(exchange, meter, finish, out)
        return True

    async def _read_some(self, exchange: Exchange, connection: Connection) -> bytes:
        begun = self._monotonic_ns()
        try:
            return await connection.some()
        finally:
            exchange.waited_ns += self._monotonic_ns() - begun

    async def _read_more(self, exchange: Exchange, connection: Connection, passing: Passing) -> bytes:
        """What comes next that `passing` does not send by itself."""
        if exchange.tries.content_sent and exchange.filler is None:
            await passing.run()
        return connection.take() if passing.has_stopped else await self._read_some(exchange, connection)

    def _commit(self, exchange: Exchange, content_type: bytes, meter: Meter, out: bytes) -> bytes:
        """From here on no other target may answer; gives what is to go out of the first content."""
        exchange.tries.content_sent = True
        if meter.content_seen:
            exchange.first_token_ns = self._monotonic_ns() - exchange.started_ns
            if exchange.load is not None:
                exchange.tell_first(asyncio.get_running_loop().time())
        if exchange.call.streaming:
            return build_late_headers(exchange) + out
        exchange.call.begin_stream(200, build_headers(exchange, content_type) + STREAM_HEADERS)
        return out

    def _read_early_end(self, exchange: Exchange, meter: Meter) -> Answer | None:
        """An error that came as the first event, as the answer with a status that it should have been.

        Raises:
            UpstreamTruncated: the stream was over before anything was said.
        """
        if meter.error is not None:
            status = exchange.spoken.read_error_status(meter.error)
            if exchange.crossing is not None:
                body = exchange.crossing.explain_error(exchange.dialect, meter.error, status)
                return Answer(status, JSON_TYPE, body)
            return Answer(status, JSON_TYPE, exchange.dialect.wrap_error(meter.error))
        if not meter.content_seen and not meter.ended_well:
            raise UpstreamTruncated("the target's stream ended before any content came")
        return None

    def _end_stream(self, exchange: Exchange, meter: Meter, finish: FinishStream, out: bytes) -> None:
        self._settle(exchange, meter)
        if exchange.filler is not None:
            out = exchange.filler.feed(out) + exchange.filler.finish()
        error: ForebayError | None = None
        if meter.error is not None:
            error = UpstreamError("the target ended its stream with an error")
            if not meter.error_told:
                out += exchange.dialect.encode_error_event(error)
        elif not meter.ended_well:
            error = UpstreamTruncated("the target's stream ended in the middle")
            out += exchange.dialect.encode_error_event(error)
        exchange.answer_bytes += len(out)
        finish(exchange, error)
        exchange.call.end_stream(out)

    def _end_broken(
        self,
        exchange: Exchange,
        meter: Meter,
        finish: FinishStream,
        error: ForebayError,
    ) -> None:
        """An error in a stream that has begun: told as an event, and no end that looks good."""
        self._settle(exchange, meter)
        out = b"" if exchange.filler is None else exchange.filler.finish()
        out += exchange.dialect.encode_error_event(error)
        exchange.answer_bytes += len(out)
        finish(exchange, error)
        exchange.call.end_stream(out)

    def _leave(self, exchange: Exchange, meter: Meter) -> CallerLeft:
        self._settle(exchange, meter)
        return CallerLeft("the caller left")

    def _leave_after(self, exchange: Exchange, meter: Meter, finish: FinishStream) -> None:
        """For a caller that left while more was awaited: the answer is whole where its end had been sent.

        Many clients stop reading there, and the target's last bytes bring them nothing.

        Raises:
            CallerLeft: it left in the middle.
        """
        committed = exchange.tries.content_sent
        if committed and meter.error is not None and meter.error_told:
            self._settle(exchange, meter)  # it left because of the error, as clients do
            finish(exchange, UpstreamError("the target ended its stream with an error"))
            return
        if not committed or meter.error is not None or not meter.ended_well:
            raise self._leave(exchange, meter) from None
        self._settle(exchange, meter)
        finish(exchange, None)

    def _settle(self, exchange: Exchange, meter: Meter) -> None:
        """What was spent: as the target said, else as far as we saw it."""
        reading = meter.reading
        tokens = meter.tokens if reading is None else self.take_reading(exchange, reading)
        if tokens is not None:
            exchange.tokens = tokens
            exchange.usage_source = UsageSource.REPORTED
        else:
            exchange.tokens = meter.partial or exchange.dialect.estimate_tokens(
                exchange.body, meter.content_events
            )
            exchange.usage_source = UsageSource.ESTIMATED

    def take_reading(self, exchange: Exchange, reading: Reading) -> Tokens | None:
        """Keeps the units of an answer and counts what each usage rule found; gives its tokens."""
        target = exchange.target_state.target.id
        exchange.units = reading.units
        for name, result in reading.found:
            exchange.state.cells.count_usage_rule(target, name, result)
            if result == UNUSABLE and (target, name) not in self._told and len(self._told) < TOLD_MAX:
                self._told.add((target, name))
                logger.warning(
                    "target %s: where the usage rule for %s points stands no whole number from 0 to 10^12; "
                    "such values are not counted, and not told again",
                    *(target, name),
                )
        return reading.tokens

    def correct_status(self, exchange: Exchange, answer: Answer) -> Answer:
        """An error that came with a good status, with the status that it should have had."""
        dialect = exchange.spoken
        error = dialect.read_error(answer.body)
        if error is None:
            return answer
        return msgspec.structs.replace(answer, status=dialect.read_error_status(error))

    def translate(self, exchange: Exchange, answer: Answer) -> Answer:
        """A target's answer in the caller's dialect, where that is another.

        Raises:
            UpstreamProtocol: it is no answer in the target's.
        """
        crossing = exchange.crossing
        if crossing is None or not crossing.is_translated:
            if answer.json_length.isdigit():
                exchange.limit_headers += f"{JSON_LENGTH.decode()}: {answer.json_length.decode()}\r\n"
            return answer
        if answer.status >= 300:
            status, after = crossing.read_error_head(answer.status, answer.retry_after, answer.body)
            body = crossing.decode_error(status, answer.body)
            return msgspec.structs.replace(answer, status=status, body=body, retry_after=after)
        body, reading = crossing.decode_answer(
            answer.body, exchange.target_state.target, exchange.body, exchange.id
        )
        return Answer(answer.status, JSON_TYPE, body, reading=reading)

    def translate_error(self, answer: Answer, secret: bytes, exchange: Exchange) -> Answer:
        """A target's error as the caller may see it: in the dialect, without credentials."""
        code = answer.error_code or f"upstream_{answer.status}"
        target = exchange.target.id if exchange.target else ""
        error: TargetError | None = None
        if answer.status in (401, 403):
            what = "refused the gateway's credentials"
            if exchange.target is not None and exchange.target.api_key is None:
                what = "wants credentials, and the gateway has none for it: set its `api_key` in forebay.yaml"
            error = UpstreamCredentials(f"the target {target} {what}")
        elif answer.status < 400:
            error = UpstreamRedirect(f"the target {target} answered with a redirect ({answer.status})")
        if error is not None:
            body = exchange.dialect.encode_error(error)
            return Answer(error.status, JSON_TYPE, body, error_code=error.code)
        if exchange.dialect.read_error(answer.body) is None:
            text = redact(answer.body, secret)[:ERROR_TEXT_MAX].decode("utf-8", "replace").strip()
            body = exchange.dialect.encode_error(
                UpstreamError(f"the target {target} answered {answer.status}: {text or 'no explanation'}")
            )
        else:
            body = redact(answer.body, secret)
        return Answer(answer.status, JSON_TYPE, body, answer.retry_after, code)

    def send_whole(self, exchange: Exchange, answer: Answer) -> None:
        headers = build_headers(exchange, answer.content_type or JSON_TYPE)
        if answer.retry_after:
            headers += f"retry-after: {answer.retry_after.decode()}\r\n"
        exchange.call.respond(answer.status, headers, answer.body)

    def send_error(self, exchange: Exchange, error: ForebayError, body: bytes) -> None:
        """An answer of our own."""
        headers = build_headers(exchange, JSON_TYPE)
        if error.retry_after_s is not None:
            headers += f"retry-after: {error.retry_after_s}\r\n"
        if error.status == 401:
            headers += "www-authenticate: Bearer\r\n"
        exchange.call.respond(error.status, headers, body)
