"""Models whose targets are tried in the order of the file: one that is out of service stands back, through
real workers."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from board_rig import CHAT, HEADERS, Machine

from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.routes import Choosing, Endpoint, Route, Target, Timeouts
from forebay.gateway.policy.listed import ListedPlace, is_in_service, note_probe, order_listed
from forebay.gateway.policy.load import EJECT_AFTER, EJECT_S, PROBE_S, ReplicaLoad
from forebay.testing.openai import error_answer, rate_limited, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Reset, Script, Stall
from forebay.testing.threaded import find_closed_port
from forebay.testing.upstream import Answer

BRIEF = Timeouts(connect_s=1, first_token_s=0.2, idle_s=0.2, total_s=0.3)
ILL: dict[str, Answer] = {
    "500": error_answer(500),
    "503": error_answer(503),
    "429": rate_limited(None),
    "reset": [Reset()],
    "silent": [Stall()],
    "refused": [],
}


class Changing:
    """An upstream's answer, until the test gives it another."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def __call__(self, request: RecordedRequest) -> Script:
        return self.answer(request) if callable(self.answer) else self.answer


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


def listed(model: str, *targets: Target, **facts: Any) -> Route:
    return Route(model=model, endpoints=(Endpoint.CHAT,), targets=targets, choosing=Choosing(), **facts)


class Caller:
    """Sends requests to the workers in turn, over connections that it keeps."""

    def __init__(self, machine: Machine, model: str) -> None:
        self._clients = [
            httpx.Client(base_url=each.url, headers=HEADERS, timeout=30) for each in machine.workers
        ]
        self._body = CHAT | {"model": model}

    def ask(self, number: int = 0, *, stream: bool = False) -> httpx.Response:
        client = self._clients[number % len(self._clients)]
        return client.post("/chat/completions", json=self._body | {"stream": stream})

    def ask_for(self, seconds: float, per_s: float) -> list[httpx.Response]:
        """At a rate, whatever becomes of them."""
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            found = []
            for number in range(int(seconds * per_s)):
                time.sleep(max(0.0, begun + number / per_s - time.monotonic()))
                found.append(pool.submit(self.ask, number))
            return [each.result() for each in found]


# --- the order ----------------------------------------------------------------------------------------------


def make_places(count: int) -> list[ListedPlace]:
    return [
        ListedPlace(Target(id=f"t{at}", pool="p", url=f"http://{at}/v1", model="m"), ReplicaLoad(at))
        for at in range(count)
    ]


def name(places: list[ListedPlace]) -> str:
    return "".join(place.target.id[1:] for place in places)


def test_those_out_of_service_stand_behind_and_all_are_tried_rather_than_none() -> None:
    places = make_places(4)
    loads = [place.load for place in places if place.load is not None]
    loads[0].refuse(0.0, 5)
    assert name(order_listed(places, 1.0)) == "1230"
    loads[2].refuse(0.0, 9)
    assert name(order_listed(places, 1.0)) == "1302"
    assert name(order_listed(places, 5.0)) == "0132"
    for load in loads:
        load.refuse(5.0, 1)
    assert name(order_listed(places, 5.5)) == "0123"


def test_one_that_failed_is_tried_by_a_request_a_second_until_it_answers_well() -> None:
    place = make_places(1)[0]
    load = place.load
    assert load is not None
    note_probe(place, 0.0)
    for _ in range(EJECT_AFTER):
        assert is_in_service(place, 0.0)
        load.fail(0.0)
    assert not is_in_service(place, EJECT_S - 0.1)
    probes = 0
    for tick in range(100):
        now = EJECT_S + tick / 20
        if is_in_service(place, now):
            probes += 1
            note_probe(place, now)
    assert 5 / PROBE_S <= probes <= 5 / PROBE_S + 1
    load.succeed(EJECT_S + 5, EJECT_S)
    assert is_in_service(place, EJECT_S + 5)
    load.fail(EJECT_S + 6)
    assert is_in_service(place, EJECT_S + 6), "one failure of one that is well is none of a row"


def test_what_was_under_way_when_a_place_was_put_out_does_not_send_a_crowd_there() -> None:
    place = make_places(1)[0]
    load = place.load
    assert load is not None
    for _ in range(EJECT_AFTER):
        load.fail(5.0)
    load.succeed(6.0, 2.0)  # a long answer that had begun before
    back = 5.0 + EJECT_S
    note_probe(place, back)
    assert not is_in_service(place, back + PROBE_S / 2), "one request looks, and the others do not follow"
    load.succeed(back + 0.1, back)
    assert is_in_service(place, back + 0.1)


def test_a_place_that_is_silent_holds_fewer_and_fewer_who_look() -> None:
    place = make_places(1)[0]
    load = place.load
    assert load is not None
    for _ in range(EJECT_AFTER):
        load.fail(0.0)
    looks = 0
    for tick in range(600):
        now = EJECT_S + tick / 10
        if is_in_service(place, now):
            looks += 1
            note_probe(place, now)
            load.begin(10, now)  # and nothing ever comes
    assert looks <= 7, "in a minute"
    assert looks >= 4


def test_a_next_attempt_looks_too(machine: Machine) -> None:
    """Where the first of three fails now and then, who is sent on does not follow one another to a second
    that is silent."""
    second = Changing(error_answer(500))
    targets = (
        machine.add("first", rate_limited(None)),
        machine.add("second", second, timeouts=BRIEF),
        machine.add("third", well_behaved("Hi")),
    )
    machine.start_worker(0, (listed("m", *targets),), 1, retry_budget=10.0, attempts_max=3)
    caller = Caller(machine, "m")
    begun = time.monotonic()
    while machine.explain(0, "m")["second"]["rejected"] != "ejected":
        assert time.monotonic() < begun + 30
        assert caller.ask().status_code == 200
    second.answer = [Stall()]
    while machine.explain(0, "m")["second"]["why"].startswith("it failed too often in a row; back in"):
        assert time.monotonic() < begun + 60
        time.sleep(0.1)
    before, looked = machine.count("second"), time.monotonic()
    assert {answer.status_code for answer in caller.ask_for(3, 20)} == {200}
    assert machine.count("second") - before <= (time.monotonic() - looked) / PROBE_S + 2


# --- over sockets -------------------------------------------------------------------------------------------


def test_a_first_target_that_is_dead_in_any_way_is_passed_over(machine: Machine) -> None:
    """With no budget but for the first few retries, every caller is answered by the second target."""
    routes = []
    for kind, answer in ILL.items():
        first = machine.add(f"first-{kind}", answer, model=kind, timeouts=BRIEF)
        if kind == "refused":
            first = msgspec.structs.replace(first, url=f"http://127.0.0.1:{find_closed_port(keep=True)}/v1")
        routes.append(listed(kind, first, machine.add(f"second-{kind}", well_behaved("Hi"), model=kind)))
    machine.start_worker(0, tuple(routes), 1, retry_budget=0.0, retry_budget_min_per_s=6.0)
    caller = {kind: Caller(machine, kind) for kind in ILL}
    for kind in ILL:
        found = Counter(
            (answer.status_code, answer.headers["x-forebay-attempts"])
            for answer in (caller[kind].ask(stream=at % 2 == 1) for at in range(25))
        )
        assert {status for status, _ in found} == {200}, (kind, found)
        limit = 8 if kind in ("429", "503") else EJECT_AFTER  # a refusal without a time holds for a second
        assert 0 < found[200, "2"] <= limit, (kind, found)
        told = machine.explain(0, kind)
        first = told[f"first-{kind}"]
        if kind not in ("429", "503"):
            assert (first["rank"], first["rejected"]) == (1, "ejected")
            assert first["why"].startswith("it failed too often in a row; back in ")
            assert first["retry_after_s"] > 0
        assert told[f"second-{kind}"]["rejected"] is None


def test_under_load_only_the_first_few_are_retried_and_the_first_serves_again_when_it_is_well(
    machine: Machine,
) -> None:
    ill = Changing(error_answer(500))
    route = listed("m", machine.add("first", ill), machine.add("second", well_behaved("Hi")))
    machine.start_worker(0, (route,), 1, retry_budget=0.0, retry_budget_min_per_s=1.5)
    caller = Caller(machine, "m")
    answers = caller.ask_for(3, 50)
    assert {answer.status_code for answer in answers} == {200}
    assert machine.count("second") == 150
    made = machine.workers[0].metric("forebay_retries_total", result="made")
    assert machine.count("first") == made <= 15, "the budget, at the wire"
    ill.answer = well_behaved("Hi")
    before = machine.count("first")
    ejected_s = machine.upstreams["first"].requests[EJECT_AFTER - 1].arrived_at_s
    begun = time.monotonic()
    while machine.count("first") < before + 10:
        assert time.monotonic() < begun + 30
        assert caller.ask().headers["x-forebay-attempts"] == "1"
        time.sleep(0.05)
    back_s = machine.upstreams["first"].requests[before].arrived_at_s
    assert back_s > ejected_s + EJECT_S, "and not before its time"


def test_a_refusal_with_a_time_leaves_the_first_alone_for_so_long_in_every_worker(machine: Machine) -> None:
    ill = Changing(rate_limited("5"))
    first, second = machine.add("first", ill), machine.add("second", well_behaved("Hi"))
    machine.start(listed("m", first, second), workers=2)
    said = time.monotonic()
    assert machine.ask(0).headers["x-forebay-attempts"] == "2"
    machine.workers[1].until(lambda: machine.explain(1)["first"]["rejected"] == "busy")
    ill.answer = well_behaved("Hi")
    caller = Caller(machine, "m")
    number = 0
    while machine.count("first") == 1:
        assert time.monotonic() < said + 40
        assert caller.ask(number).headers["x-forebay-attempts"] == "1"
        number += 1
        time.sleep(0.02)
    assert time.monotonic() - said > 4.9
    told = machine.explain(0)
    assert [(told[each]["rank"], told[each]["rejected"]) for each in ("first", "second")] == [
        (0, None),
        (1, None),
    ]


def test_a_quota_that_is_used_up_stands_back_with_all_that_share_it(machine: Machine) -> None:
    facts: dict[str, Any] = {"api_key": "env:KEY_A", "shares_quota": True, "tier": "provider"}
    routes = [
        listed(
            model,
            machine.add("account", rate_limited("30"), model=model, **facts),
            machine.add("own", well_behaved("Hi"), model=model),
        )
        for model in ("m", "n")
    ]
    routes[1] = msgspec.structs.replace(
        routes[1], targets=tuple(msgspec.structs.replace(each, model="n") for each in routes[1].targets)
    )
    machine.start(*routes, workers=1, board=False)
    assert machine.ask(0, "m").headers["x-forebay-attempts"] == "2"
    assert machine.ask(0, "n").headers["x-forebay-attempts"] == "1"
    assert machine.count("account") == 1


def test_what_an_engine_says_counts(machine: Machine) -> None:
    first, second = machine.add("first", well_behaved("Hi")), machine.add("second", well_behaved("Hi"))
    machine.start(listed("m", first, second), workers=1)
    machine.board.publish(EngineLoad(target_id=first.id, state=EngineState.COLD))
    machine.workers[0].until(lambda: machine.explain(0)["first"]["rejected"] == "cold")
    machine.ask(0)
    assert (machine.count("first"), machine.count("second")) == (0, 1)


def test_fallbacks_out_of_service_are_passed_over_and_one_that_is_well_begins(machine: Machine) -> None:
    routes = (
        listed("m", machine.add("main", error_answer(500)), fallbacks=("ill", "well")),
        listed("ill", machine.add("ill", error_answer(500), model="ill")),
        listed("well", machine.add("well", well_behaved("Hi"), model="well")),
        listed("lone", machine.add("main", well_behaved("Hi"), model="lone", path="/lone")),
    )
    machine.start(*routes, workers=1, board=False)
    for _ in range(EJECT_AFTER):
        machine.ask(0, "ill")
    answer = machine.ask(0)
    assert (answer.headers["x-forebay-attempts"], answer.headers["x-forebay-answered-by"]) == ("2", "well")
    for _ in range(EJECT_AFTER):
        machine.ask(0)
    answer = machine.ask(0)
    assert (answer.headers["x-forebay-attempts"], answer.headers["x-forebay-answered-by"]) == ("1", "well")
    told = machine.ask(0, x_forebay_debug="route").json()
    assert told["fallbacks"] == [{"model": "ill", "in_service": False}, {"model": "well", "in_service": True}]
    assert machine.explain(0, "lone")["main"]["requests"] is None, (
        "one that has no other place is not counted"
    )
