"""Routing through a real worker: where requests go, what becomes of counts, and what is told of it."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from forebay.core.keys import KeyEntry
from forebay.core.limits import Limit, Measure, Period, WhenAway
from forebay.core.routes import Affinity, Choosing, Endpoint, GatewayLimits, Order, Route, Target, Timeouts
from forebay.gateway.policy.load import STALE_S
from forebay.testing.answers import chunk, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_key
from forebay.testing.openai import chat_chunk, error_answer, event, rate_limited, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Gate, Reset, Script, Sleep, Wait
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import Answer

HEADERS = {"authorization": f"Bearer {TEST_KEY}"}
PATIENT = {"forebay.gateway.policy.load.EJECT_S": 200.0}  #: out of service until the test is over
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


class Fleet:
    """Upstreams by pool, and a worker in front of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.upstreams: dict[str, ThreadedUpstream] = {}
        self.targets: list[Target] = []
        self.gateway: GatewayProcess

    def add(self, pool: str, answer: Answer, **facts: Any) -> None:
        upstream = self._stack.enter_context(ThreadedUpstream(answer))
        number = sum(target.pool == pool for target in self.targets)
        self.upstreams[f"{pool}{number or ''}"] = upstream
        self.targets.append(
            Target(id=f"{pool}#{number}", pool=pool, url=upstream.url, model=facts.pop("model", "m"), **facts)
        )

    def make_route(self, model: str = "m", **facts: Any) -> Route:
        """Of all that was added since the last one."""
        targets, self.targets = tuple(self.targets), []
        facts.setdefault("choosing", Choosing(order=Order.LOAD))
        return Route(model=model, endpoints=(Endpoint.CHAT, Endpoint.EMBEDDINGS), targets=targets, **facts)

    def start(
        self,
        *routes: Route,
        keys: list[KeyEntry] | None = None,
        explains: bool = True,
        quotas: tuple[Limit, ...] = (),
        limits: GatewayLimits | None = None,
    ) -> None:
        routes = routes or (self.make_route(),)
        gateway = GatewayProcess(routes, folder=self._folder, keys=keys, limits=limits, constants=PATIENT)
        gateway.snapshot = msgspec.structs.replace(
            gateway.snapshot, explains_routes=explains, quotas=quotas, quota_when_away=WhenAway.OPEN
        )
        self.gateway = self._stack.enter_context(gateway)

    def ask(self, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            f"{self.gateway.url}/chat/completions", json=body or CHAT, headers=HEADERS | named, timeout=30
        )

    def explain(self, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        answer = self.ask(body, x_forebay_debug="route", **headers)
        assert answer.status_code == 200, answer.text
        explained: dict[str, Any] = answer.json()
        return explained

    def ask_until_asked(self, name: str, body: dict[str, Any] | None = None) -> None:
        """Until a place was, which nobody can tell apart from others yet, so that a draw decides."""
        for _ in range(200):  # if it is one of three, it is not drawn with a chance of 1e-35
            assert self.ask(body).status_code == 200
            if self.count()[name]:
                return
        raise AssertionError(f"{name} was never asked")

    def count(self) -> Counter[str]:
        return Counter({name: len(upstream.requests) for name, upstream in self.upstreams.items()})


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def held(gate: Gate) -> Answer:
    """Answers once the gate is open."""
    answer = well_behaved("Hello")

    def choose(request: RecordedRequest) -> Script:
        return [Wait(gate), *answer(request)] if callable(answer) else answer

    return choose


def slow(seconds: float) -> Answer:
    answer = well_behaved("Hello")

    def choose(request: RecordedRequest) -> Script:
        return [Sleep(seconds), *answer(request)] if callable(answer) else answer

    return choose


# --- counts -------------------------------------------------------------------------------------------------

STREAM = {**CHAT, "stream": True}


def leave_in_the_middle(fleet: Fleet) -> None:
    with httpx.stream(
        "POST", f"{fleet.gateway.url}/chat/completions", json=STREAM, headers=HEADERS
    ) as answer:
        next(answer.iter_bytes())


ENDINGS: dict[str, tuple[Answer, Callable[[Fleet], object]]] = {
    "a whole answer": (well_behaved("Hello"), lambda fleet: fleet.ask()),
    "a stream": (well_behaved("Hello"), lambda fleet: fleet.ask(STREAM)),
    "an error": (error_answer(500), lambda fleet: fleet.ask()),
    "the caller's mistake": (error_answer(400), lambda fleet: fleet.ask()),
    "a refusal": (rate_limited("0"), lambda fleet: fleet.ask()),
    "a reset": ([Reset()], lambda fleet: fleet.ask()),
    "a broken stream": (
        [*sse_head(), chunk(event(chat_chunk({"content": "He"}))), Sleep(0.05), Close()],
        lambda fleet: fleet.ask(STREAM),
    ),
    "silence": ([Sleep(20)], lambda fleet: fleet.ask()),
    "the caller's leaving": (
        [*sse_head(), chunk(event(chat_chunk({"content": "He"}))), Sleep(20)],
        leave_in_the_middle,
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_counts_are_closed_however_a_request_ends(fleet: Fleet, name: str) -> None:
    answer, ask = ENDINGS[name]
    timeouts = Timeouts(total_s=0.5, idle_s=0.4)
    for pool in ("one", "two"):
        fleet.add(pool, answer, requests_max=4, timeouts=timeouts)
    fleet.start()
    for _ in range(3):
        ask(fleet)
    fleet.gateway.wait_idle()
    candidates = fleet.explain()["candidates"]
    assert [(each["requests"], each["tokens"], each["used"]) for each in candidates] == [(0, 0, 0.0)] * 2
    assert sum(fleet.count().values()) >= 3


def test_what_is_in_flight_counts_also_over_a_new_snapshot(fleet: Fleet) -> None:
    gate = Gate()
    fleet.add("one", held(gate), requests_max=2)
    fleet.add("two", held(gate), requests_max=2)
    route = fleet.make_route()
    fleet.start(route)
    with ThreadPoolExecutor(2) as pool, gate:
        asked = [pool.submit(fleet.ask) for _ in range(2)]
        fleet.gateway.until(lambda: sum(fleet.count().values()) == 2)
        more = msgspec.structs.replace(
            route, targets=(*route.targets, msgspec.structs.replace(route.targets[0], id="new", pool="new"))
        )
        table = msgspec.structs.replace(fleet.gateway.snapshot.table, routes=(more,))
        fleet.gateway.write_snapshot(msgspec.structs.replace(fleet.gateway.snapshot, table=table))
        fleet.gateway.until(lambda: len(fleet.explain()["candidates"]) == 3)
        found = {each["target"]: each["requests"] for each in fleet.explain()["candidates"]}
        assert found["one#0"] + found["two#0"] == 2
        assert found["new"] == found["one#0"]  # the same place
        gate.open()
        assert all(each.result().status_code == 200 for each in asked)
    fleet.gateway.wait_idle()
    assert {each["requests"] for each in fleet.explain()["candidates"]} == {0}


# --- where requests go --------------------------------------------------------------------------------------


def test_a_full_tier_spills_and_a_key_that_may_not_leave_it_stays(fleet: Fleet) -> None:
    gate = Gate()
    fleet.add("own", held(gate), tier="provisioned", requests_max=4)
    fleet.add("cloud", well_behaved("Hello"), tier="provider")
    barred = msgspec.structs.replace(make_key("fb-barred", id="k2"), tier_max="autoscaled")
    fleet.start(keys=[make_key(), barred])
    with ThreadPoolExecutor(24) as pool, gate:
        asked = [pool.submit(fleet.ask) for _ in range(12)]
        fleet.gateway.until(lambda: sum(fleet.count().values()) == 12)
        counts = fleet.count()
        # Up to three fill less than spills, and five are more than the level from which all do.
        assert 3 < counts["own"] <= 5
        stay = [pool.submit(fleet.ask, authorization="Bearer fb-barred") for _ in range(8)]
        fleet.gateway.until(lambda: fleet.count()["own"] == counts["own"] + 8)
        gate.open()
        assert {each.result().status_code for each in (*asked, *stay)} == {200}
    key = {record.target for record in fleet.gateway.records() if record.key == "k2"}
    assert key == {"own#0"}


def test_failures_go_elsewhere_and_after_some_the_place_is_left_alone(fleet: Fleet) -> None:
    fleet.add("ill", error_answer(500))
    fleet.add("well", well_behaved("Hello"))
    fleet.start()
    for _ in range(40):
        assert fleet.ask().status_code == 200
    assert 1 <= fleet.count()["ill"] <= 5


def test_what_failed_five_times_in_a_row_is_out_of_service(fleet: Fleet) -> None:
    fleet.add("ill", error_answer(500), tier="provisioned")
    fleet.add("well", well_behaved("Hello"), tier="provider")
    fleet.start()
    for _ in range(10):
        assert fleet.ask().status_code == 200
    assert fleet.count()["ill"] == 5
    candidates = {each["pool"]: each for each in fleet.explain()["candidates"]}
    assert candidates["ill"]["rejected"] == "ejected"
    assert candidates["ill"]["why"].startswith("it failed too often in a row; back in ")
    assert candidates["well"]["rank"] == 0


def test_a_place_that_asks_for_time_gets_it(fleet: Fleet) -> None:
    fleet.add("busy", rate_limited("300"))
    fleet.add("free", well_behaved("Hello"))
    fleet.start()
    fleet.ask_until_asked("busy")
    for _ in range(10):
        assert fleet.ask().status_code == 200
    assert fleet.count()["busy"] == 1
    assert {each["pool"]: each["rejected"] for each in fleet.explain()["candidates"]} == {
        "busy": "busy",
        "free": None,
    }


def test_another_model_answers_where_none_of_the_targets_does(fleet: Fleet) -> None:
    fleet.add("big", error_answer(503), model="big-there")
    fleet.add("big", error_answer(503), model="big-there")
    big = fleet.make_route("m", fallbacks=("secret", "small"))
    fleet.add("small", well_behaved("Hi"), model="small-there")
    small = fleet.make_route("small", choosing=Choosing())
    fleet.add("secret", well_behaved("Hi"))
    secret = fleet.make_route("secret", choosing=Choosing())
    fleet.start(big, small, secret, keys=[make_key(models=("m", "small"))])
    answer = fleet.ask()
    assert answer.status_code == 200
    assert answer.headers["x-forebay-answered-by"] == "small"
    assert answer.headers["x-forebay-attempts"] == "3"
    assert fleet.count() == {"big": 1, "big1": 1, "small": 1, "secret": 0}
    assert b'"small-there"' in fleet.upstreams["small"].requests[0].body
    record = fleet.gateway.wait_for(lambda record: True)
    assert (record.model, record.target, record.attempts, record.status) == ("small", "small#0", 3, 200)


def test_a_request_goes_where_it_can_be_answered(fleet: Fleet) -> None:
    fleet.add("text", well_behaved("Hello"), capabilities=(), context_window=2000)
    fleet.add("eyes", well_behaved("Hello"), capabilities=("images",))
    fleet.start()
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
    looks = {**CHAT, "messages": [{"role": "user", "content": [picture]}]}
    for _ in range(6):
        assert fleet.ask(looks).status_code == 200
    assert fleet.count() == {"text": 0, "eyes": 6}
    long = {**CHAT, "messages": [{"role": "user", "content": "word " * 4000}]}
    for _ in range(6):
        assert fleet.ask(long).status_code == 200
    assert fleet.count() == {"text": 0, "eyes": 12}
    tools = {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}
    refused = fleet.ask(tools)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "capability_not_supported"
    assert "tools" in refused.json()["error"]["message"]
    quoted = {**CHAT, "messages": [{"role": "user", "content": 'say {"tools": [{}], "type": "image_url"}'}]}
    assert fleet.ask(quoted).status_code == 200


def test_no_caller_fills_a_tier_with_what_it_names(fleet: Fleet) -> None:
    gate = Gate()
    fleet.add("own", held(gate), tier="provisioned", tokens_max=100_000)
    fleet.add("paid", well_behaved("Hi"), tier="provider")
    limit = Limit(id="l", owner="key k", measure=Measure.TOTAL_TOKENS, amount=10**13, period=Period.DAY)
    fleet.start(keys=[msgspec.structs.replace(make_key(), limits=("l",))], quotas=(limit,))
    with ThreadPoolExecutor(1) as pool, gate:
        greedy = pool.submit(fleet.ask, {**CHAT, "max_tokens": 2_000_000_000})
        fleet.gateway.until(lambda: fleet.count()["own"])
        explained = fleet.explain()
        gate.open()
        assert greedy.result().status_code == 200
    loads = {each["pool"]: each["tokens"] for each in explained["candidates"]}
    assert 0 < loads["own"] < 1000
    assert explained["tiers"][0]["spill"] == 0


def test_our_own_limit_of_connections_drains_no_tier(fleet: Fleet) -> None:
    gate = Gate()
    fleet.add("own", held(gate), tier="provisioned", connections_max=2)
    fleet.add("paid", well_behaved("Hi"), tier="provider")
    fleet.start()
    with ThreadPoolExecutor(12) as pool, gate:
        asked = [pool.submit(fleet.ask) for _ in range(12)]
        fleet.gateway.until(lambda: fleet.count() == {"own": 2, "paid": 10})
        gate.open()
        assert {each.result().status_code for each in asked} == {200}
    explained = fleet.explain()
    assert explained["tiers"][0]["spill"] == 0


def test_a_session_and_a_beginning_stay_with_a_replica(fleet: Fleet) -> None:
    for _ in range(4):
        fleet.add("p", well_behaved("Hello"))
    fleet.start()
    # Addresses decide who owns what, and their ports differ: that one replica owns all of 24 has a chance
    # of 1e-12 at the most.
    places = {}
    for session in range(24):
        before = fleet.count()
        for number in range(3):
            body = {**CHAT, "messages": [{"role": "user", "content": f"{number}"}]}
            assert fleet.ask(body, x_forebay_session=f"s{session}").status_code == 200
        (places[session],) = (fleet.count() - before).keys()
    assert len(set(places.values())) > 1
    owners = set()
    for number in range(24):
        before = fleet.count()
        for turn in range(3):
            messages = [
                {"role": "system", "content": f"{number} " * 200},
                {"role": "user", "content": f"{turn}"},
            ]
            fleet.ask({**CHAT, "messages": messages})
        (owner,) = (fleet.count() - before).keys()
        owners.add(owner)
    assert len(owners) > 1


def test_the_field_user_is_a_session_where_the_model_says_so(fleet: Fleet) -> None:
    for _ in range(4):
        fleet.add("p", well_behaved("Hello"))
    fleet.start(fleet.make_route(choosing=Choosing(order=Order.LOAD, affinity=Affinity.SESSION)))
    for user in range(6):
        before = fleet.count()
        for number in range(3):
            messages = [{"role": "user", "content": f"{number}"}]
            fleet.ask({**CHAT, "messages": messages, "user": f"u{user}"})
        assert len(fleet.count() - before) == 1


def test_a_slow_place_gets_little(fleet: Fleet) -> None:
    """Nothing, while its time is known and those of the others are less.

    How often it is asked before all times are known, draws decide.  And on a machine that stands still for a
    moment another place may be the slow one: so only those requests count before which the worker itself
    said that it knows the slow place for slow.
    """
    names = ("slow", "one", "two")
    for name in names:
        fleet.add(name, slow(0.6 if name == "slow" else 0.01))
    fleet.start()
    for name in names:
        fleet.ask_until_asked(name, STREAM)
    meant = strays = 0
    for _ in range(400):
        known = {each["pool"]: each for each in fleet.explain(STREAM)["candidates"]}
        times = [each["first_token_s"] for each in known.values()]
        last_s = fleet.upstreams["slow"].requests[-1].arrived_at_s
        is_known = None not in times and time.monotonic() < last_s + STALE_S - 10
        before = fleet.count()["slow"]
        assert fleet.ask(STREAM).status_code == 200
        if is_known and known["slow"]["score_s"] > max(known[name]["score_s"] for name in ("one", "two")):
            meant += 1
            strays += fleet.count()["slow"] - before
        if meant == 40:
            break
    assert (meant, strays) == (40, 0)


def test_many_at_once_are_shared_by_all_replicas(fleet: Fleet) -> None:
    gate = Gate()
    for _ in range(4):
        fleet.add("p", held(gate))
    fleet.start(fleet.make_route(choosing=Choosing(order=Order.LOAD, affinity=Affinity.PREFIX)))
    with ThreadPoolExecutor(40) as pool, gate:
        asked = [pool.submit(fleet.ask) for _ in range(40)]
        fleet.gateway.until(lambda: sum(fleet.count().values()) == 40)
        gate.open()
        assert {each.result().status_code for each in asked} == {200}
    assert max(fleet.count().values()) <= 16  # all begin alike


# --- what is told -------------------------------------------------------------------------------------------


def test_where_a_request_would_go_is_told_to_who_may_ask_and_nothing_is_sent(fleet: Fleet) -> None:
    fleet.add("own", well_behaved("Hello"), tier="provisioned", region="eu", requests_max=4)
    fleet.add("own", well_behaved("Hello"), tier="provisioned", region="eu", requests_max=4)
    fleet.add("plain", well_behaved("Hello"), tier="provisioned", region="eu", capabilities=())
    fleet.add("cloud", well_behaved("Hello"), tier="provider", region="us")
    bound = msgspec.structs.replace(make_key("fb-bound", id="k2"), regions=("eu",), priority="batch")
    fleet.start(keys=[make_key(), bound])
    tools = {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}
    told = fleet.explain(tools, authorization="Bearer fb-bound")
    assert sum(fleet.count().values()) == 0
    assert (told["model"], told["chosen_by"], told["priority"], told["needs"]) == (
        "m",
        "load",
        "batch",
        ["tools"],
    )
    assert told["tiers"] == [{"name": "provisioned", "spill": 0.0}]
    found = {each["target"]: (each["rank"], each["rejected"]) for each in told["candidates"]}
    assert {rank for rank, reason in found.values() if reason is None} == {0, 1}
    assert found["plain#0"] == (None, "capability")
    assert found["cloud#0"] == (None, "region")
    assert "http" not in str(told)


def test_nobody_is_told_unless_the_configuration_says_so(fleet: Fleet) -> None:
    fleet.add("one", well_behaved("Hello"))
    fleet.add("two", well_behaved("Hello"))
    fleet.start(explains=False)
    answer = fleet.ask(x_forebay_debug="route")
    assert answer.json()["choices"]
    assert sum(fleet.count().values()) == 1


def test_targets_in_the_order_of_the_file_are_told_as_such(fleet: Fleet) -> None:
    fleet.add("one", well_behaved("Hello"))
    fleet.add("two", well_behaved("Hello"))
    fleet.start(fleet.make_route(choosing=Choosing()))
    told = fleet.explain()
    assert told["chosen_by"] == "listed"
    assert [(each["target"], each["rank"]) for each in told["candidates"]] == [("one#0", 0), ("two#0", 1)]
    for _ in range(5):
        fleet.ask()
    assert fleet.count() == {"one": 5, "two": 0}
