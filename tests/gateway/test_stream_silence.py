"""Streams that fall silent or never end: which timeout ends which part, and what comes behind the end."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_stage import Stage
from streams_rig import CONTENT, ask, assert_broken

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.testing.answers import chunk, json_answer, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess
from forebay.testing.openai import (
    DONE,
    chat_chunk,
    chat_completion,
    chat_stream,
    event,
    usage,
    usage_chunk,
)
from forebay.testing.steps import Send, Sleep, Stall


def test_silence_in_mid_stream_ends_it_with_an_error(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = [*sse_head(), *map(chunk, CONTENT), Stall()]
    begun = time.monotonic()
    answer = ask(client, model="brief")
    assert 0.35 < time.monotonic() - begun < 10
    assert_broken(answer.content, "upstream_idle_timeout")
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.error) == (Outcome.FAILED, "upstream_idle_timeout")
    upstream.wait_closed(upstream.request)


@pytest.mark.parametrize("keeps_alive", [event(chat_chunk({"content": "."})), b": still here\n\n"])
def test_every_event_puts_the_idle_timeout_off(
    client: httpx.Client, upstream: Stage, keeps_alive: bytes
) -> None:
    said = [*CONTENT, *[keeps_alive] * 5, DONE]
    upstream.answer = sse_answer(said, pause_s=0.4)  # together longer than the timeout
    assert ask(client, model="steady").content == b"".join(said)


def test_a_first_token_timeout_hands_over_to_the_next_target(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str]
) -> None:
    model = fresh("brief-two")
    for steps in ([Stall()], [*sse_head(), Stall()], [*sse_head(), chunk(CONTENT[0]), Stall()]):
        upstream.answer = steps
        answer = ask(client, model=model)
        assert answer.content == b"".join(chat_stream(["Hel", "lo"], model=model, include_usage=False))
        upstream.wait_closed(upstream.requests[-1])


def test_a_first_token_timeout_does_not_cut_the_last_candidate_short(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str]
) -> None:
    late = [Sleep(0.8), *sse_answer(chat_stream(["late"], include_usage=False))]
    upstream.answer = late
    assert b"late" in ask(client, model="brief").content
    upstream.answer = [Stall()]
    fallback.answer = late
    assert b"late" in ask(client, model=fresh("brief-two")).content


@pytest.mark.parametrize("stream", [True, False])
def test_a_head_that_comes_early_starts_no_idle_timeout(
    client: httpx.Client, upstream: Stage, stream: bool
) -> None:
    """A server may send its head at once and then work on a long prompt."""
    said = chat_stream(["late"], include_usage=False)
    body = json_answer(chat_completion("late")) if not stream else sse_answer(said)
    data = b"".join(step.data for step in body if isinstance(step, Send))
    head, _, rest = data.partition(b"\r\n\r\n")
    upstream.answer = [Send(head + b"\r\n\r\n"), Sleep(0.8), Send(rest)]
    answer = ask(client, model="brief", stream=stream)
    assert (answer.status_code, b"late" in answer.content) == (200, True)


def test_preamble_events_do_not_count_as_the_first_token(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str]
) -> None:
    upstream.answer = [*sse_head(), *[chunk(b": wait\n\n"), Sleep(0.1)] * 300, Stall()]
    begun = time.monotonic()
    assert ask(client, model=fresh("brief-two")).status_code == 200
    assert time.monotonic() - begun < 15
    assert len(fallback.requests) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_the_total_timeout_ends_an_attempt_and_the_next_target_has_its_own(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage, fallback: Stage, stream: bool
) -> None:
    upstream.answer = [Stall()]
    late = sse_answer(chat_stream(["late"])) if stream else json_answer(chat_completion("late"))
    fallback.answer = late  # the first has used up all that one has
    answer = ask(client, model="total", stream=stream)
    assert b"late" in answer.content
    assert answer.headers["x-forebay-attempts"] == "2"
    upstream.wait_closed(upstream.request)
    fallback.answer = [Stall()]
    begun = time.monotonic()
    answer = ask(client, model="total", stream=stream)
    assert 1.1 < time.monotonic() - begun < 9, "no longer than the two may take together"
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_total_timeout")
    fallback.wait_closed(fallback.requests[1])
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.usage_source, record.attempts) == (UsageSource.ESTIMATED, 2)


def test_the_total_timeout_covers_connecting(client: httpx.Client, upstream: Stage) -> None:
    begun = time.monotonic()
    assert ask(client, model="hole-total").headers["x-forebay-attempts"] == "2"
    assert 0.25 < time.monotonic() - begun < 7.5


def test_the_total_timeout_ends_an_endless_stream_with_an_error(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    def endless(_: object) -> Any:
        yield from sse_head()
        while True:
            yield chunk(CONTENT[1])
            yield Sleep(0.005)

    upstream.answer = endless
    answer = ask(client, model="total")
    assert_broken(answer.content, "upstream_total_timeout")
    upstream.wait_closed(upstream.request)
    record = gateway.wait_record(answer.headers["x-request-id"])
    assert (record.tokens.output or 0) >= 1


def test_a_connect_that_never_ends_is_given_up(client: httpx.Client, upstream: Stage) -> None:
    answer = ask(client, model="hole-brief")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_connect_timeout")
    assert ask(client, model="hole-first").headers["x-forebay-attempts"] == "2"


def test_a_whole_answer_may_take_longer_than_a_first_token(
    client: httpx.Client, upstream: Stage, fallback: Stage, fresh: Callable[[str], str]
) -> None:
    upstream.answer = [Sleep(0.8), *json_answer(chat_completion("late"))]
    answer = ask(client, model=fresh("brief-two"), stream=False)
    assert answer.json()["choices"][0]["message"]["content"] == "late"
    assert not fallback.requests


def test_usage_that_comes_with_the_end_and_behind_it_is_counted(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    events = [*chat_stream(["x"], include_usage=False), event(usage_chunk(usage(4, 2)))]
    upstream.answer = sse_answer([b"".join(events)])
    record = gateway.wait_record(ask(client).headers["x-request-id"])
    assert record.tokens == Tokens(input=4, output=2)
