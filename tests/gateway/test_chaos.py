"""Hundreds of requests at once, each with bad luck of its own: whatever happens, the books are in order.

The luck comes from a seed, which a failure names.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from gateway_stage import Stage
from raw_caller import RawCaller

from forebay.core.events import Finished, Outcome, UsageSource
from forebay.testing.answers import answer, chunk, drip, json_answer, malformed_answers, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import (
    DONE,
    chat_chunk,
    chat_completion,
    chat_stream,
    error,
    error_answer,
    event,
    rate_limited,
    usage,
    well_behaved,
)
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Reset, Script, Send, Sleep, Stall

MODELS = [
    "hasty",
    "hasty",
    "hasty-two",
    "hasty-two",
    "restless-two",
    "restless-two",
    "hasty-dead-first",
    "dead",
    "nobody",
]
CALLERS = 24
REQUESTS = 12  #: of each caller


def draw_answer(luck: random.Random) -> Callable[[RecordedRequest], Script]:
    """What a target may do; half of the time it is good."""
    content = [event(chat_chunk({"content": f"{n} "})) for n in range(luck.randrange(6))]
    scripts: list[Script] = [
        json_answer(chat_completion(tokens=usage(5, luck.randrange(9)))),
        sse_answer(chat_stream(["a", "b", "c"]), cut_every=luck.choice([1, 7, 50])),
        drip(sse_answer(chat_stream(["a", "b", "c"])), every=luck.choice([9, 64])),
        [*sse_head(), *map(chunk, content), luck.choice([Reset(), Close(), Stall()])],
        [*sse_head(), *map(chunk, content), chunk(event(error("boom"))), Send(b"0\r\n\r\n")],
        [*sse_head(), *map(chunk, content), Send(b"0\r\n\r\n")],
        [Sleep(luck.random()), *sse_answer([*content, DONE])],
        [luck.choice([Reset(), Close(), Stall()])],
        error_answer(luck.choice([400, 401, 404, 500, 503])),
        rate_limited(),
        luck.choice(list(malformed_answers().values())),
        answer(b"x" * 200_000, headers=[("content-type", "text/plain")]),
        json_answer(error("too long", code="context_length_exceeded")),
    ]
    script = luck.choice(scripts)
    good = well_behaved("Hel", "lo")
    return good if luck.random() < 0.5 else lambda _: script


class Caller(threading.Thread):
    """One caller: asks again and again, and leaves when it feels like it."""

    def __init__(self, gateway: GatewayProcess, seed: int) -> None:
        super().__init__()
        self.gateway = gateway
        self.luck = random.Random(seed)
        self.seen: dict[str, int] = {}  #: request id to status, of answers that came whole
        self.problems: list[str] = []

    def run(self) -> None:
        for _ in range(REQUESTS):
            try:
                self.ask()
            except (AssertionError, OSError) as problem:
                self.problems.append(repr(problem))

    def ask(self) -> None:
        luck = self.luck
        body = {"model": luck.choice(MODELS), "messages": [], "stream": luck.random() < 0.6}
        if luck.random() < 0.1:
            body["padding"] = "x" * 300_000
        with RawCaller(self.gateway.port) as caller:
            caller.post(luck.choice(["chat/completions", "completions"]), body)
            mood = luck.random()
            if mood < 0.15:
                time.sleep(luck.random() * 0.3)
                luck.choice([caller.close, caller.reset])()
                return
            caller.read_head()
            if mood < 0.3:
                time.sleep(luck.random() * 0.2)
                return
            reply = caller.read_all()
            self.check(reply, body)
            self.seen[reply.id] = reply.status

    def check(self, reply: Any, body: dict[str, Any]) -> None:
        """A whole answer is an error in the dialect, or ends as its kind ends."""
        assert reply.id.startswith("req_")
        if reply.status >= 400:
            assert set(reply.json()) == {"error"}, reply.body
        elif body["stream"] and (reply.header("content-type") or "").startswith("text/event-stream"):
            end = bytes(reply.body).rstrip().rsplit(b"data:", 1)[-1]
            assert b"[DONE]" in end or b'"error"' in end or b"finish_reason" in end, end


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_the_books_are_in_order(
    gateway: GatewayProcess, upstream: Stage, fallback: Stage, seed: int
) -> None:
    gateway.wait_idle()
    luck = random.Random(seed)
    for stage in (upstream, fallback):
        stage.next.extend(draw_answer(luck) for _ in range(2 * CALLERS * REQUESTS))
    before = {record.request_id for record in gateway.records()}
    counted = gateway.metric("forebay_requests_total")
    callers = [Caller(gateway, seed * 1000 + number) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [problem for caller in callers for problem in caller.problems] == [], f"seed {seed}"
    gateway.wait_idle()
    records = [record for record in gateway.records() if record.request_id not in before]
    by_id = {record.request_id: record for record in records}
    assert len(by_id) == len(records), "each request is recorded once"
    assert gateway.metric("forebay_requests_total") - counted == len(records)
    assert len(records) <= CALLERS * REQUESTS
    for caller in callers:
        for request_id, status in caller.seen.items():
            assert by_id[request_id].status == status
    for record in records:
        check_record(record)
    # Whether a caller left before its answer was there, the machine decides as well as the seed.
    assert {Outcome.OK, Outcome.FAILED} <= {record.outcome for record in records}, "the luck was mixed"
    # Whatever is still open towards the targets is kept for reuse, and not in use.
    for stage in (upstream, fallback):
        stage.next.clear()
        assert stage.upstream.connections_open <= 64


def check_record(record: Finished) -> None:
    match record.outcome:
        case Outcome.OK:
            assert record.status == 200
            assert record.error == ""
        case Outcome.ABANDONED:
            assert (record.status, record.error) == (499, "client_closed_request")
        case Outcome.FAILED:
            assert record.error
            assert record.status >= 400 or record.stream
    if record.usage_source is UsageSource.NONE:
        assert record.tokens.input_total == record.tokens.output_total == 0
    else:
        assert record.tokens.input_total > 0
        assert record.target
    assert record.attempts <= 2
    assert record.duration_ns > 0
    assert record.overhead_ns is not None
    assert 0 <= record.overhead_ns <= record.duration_ns
    if record.first_token_ns is not None:
        assert record.first_token_ns <= record.duration_ns
