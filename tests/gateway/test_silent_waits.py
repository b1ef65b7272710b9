"""Keep-alives and fillers where the silence is not the target's: limits, drains, callers that do not read."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_stage import Stage
from limits_rig import Authority, workers
from raw_caller import RawCaller
from silence_stage import BOTH, COMMENT, KEEP, _quiet, calling, late_head, masked, quiet
from streams_rig import events_in

from forebay.core.events import Outcome
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.core.routes import GatewayLimits
from forebay.testing.answers import chunk, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import chat_chunk, chat_stream, error_answer, event
from forebay.testing.steps import Gate, Stall, Wait

__all__ = ["_quiet", "quiet"]
PLACE = Limit(id="place", owner="project default/test", measure=Measure.CONCURRENT, amount=1)
TOKENS = Limit(
    id="tokens", owner="project default/test", measure=Measure.TOTAL_TOKENS, amount=10**6,
    period=Period.MONTH, kind=Kind.CALENDAR,
)  # fmt: skip
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
EVENTS = chat_stream(["Hel", "lo"], include_usage=False)


@pytest.fixture(scope="module")
def scene_of_limits(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Authority, GatewayProcess]]:
    """A worker that serves one request at a time."""
    folder: Path = tmp_path_factory.mktemp("limited")
    url = _stages[0].url
    routes = [masked(make_route("m", url)), masked(make_route("filled", url), BOTH)]
    limits = (PLACE, TOKENS)
    with Authority(folder, limits) as authority, workers(folder, 1, url, limits, routes=routes) as started:
        yield authority, started[0]


@pytest.fixture
def limited(scene_of_limits: tuple[Authority, GatewayProcess]) -> GatewayProcess:
    return scene_of_limits[1]


def occupy(limited: GatewayProcess, upstream: Stage) -> Gate:
    """Another request has the only place until the gate opens."""
    gate = Gate()
    upstream.next.append(late_head(gate, sse_answer(EVENTS)))
    upstream.answer = sse_answer(EVENTS)
    return gate


def test_a_request_that_waits_for_a_limit_hears_keep_alives(limited: GatewayProcess, upstream: Stage) -> None:
    gate = occupy(limited, upstream)
    with calling(limited, "chat/completions", CHAT) as first:
        upstream.wait_request()
        with calling(limited, "chat/completions", CHAT, "x-forebay-wait: 20") as caller:
            caller.read_until(COMMENT * 2)
            assert len(upstream.requests) == 1
            gate.open()
            reply = caller.read_all()
        first.read_all()
    assert bytes(reply.body).endswith(b"".join(EVENTS))
    assert b": x-forebay-waited-ms: " in reply.body
    assert limited.wait_record(reply.id).outcome is Outcome.OK


def test_a_request_that_waits_for_a_limit_has_a_filler(limited: GatewayProcess, upstream: Stage) -> None:
    gate = occupy(limited, upstream)
    with calling(limited, "chat/completions", CHAT) as first:
        upstream.wait_request()
        body = CHAT | {"model": "filled"}
        with calling(limited, "chat/completions", body, "x-forebay-wait: 20") as caller:
            caller.read_until("Well… ".encode())
            assert len(upstream.requests) == 1
            gate.open()
            reply = caller.read_all()
        first.read_all()
    said = [each["choices"][0]["delta"].get("content", "") for each in events_in(bytes(reply.body))[:-1]]
    assert "".join(said) == "Well… Hello"


def test_a_wait_for_a_limit_that_is_too_long_is_told_in_the_stream(
    limited: GatewayProcess, upstream: Stage
) -> None:
    gate = occupy(limited, upstream)
    with calling(limited, "chat/completions", CHAT) as first:
        upstream.wait_request()
        with calling(limited, "chat/completions", CHAT, "x-forebay-wait: 2") as caller:
            reply = caller.read_all()
        gate.open()
        first.read_all()
    assert COMMENT in reply.body
    assert events_in(bytes(reply.body))[-1]["error"]["code"] == "rate_limit_exceeded"
    assert b": x-forebay-attempts: 0\n" in reply.body
    record = limited.wait_record(reply.id)
    assert (record.status, record.outcome, record.error) == (200, Outcome.FAILED, "rate_limit_exceeded")


def test_tokens_of_a_failure_that_is_told_late_are_not_given_back(
    scene_of_limits: tuple[Authority, GatewayProcess], upstream: Stage
) -> None:
    """Nobody knows what a target did before it answered 500; that the caller got 200 says nothing of it."""
    authority, worker = scene_of_limits

    def spend(*, late: bool) -> int:
        before = authority.wait_settled("tokens")
        gate = Gate()
        upstream.answer = late_head(gate, error_answer(500)) if late else error_answer(500)
        with calling(worker, "chat/completions", CHAT | {"max_tokens": 1000}) as caller:
            if late:
                caller.read_until(COMMENT)
                gate.open()
            assert caller.read_all().status == (200 if late else 500)
        return before - authority.wait_settled("tokens")

    assert spend(late=True) == spend(late=False) > 1000


def test_a_caller_that_leaves_while_it_waits_for_a_limit_leaves_nothing(
    limited: GatewayProcess, upstream: Stage
) -> None:
    gate = occupy(limited, upstream)
    with calling(limited, "chat/completions", CHAT) as first:
        upstream.wait_request()
        with calling(limited, "chat/completions", CHAT, "x-forebay-wait: 20") as caller:
            caller.read_until(COMMENT)
            request_id = caller.reply.id
        assert limited.wait_record(request_id).outcome is Outcome.ABANDONED
        gate.open()
        first.read_all()
    limited.wait_idle()
    assert limited.metric("forebay_waiting") == 0


def test_a_caller_that_does_not_read_is_sent_no_keep_alives(quiet: GatewayProcess, upstream: Stage) -> None:
    gate = Gate()
    large = event(chat_chunk({"content": "x" * (8 << 20)}))
    upstream.answer = [*sse_head(), chunk(large), Wait(gate), *sse_answer(EVENTS)[1:]]
    with RawCaller(quiet.port, receive_buffer=4096) as caller:
        caller.post("chat/completions", CHAT)
        caller.read_head()
        upstream.answer = [Stall()]
        with calling(quiet, "chat/completions", CHAT) as other:
            other.read_until(COMMENT * 20)  # by then this one would have had as many
        gate.open()
        body = bytes(caller.read_all().body)
    assert body.replace(COMMENT, b"") == large + b"".join(EVENTS)
    # Once all before them was taken there may be some: one for each tenth of a second until the rest comes.
    assert body.startswith(large)
    assert body.count(COMMENT) <= 10


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_a_gateway_that_ends_tells_a_silent_stream(tmp_path: Path, upstream: Stage, path: str) -> None:
    upstream.answer = [Stall()]
    limits = GatewayLimits(drain_deadline_s=0.4)
    with GatewayProcess(
        [masked(make_route("m", upstream.url), KEEP)], folder=tmp_path, limits=limits
    ) as process:
        with calling(process, path, CHAT | {"max_tokens": 9}) as caller:
            caller.read_until(b"keep-alive" if path == "chat/completions" else b"ping")
            process.terminate()
            begun = time.monotonic()
            reply = caller.read_all()
        assert time.monotonic() - begun < 20
        assert "shutting down" in events_in(bytes(reply.body))[-1]["error"]["message"]
        upstream.wait_closed(upstream.requests[-1])
        assert process.wait() == 0
        record = process.wait_record(reply.id)
        assert (record.status, record.outcome, record.error) == (200, Outcome.FAILED, "gateway_draining")


def test_a_silent_stream_may_end_during_a_drain(tmp_path: Path, upstream: Stage) -> None:
    gate = Gate()
    upstream.answer = late_head(gate, sse_answer(EVENTS))
    with GatewayProcess([masked(make_route("m", upstream.url), KEEP)], folder=tmp_path) as process:
        with calling(process, "chat/completions", CHAT) as caller:
            caller.read_until(COMMENT)
            process.terminate()
            had = bytes(caller.reply.body).count(COMMENT)
            while bytes(caller.reply.body).count(COMMENT) < had + 2:
                caller.read()
            gate.open()
            reply = caller.read_all()
        assert bytes(reply.body).endswith(b"".join(EVENTS))
        assert process.wait() == 0
