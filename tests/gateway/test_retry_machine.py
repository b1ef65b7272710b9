"""Random scripts of targets: whatever they do, what must hold of attempts holds."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from test_routing import CHAT, HEADERS, STREAM, Fleet

from forebay.core.routes import Choosing, Hedge, Order, RouteTable, Timeouts
from forebay.gateway.policy.budget import WINDOW_S
from forebay.testing.answers import chunk, json_answer, last_chunk, sse_head
from forebay.testing.openai import chat_chunk, error, event, rate_limited, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Reset, Script, Sleep, Stall
from forebay.testing.upstream import Answer

SHARE, LEAST = 0.5, 1.0
ATTEMPTS_MAX = 3
PLACES = ("a", "b", "c", "d")
ROLE = chunk(event(chat_chunk({"role": "assistant", "content": ""})))
HE = chunk(event(chat_chunk({"content": "He"})))
TOO_LONG = error("too long", type="invalid_request_error", code="context_length_exceeded")
GOOD = well_behaved("Hi")


def slow(request: RecordedRequest) -> Script:
    return [Sleep(0.12), *GOOD(request)]


#: What a target may do with one request; the name says whether the caller may see content of it.
DEEDS: dict[str, Answer] = {
    "good": GOOD,
    "slow": slow,
    "reset": [Reset()],
    "silent": [Stall()],
    "role, then reset": [*sse_head(), ROLE, Reset()],
    "role, then error": [*sse_head(), ROLE, chunk(event(error("no"))), last_chunk()],
    "content, then reset": [*sse_head(), HE, Sleep(0.02), Reset()],
    "400": json_answer(error("bad", type="invalid_request_error"), status=400),
    "500": json_answer(error("ill"), status=500),
    "429": rate_limited("0"),
    "too long": json_answer(TOO_LONG, status=400),
}


class Stage:
    """A worker and four places, of which each does what the test says."""

    def __init__(self, folder: Path, stack: ExitStack, hedge: Hedge | None) -> None:
        self.deeds = dict.fromkeys(PLACES, "good")
        self.fleet = Fleet(folder, stack)
        times = Timeouts(connect_s=1, first_token_s=0.4, idle_s=0.5, total_s=1.5)
        for number, name in enumerate(PLACES):
            tier = ("provisioned", "autoscaled", "quantized", "provider")[number]
            self.fleet.add(name, self.choose(name), tier=tier, context_window=8192 << number, timeouts=times)
        route = self.fleet.make_route(choosing=Choosing(order=Order.LOAD, hedge=hedge))
        self.fleet.start(route)
        gateway = self.fleet.gateway
        table = RouteTable(
            routes=(route,), attempts_max=ATTEMPTS_MAX, retry_budget=SHARE, retry_budget_min_per_s=LEAST
        )
        gateway.write_snapshot(msgspec.structs.replace(gateway.snapshot, table=table, price_book="b"))
        gateway.until(lambda: self.fleet.ask() and self.records()[-1].prices == "b")
        self.begun_s = time.monotonic()
        self.client = stack.enter_context(httpx.Client(headers=HEADERS, timeout=30))

    def records(self) -> list[Any]:
        return [each for each in self.fleet.gateway.records() if each.target]

    def choose(self, name: str) -> Answer:
        def answer(request: RecordedRequest) -> Script:
            chosen = DEEDS[self.deeds[name]]
            return chosen(request) if callable(chosen) else chosen

        return answer

    @property
    def asked(self) -> int:
        return sum(self.fleet.count().values())


def make_machine(stage: Stage) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        @rule(deeds=st.tuples(*[st.sampled_from(sorted(DEEDS))] * len(PLACES)), stream=st.booleans())
        def ask(self, deeds: tuple[str, ...], stream: bool) -> None:
            stage.deeds = dict(zip(PLACES, deeds, strict=True))
            before = stage.fleet.count()
            answer = stage.client.post(
                f"{stage.fleet.gateway.url}/chat/completions", json=STREAM if stream else CHAT
            )
            asked = stage.fleet.count() - before
            attempts = int(answer.headers["x-forebay-attempts"])
            assert 1 <= attempts <= ATTEMPTS_MAX
            # A stale connection may have been replaced: the place then never saw the request.
            assert sum(asked.values()) <= attempts
            assert max(asked.values(), default=0) <= 1, "no place is asked twice"
            said = [word for word in ("Hi", "He") if f'"{word}"' in answer.text]
            assert len(said) <= 1, "no answer of two places"
            assert answer.text.count('"role"') <= 1
            if "He" in said and answer.status_code == 200 and stream:
                assert "[DONE]" not in answer.text, "no other answer after content"
            record = stage.fleet.gateway.wait_record(answer.headers["x-request-id"])
            assert record.attempts == attempts

        @invariant()
        def nothing_is_left(self) -> None:
            gateway = stage.fleet.gateway
            gateway.wait_idle(15)
            found = stage.fleet.explain()["candidates"]
            assert [(each["requests"], each["tokens"]) for each in found] == [(0, 0)] * len(PLACES)
            records = stage.records()
            assert len({each.request_id for each in records}) == len(records)
            retries = sum(each.attempts - 1 for each in records)
            windows = 1 + (time.monotonic() - stage.begun_s) / WINDOW_S
            assert retries <= 2 * SHARE * len(records) + LEAST * WINDOW_S * windows
            assert "Traceback" not in gateway.log

    return Machine


HEDGE = Hedge(after_quantile=0.5, after_min_s=0.05, max_share=1.0)


@pytest.fixture(params=[None, HEDGE], ids=["plain", "hedged"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack, request.param)


def test_whatever_targets_do(stage: Stage) -> None:
    run_state_machine_as_test(
        make_machine(stage),
        settings=settings(
            max_examples=4,
            stateful_step_count=8,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
