"""How a request ends: one answer to the caller, one record, in that order of safety: the record first.

What a caller has seen is on record, whatever is killed next, unless the disk refuses records: then they wait
in memory.  Nothing here waits.
"""

import logging
from typing import cast

import msgspec

from forebay.core.clock import Clock
from forebay.core.errors import (
    CallerLeft,
    ConnectFailed,
    ConnectionsExhausted,
    ConnectTimeout,
    Draining,
    ForebayError,
    RecordsUnwritable,
    RequestTimeout,
    TotalTimeout,
    UpstreamError,
)
from forebay.core.events import Finished, Outcome, Tokens, UsageSource
from forebay.core.routes import MEDIA, Endpoint
from forebay.gateway.answers import JSON_TYPE, Answer, build_headers, build_late_headers, hide_secret
from forebay.gateway.dialect import FailingDialect, MeasuredView
from forebay.gateway.mirror_digest import compute_digest
from forebay.gateway.model import Exchange, Reading
from forebay.gateway.records import Recorder
from forebay.gateway.relay import Relay

logger = logging.getLogger("forebay.gateway")

DRAINING = "the gateway is shutting down; send the request again"
_NO_TOKENS = Tokens()


class Ending:
    """See the module.

    Args:
        worker: this worker's number, for the records.
    """

    def __init__(self, relay: Relay, recorder: Recorder, clock: Clock, worker: int) -> None:
        self._relay = relay
        self._recorder = recorder
        self._monotonic_ns = clock.monotonic_ns
        self._worker = worker

    def finish_answer(self, exchange: Exchange, secret: bytes, answer: Answer) -> None:
        """Records and sends a whole answer, good or bad.

        Args:
            secret: the target's credentials, which an error may echo and no caller may see.
        """
        if answer.status < 300:
            body = hide_secret(answer.body, secret)
            self.finish_good(exchange, answer.content_type, body, answer.status, answer.reading)
            return
        answer = self._relay.translate_error(answer, secret, exchange)
        if exchange.call.streaming:
            self._finish_in_stream(exchange, answer)
            return
        exchange.answer_bytes = len(answer.body)
        # The record first: what the caller has seen is on record, whatever is killed next.
        self._end(exchange, answer.status, Outcome.FAILED, answer.error_code)
        self._relay.send_whole(exchange, answer)

    def _finish_in_stream(self, exchange: Exchange, answer: Answer) -> None:
        """An error of a target to a caller that has had the head of a stream, and no content."""
        exchange.meant_status = answer.status
        out = build_late_headers(exchange) + exchange.dialect.wrap_error_event(answer.body)
        exchange.answer_bytes += len(out)
        self._end(exchange, 200, Outcome.FAILED, answer.error_code)
        exchange.call.end_stream(out)

    def finish_good(
        self,
        exchange: Exchange,
        content_type: bytes,
        body: bytes,
        status: int = 200,
        reading: Reading | None = None,
    ) -> None:
        """Records and sends a whole answer that is no error.

        Args:
            reading: what it cost, where that was read before it was translated.
        """
        rules = exchange.target_state.target.usage
        if reading is None and (rules or exchange.endpoint in MEDIA):
            reading = exchange.dialect.read_ruled_answer(rules, body)
        if reading is not None:
            tokens = self._relay.take_reading(exchange, reading)
        else:
            tokens = exchange.dialect.read_answer(body)
        if tokens is None:
            tokens = exchange.dialect.estimate_tokens(exchange.body, 0)
            exchange.usage_source = UsageSource.ESTIMATED
        else:
            exchange.usage_source = UsageSource.REPORTED
        exchange.tokens = tokens
        exchange.answer_bytes = len(body)
        if exchange.keeps_answer:
            exchange.answer = body
        if exchange.endpoint is Endpoint.RESPONSES and _has_failed(exchange, body):
            exchange.broken = UpstreamError("the target's response says that it failed")
            self._end(exchange, status, Outcome.FAILED, UpstreamError.code)
        else:
            self._end(exchange, status, Outcome.OK, "")
        exchange.call.respond(status, build_headers(exchange, content_type or JSON_TYPE), body)

    def finish_here(self, exchange: Exchange) -> None:
        """Records and sends a count of the prompt's tokens, by our own estimate: no target is asked."""
        tokens = exchange.dialect.estimate_tokens(exchange.body, 0)
        body = b'{"input_tokens":%d}' % (tokens.input or 0)
        exchange.answer_bytes = len(body)
        self._end(exchange, 200, Outcome.OK, "")
        exchange.call.respond(200, build_headers(exchange, JSON_TYPE), body)

    def finish_explained(self, exchange: Exchange, body: bytes) -> None:
        """Records and sends where a request would go: no target is asked."""
        exchange.answer_bytes = len(body)
        self._end(exchange, 200, Outcome.OK, "")
        exchange.call.respond(200, build_headers(exchange, JSON_TYPE), body)

    def finish_stream(self, exchange: Exchange, error: ForebayError | None) -> None:
        """Records a stream, before its last bytes go out."""
        if error is None:
            self._end(exchange, 200, Outcome.OK, "")
        elif isinstance(error, CallerLeft):
            self._end(exchange, error.status, Outcome.ABANDONED, error.code)
        else:
            exchange.broken = error
            self._end(exchange, 200, Outcome.FAILED, error.code)

    def answer_error(self, exchange: Exchange, error: ForebayError) -> None:
        """Records a request that ends with an error of ours, and tells it to whoever still listens."""
        call = exchange.call
        if exchange.recorded:
            if not call.done:
                call.abort()  # on record and not out: nothing else that the caller is told would be true
            return
        error = hide_address(error, exchange)
        left = isinstance(error, CallerLeft)
        if left:
            body = b""
        elif call.streaming:
            body = b"" if exchange.is_binary else exchange.dialect.encode_error_event(error)
            if not exchange.tries.content_sent:
                exchange.meant_status = error.status
                body = build_late_headers(exchange) + body
        else:
            body = exchange.dialect.encode_error(error)
        exchange.answer_bytes += len(body)
        if exchange.sent and exchange.tokens is None:
            # Somebody worked on it, and nobody will say how much: never count that as nothing.
            exchange.tokens = exchange.dialect.estimate_tokens(exchange.body, 0)
            exchange.usage_source = UsageSource.ESTIMATED
            if exchange.endpoint in MEDIA:
                exchange.units = cast(MeasuredView, exchange.view).guessed_units
        streaming = call.streaming and not left
        status = 200 if streaming else error.status
        self._end(exchange, status, Outcome.ABANDONED if left else Outcome.FAILED, error.code)
        try:
            if streaming and exchange.is_binary:
                call.cut()  # the caller shall see that its sound has no end
            elif streaming:
                call.end_stream(body)
            elif not left:
                self._relay.send_error(exchange, error, body)
        except Exception:  # the outer edge: not even the error can be told
            cells = exchange.state.cells
            cells.cells[cells.internal_errors] += 1
            logger.exception("request %s can't be answered", exchange.id)
            call.abort()

    def _end(self, exchange: Exchange, status: int, outcome: Outcome, code: str) -> None:
        """The one place where a request becomes a record."""
        if exchange.recorded:
            return
        exchange.recorded = True
        exchange.status = status
        key, target = exchange.key, exchange.target
        if code == RecordsUnwritable.code:
            exchange.state.cells.count_refusal(code)  # a record of it would have to wait as well
            return
        if key is None:
            return  # refused before we knew whose it was: counted, but nobody's to record
        duration = exchange.duration_ns = self._monotonic_ns() - exchange.started_ns
        name = pool = tier = region = version = experiment = variant = ""
        if target is not None:
            name, pool, tier, region = target.id, target.pool, target.tier, target.region
            version = target.version
        tags = exchange.view.tags if exchange.route else ()
        for tag, value in tags:
            if tag == "experiment":
                experiment = value
            elif tag == "variant":
                variant = value
        # By position, in the order of the fields.
        record = Finished(
            exchange.id,
            exchange.at_ns,
            key.id,
            key.project,
            key.team,
            exchange.endpoint,
            exchange.model,
            name,
            pool,
            tier,
            exchange.state.table_hash if exchange.route else "",
            exchange.stream,
            status,
            outcome,
            code,
            exchange.tries.made,
            exchange.tokens or _NO_TOKENS,
            exchange.usage_source,
            exchange.first_token_ns,
            duration,
            max(0, duration - exchange.waited_ns),
            exchange.body_bytes,
            exchange.answer_bytes,
            experiment,
            variant,
            self._worker,
            region,
            tags,
            exchange.units,
            version,
            exchange.asked_model,
            exchange.state.snapshot.price_book,
            "",  # of which it is a copy, and what came of that
            None,
            0,
            exchange.filler_ns,
            # The loop's clock, by which waits are measured, may be late by a turn of the loop.
            exchange.queued_ns if exchange.queued_ns < duration else duration,
        )
        if exchange.hedged:
            record = msgspec.structs.replace(
                record, hedged=exchange.hedged, hedged_tokens=exchange.hedged_tokens
            )
        if exchange.batch:
            record = msgspec.structs.replace(record, batch=exchange.batch)
        if exchange.mirror_of:
            self._recorder.record(_pair(exchange, record))
            return
        self._recorder.record(record)
        exchange.state.cells.count_finished(exchange.cells, record)


def _pair(exchange: Exchange, record: Finished) -> Finished:
    """The record of a copy, with what ties it to its request.  In no metric of requests is it counted."""
    expected, is_same = exchange.mirror_digest, None
    if expected is not None and exchange.answer:
        is_same = compute_digest(exchange.endpoint, exchange.answer) == expected
    return msgspec.structs.replace(
        record,
        mirror_of=exchange.mirror_of,
        mirror_same=is_same,
        mirrors_dropped=exchange.mirrors_dropped,
    )


def _has_failed(exchange: Exchange, body: bytes) -> bool:
    """Whether a response, which came with a good status, says that it failed."""
    return cast(FailingDialect, exchange.dialect).has_failed(body)


_UNREACHED: dict[type[ForebayError], str] = {
    ConnectFailed: "can't be reached",
    ConnectTimeout: "did not take a connection in time",
    ConnectionsExhausted: "has no connection left for this request",
}


def hide_address(error: ForebayError, exchange: Exchange) -> ForebayError:
    """The same error without the target's address, which is nobody's business but the log's."""
    told = _UNREACHED.get(type(error))
    if told is None or exchange.target is None:
        return error
    message = f"the target {exchange.target.id} {told}; the gateway's log says why"
    return type(error)(message, retry_after_s=error.retry_after_s)


def count_estimate(exchange: Exchange) -> None:
    """Counts a request's estimate beside what its target says that it took."""
    estimate, tokens = exchange.estimate, exchange.tokens
    if estimate is not None and tokens is not None and exchange.usage_source is UsageSource.REPORTED:
        exchange.state.cells.count_estimate(
            exchange.endpoint, estimate, tokens, names_output=exchange.names_output
        )


def explain_cancel(exchange: Exchange, *, draining: bool) -> ForebayError:
    """Why a request's task was ended from outside."""
    if exchange.left:
        return CallerLeft("the caller left")
    if draining:
        return Draining(DRAINING, retry_after_s=1)
    if exchange.reading:
        return RequestTimeout("the request body took too long to arrive")
    return TotalTimeout("the request did not finish in time")
