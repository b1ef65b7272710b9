"""Requests that are late at one place and are sent to a second one: every way in which that can end."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import pytest
from fleet import make_request
from raw_caller import RawCaller
from test_routing import CHAT, HEADERS, STREAM, Fleet
from test_routing import fleet as fleet

from forebay.core.events import Finished, Outcome, Tokens, UsageSource
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.core.routes import Choosing, Endpoint, GatewayLimits, Hedge, Order, Route, RouteTable, Timeouts
from forebay.gateway.lease import Lease
from forebay.gateway.needs import Needs
from forebay.providers import openai
from forebay.testing import anthropic
from forebay.testing.answers import chunk, json_answer, sse_answer, sse_head
from forebay.testing.gateway import make_key
from forebay.testing.openai import (
    chat_chunk,
    chat_completion,
    chat_stream,
    error,
    error_answer,
    event,
    rate_limited,
    well_behaved,
)
from forebay.testing.steps import Gate, Reset, Script, Stall, Step, Wait
from forebay.testing.upstream import Answer

LATE_S = 0.15
HEDGE = Hedge(after_quantile=0.95, after_min_s=LATE_S, max_share=1.0)
BODIES = {"whole": CHAT, "stream": STREAM}
HEDGE_RESULTS = ("won", "lost", "failed", "denied")
both = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


class Scene:
    """Two or three places, of which the first was quick so far."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def start(
        self,
        second: Answer,
        *more: Answer,
        hedge: Hedge = HEDGE,
        dialect: str = "openai",
        limits: GatewayLimits | None = None,
        quotas: tuple[Limit, ...] = (),
        warm: int = 21,
        share: float = 0.2,
        **facts: Any,
    ) -> None:
        names = ("provisioned", "autoscaled", "quantized")
        good = anthropic.well_behaved("Hi") if dialect == "anthropic" else well_behaved("Hi")
        for number, answer in enumerate((good, second, *more)):
            fleet_facts = {"dialect": dialect} if number < 2 else {}
            self.fleet.add(f"p{number}", answer, tier=names[number], **fleet_facts, **facts)
        route = self.fleet.make_route(choosing=Choosing(order=Order.LOAD, hedge=hedge))
        route = msgspec.structs.replace(route, endpoints=tuple(Endpoint))
        keys = [msgspec.structs.replace(make_key(), limits=tuple(each.id for each in quotas))]
        self.fleet.start(route, keys=keys, quotas=quotas, limits=limits)
        if share != 0.2:
            self.set_budget(route, share)
        url = f"{self.fleet.gateway.url}/chat/completions"
        with httpx.Client(headers=HEADERS) as client:
            for body in BODIES.values():
                for _ in range(warm):
                    assert client.post(url, json=body).status_code == 200
        self.fleet.gateway.wait_idle()
        # On a busy machine one of those may have been late, too.
        self.hedges_before = {result: self.count_hedges(result) for result in HEDGE_RESULTS}
        self.before = self.fleet.count()
        self.known = len(self.records())

    def set_budget(self, route: Route, share: float) -> None:
        gateway = self.fleet.gateway
        table = RouteTable(routes=(route,), retry_budget=share, retry_budget_min_per_s=0.0)
        gateway.write_snapshot(msgspec.structs.replace(gateway.snapshot, table=table, price_book="b"))
        gateway.until(lambda: self.fleet.ask() and self.records()[-1].prices == "b")

    def records(self) -> list[Finished]:
        return [each for each in self.fleet.gateway.records() if each.target]

    @property
    def record(self) -> Finished:
        """The one of what was asked after the start."""
        found = self.fleet.gateway.until(lambda: self.records()[self.known :])
        assert len(found) == 1, found
        return found[0]

    def count(self) -> list[int]:
        now = self.fleet.count() - self.before
        return [now[name] for name in self.fleet.upstreams]

    def enqueue(self, number: int, script: Script) -> None:
        self.fleet.upstreams[f"p{number}"].enqueue(script)

    def wait_closed(self, number: int, within_s: float = 30.0) -> None:
        """The gateway has let the place's last request go."""
        upstream = self.fleet.upstreams[f"p{number}"]
        record = upstream.connections[upstream.requests[-1].connection]
        upstream.wait_until(lambda: record.closed_by_peer_at_s is not None, within_s)

    def wait_failed(self, number: int) -> None:
        """The gateway has counted an attempt there as failed."""
        name = f"p{number}#0"
        metric = self.fleet.gateway.metric
        self.fleet.gateway.until(lambda: metric("forebay_attempts_total", target=name, result="failed") == 1)

    def assert_closed(self) -> None:
        """Nothing is in flight any more, by any count."""
        self.fleet.gateway.wait_idle()
        found = self.fleet.explain()["candidates"]
        assert [(each["requests"], each["tokens"]) for each in found] == [(0, 0)] * len(found)
        assert "Traceback" not in self.fleet.gateway.log

    def hedges(self, result: str) -> float:
        return self.count_hedges(result) - self.hedges_before[result]

    def count_hedges(self, result: str) -> float:
        return self.fleet.gateway.metric("forebay_hedges_total", model="m", result=result)


@pytest.fixture
def scene(fleet: Fleet) -> Scene:
    return Scene(fleet)


def say(text: str, *, stream: bool, tokens: int = 1) -> Script:
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    if stream:
        return sse_answer(chat_stream([text], tokens=usage))
    return json_answer(chat_completion(text, tokens=usage))


def after(gate: Gate, script: Script) -> list[Step]:
    return [Wait(gate), *script]


# --- who wins -----------------------------------------------------------------------------------------------


@both
def test_the_second_place_answers_and_the_first_is_let_go(scene: Scene, body: dict[str, Any]) -> None:
    scene.start(well_behaved("second"))
    scene.enqueue(0, [Stall()])
    begun = time.monotonic()
    answer = scene.fleet.ask(body)
    assert time.monotonic() - begun >= LATE_S
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")
    assert "second" in answer.text
    scene.wait_closed(0)
    record = scene.record
    assert (record.target, record.hedged, record.attempts) == ("p1#0", "p0#0", 2)
    assert (record.outcome, record.usage_source) == (Outcome.OK, UsageSource.REPORTED)
    assert record.hedged_tokens > 0
    assert (record.first_token_ns is not None) == bool(body.get("stream"))
    assert scene.count() == [1, 1]
    scene.assert_closed()
    assert scene.hedges("won") == 1


@both
def test_the_first_place_answers_after_all_and_the_second_is_let_go(
    scene: Scene, body: dict[str, Any]
) -> None:
    gate = Gate()
    scene.start(well_behaved("no"))
    scene.enqueue(0, after(gate, say("first", stream=bool(body.get("stream")))))
    scene.enqueue(1, [Stall()])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(scene.fleet.ask, body)
        scene.fleet.gateway.until(lambda: scene.count() == [1, 1])
        gate.open()
        answer = asked.result()
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")
    assert "first" in answer.text
    scene.wait_closed(1)
    record = scene.record
    assert (record.target, record.hedged) == ("p0#0", "p1#0")
    assert record.tokens.input == 7
    scene.assert_closed()
    assert scene.hedges("lost") == 1


@both
def test_both_answer_at_once(scene: Scene, body: dict[str, Any]) -> None:
    stream = bool(body.get("stream"))
    scene.start(well_behaved("no"), hedge=msgspec.structs.replace(HEDGE, after_min_s=0.1))
    for number in range(4):
        gate = Gate()
        scene.enqueue(0, after(gate, say("one", stream=stream, tokens=11)))
        scene.enqueue(1, after(gate, say("other", stream=stream, tokens=22)))
        scene.known = len(scene.records())
        scene.before = scene.fleet.count()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(scene.fleet.ask, body)
            scene.fleet.gateway.until(lambda: scene.count() == [1, 1])
            gate.open()
            answer = asked.result()
        assert answer.status_code == 200
        assert ("one" in answer.text) != ("other" in answer.text)
        if stream:
            assert answer.text.count("[DONE]") == 1
        record = scene.record
        won = "one" in answer.text
        assert (record.target, record.tokens.output) == (("p0#0", 11) if won else ("p1#0", 22)), number
        scene.assert_closed()


@both
def test_a_first_place_that_fails_leaves_the_second(scene: Scene, body: dict[str, Any]) -> None:
    one, other = Gate(), Gate()
    stream = bool(body.get("stream"))
    scene.start(well_behaved("no"))
    scene.enqueue(0, after(one, [Reset()]))
    scene.enqueue(1, after(other, say("second", stream=stream)))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(scene.fleet.ask, body)
        scene.fleet.gateway.until(lambda: scene.count() == [1, 1])
        one.open()
        scene.wait_failed(0)
        other.open()
        answer = asked.result()
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")
    assert "second" in answer.text
    assert (scene.record.target, scene.record.hedged) == ("p1#0", "p0#0")
    assert scene.record.hedged_tokens == 0, "it failed, and answered for that"
    scene.assert_closed()


FAILURES: dict[str, Answer] = {
    "a reset": [Reset()],
    "a 500": error_answer(500),
    "an error in 200": json_answer(error("no", code=500)),
}


@both
@pytest.mark.parametrize("name", FAILURES)
def test_a_second_place_that_fails_leaves_the_first(scene: Scene, body: dict[str, Any], name: str) -> None:
    gate, stream = Gate(), bool(body.get("stream"))
    scene.start(well_behaved("no"))
    scene.enqueue(0, after(gate, say("first", stream=stream)))
    scene.enqueue(1, cast(Script, FAILURES[name]))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(scene.fleet.ask, body)
        scene.wait_failed(1)
        gate.open()
        answer = asked.result()
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")
    assert "first" in answer.text
    assert (scene.record.target, scene.record.hedged, scene.record.hedged_tokens) == ("p0#0", "p1#0", 0)
    scene.assert_closed()
    assert scene.hedges("failed") == 1


@both
def test_where_both_fail_the_next_place_answers(scene: Scene, body: dict[str, Any]) -> None:
    gate = Gate()
    scene.start(well_behaved("no"), well_behaved("third"))
    scene.enqueue(0, after(gate, [Reset()]))
    scene.enqueue(1, after(gate, [Reset()]))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(scene.fleet.ask, body)
        scene.fleet.gateway.until(lambda: scene.count() == [1, 1, 0])
        gate.open()
        answer = asked.result()
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "3")
    assert "third" in answer.text
    assert scene.count() == [1, 1, 1]
    scene.assert_closed()


@both
def test_the_callers_mistake_ends_the_race(scene: Scene, body: dict[str, Any]) -> None:
    scene.start(well_behaved("no"))
    scene.enqueue(0, [Stall()])
    scene.enqueue(1, json_answer(error("bad", type="invalid_request_error"), status=400))
    answer = scene.fleet.ask(body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "bad")
    scene.wait_closed(0)
    scene.assert_closed()


def test_a_winner_that_breaks_afterwards_is_not_replaced(scene: Scene) -> None:
    scene.start(well_behaved("no"), well_behaved("third"))
    scene.enqueue(0, [Stall()])
    scene.enqueue(
        1, [*sse_head(), chunk(event(chat_chunk({"content": "Hel"}))), Wait(gate := Gate()), Reset()]
    )
    threading.Timer(0.6, gate.open).start()
    answer = scene.fleet.ask(STREAM)
    assert answer.status_code == 200
    assert "Hel" in answer.text
    assert "error" in answer.text
    assert "[DONE]" not in answer.text
    assert scene.count() == [1, 1, 0]
    record = scene.record
    assert (record.outcome, record.target, record.attempts) == (Outcome.FAILED, "p1#0", 2)
    scene.assert_closed()


def test_a_role_alone_is_no_content(scene: Scene) -> None:
    """The first to show something is not the one that wins, but the first to show content."""
    scene.start(well_behaved("second"))
    scene.enqueue(0, [*sse_head(), chunk(event(chat_chunk({"role": "assistant", "content": ""}))), Stall()])
    answer = scene.fleet.ask(STREAM)
    assert "second" in answer.text
    assert answer.text.count('"role"') == 1, "one preamble, of the one that answered"
    scene.wait_closed(0)
    scene.assert_closed()


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_places_that_speak_something_else(scene: Scene, path: str, stream: bool) -> None:
    scene.start(anthropic.well_behaved("Z"), dialect="anthropic")
    scene.enqueue(0, [Stall()])
    ask = {**CHAT, "max_tokens": 5, "stream": stream}
    answer = httpx.post(f"{scene.fleet.gateway.url}/{path}", json=ask, headers=HEADERS, timeout=30)
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2"), answer.text
    assert "Z" in answer.text
    scene.wait_closed(0)
    assert scene.record.usage_source is UsageSource.REPORTED
    scene.assert_closed()


# --- who leaves ---------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("first_failed", [False, True])
def test_a_caller_that_leaves_lets_both_go(scene: Scene, body: dict[str, Any], first_failed: bool) -> None:
    gate = Gate()
    scene.start(well_behaved("no"))
    scene.enqueue(0, after(gate, [Reset()]))
    scene.enqueue(1, [Stall()])
    with RawCaller(scene.fleet.gateway.port) as caller:
        caller.post("chat/completions", body)
        scene.fleet.gateway.until(lambda: scene.count() == [1, 1])
        if first_failed:
            gate.open()
            scene.wait_failed(0)
    if not first_failed:
        scene.wait_closed(0)
    scene.wait_closed(1)
    record = scene.record
    assert (record.status, record.outcome, record.attempts) == (499, Outcome.ABANDONED, 2)
    assert record.usage_source is UsageSource.ESTIMATED
    scene.assert_closed()
    gate.open()


@both
def test_a_drain_ends_both(scene: Scene, body: dict[str, Any]) -> None:
    scene.start(well_behaved("no"), limits=GatewayLimits(drain_deadline_s=0.3))
    scene.enqueue(0, [Stall()])
    scene.enqueue(1, [Stall()])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(scene.fleet.ask, body)
        scene.fleet.gateway.until(lambda: scene.count() == [1, 1])
        scene.fleet.gateway.terminate()
        answer = asked.result()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "gateway_draining"
    assert scene.fleet.gateway.wait() == 0
    scene.wait_closed(0)
    scene.wait_closed(1)
    assert scene.record.attempts == 2
    assert "Traceback" not in scene.fleet.gateway.log


def test_a_time_to_the_first_token_does_not_cut_the_last_one_short(scene: Scene) -> None:
    """The second has failed, and the first was given a time only because there was a second."""
    gate = Gate()
    scene.start(well_behaved("no"), timeouts=Timeouts(first_token_s=1.5, idle_s=10, total_s=40))
    scene.enqueue(0, after(gate, say("first", stream=True)))
    scene.enqueue(1, [Reset()])
    threading.Timer(2.5, gate.open).start()
    answer = scene.fleet.ask(STREAM)
    assert (answer.status_code, answer.headers["x-forebay-attempts"]) == (200, "2")
    assert "first" in answer.text
    scene.assert_closed()


# --- how many -----------------------------------------------------------------------------------------------


def test_no_more_than_their_share_is_sent_twice(scene: Scene) -> None:
    scene.start(well_behaved("second"), hedge=msgspec.structs.replace(HEDGE, max_share=0.05))
    for number in range(4):
        gate = Gate()
        scene.enqueue(0, after(gate, say("first", stream=False)))
        with ThreadPoolExecutor(1) as pool, gate:
            asked = pool.submit(scene.fleet.ask)
            scene.fleet.gateway.until(lambda: scene.count()[1] + scene.hedges("denied") == number + 1)  # noqa: B023
            gate.open()
            assert asked.result().status_code == 200, number
    made = scene.count()[1]
    assert 1 <= made <= 0.05 * (2 * 21 + 4) + 1
    assert scene.hedges("denied") == 4 - made
    scene.assert_closed()


def test_a_spent_budget_allows_none(scene: Scene) -> None:
    scene.start(well_behaved("second"), share=0.0)
    gate = Gate()
    scene.enqueue(0, after(gate, say("first", stream=False)))
    with ThreadPoolExecutor(1) as pool, gate:
        asked = pool.submit(scene.fleet.ask)
        scene.fleet.gateway.until(lambda: scene.hedges("denied") == 1)
        gate.open()
        answer = asked.result()
    assert ("first" in answer.text, answer.headers["x-forebay-attempts"]) == (True, "1")


def test_nothing_is_late_before_times_are_known(scene: Scene) -> None:
    scene.start(well_behaved("second"), warm=5)
    gate = Gate()
    scene.enqueue(0, after(gate, say("first", stream=False)))
    threading.Timer(0.6, gate.open).start()
    answer = scene.fleet.ask()
    assert ("first" in answer.text, answer.headers["x-forebay-attempts"]) == (True, "1")
    assert scene.count() == [1, 0]


def test_a_place_out_of_service_is_no_second_one(scene: Scene) -> None:
    scene.start(well_behaved("no"))
    scene.enqueue(0, [Reset()])
    scene.enqueue(1, rate_limited("60"))
    # The one that failed last has the last word; where this machine stood still, that is the first of them.
    assert scene.fleet.ask().status_code in (429, 502)
    scene.before = scene.fleet.count()
    gate = Gate()
    scene.enqueue(0, after(gate, say("first", stream=False)))
    threading.Timer(0.6, gate.open).start()
    answer = scene.fleet.ask()
    assert ("first" in answer.text, answer.headers["x-forebay-attempts"]) == (True, "1")
    assert scene.count() == [1, 0]
    assert scene.hedges("denied") == 0


@pytest.mark.parametrize("measure", [Measure.TOTAL_TOKENS, Measure.INPUT_TOKENS, Measure.OUTPUT_TOKENS])
def test_what_the_one_that_lost_may_have_cost_is_not_refunded(measure: Measure) -> None:
    limit = Limit(
        id="t", owner="key k", measure=measure, amount=10**6, period=Period.MONTH, kind=Kind.CALENDAR
    )
    request: Any = make_request(cast(Any, SimpleNamespace(limits=(limit,))))
    request.tokens, request.usage_source = Tokens(input=7, output=3), UsageSource.REPORTED
    needs, lease = Needs(openai), Lease(limit)
    alone = needs.count_used(request, lease, 400)
    request.hedged_tokens = 100
    assert needs.count_used(request, lease, 400) - alone == (0 if measure is Measure.OUTPUT_TOKENS else 100)
