"""Two machines that share loads over a real Valkey: each with a board, and a real worker at it."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from board_rig import Machine, make_route

import redis_server as redis_servers
from forebay.app.board_fleet import BoardFleet
from forebay.app.board_server import FleetState
from forebay.core.limits import QueueRules
from forebay.core.routes import Affinity, Route
from forebay.gateway.place_names import PlaceNames
from forebay.gateway.policy.machines import SILENCE_MAX_S
from forebay.testing.answers import json_answer
from forebay.testing.openai import chat_completion, rate_limited, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Sleep, Wait
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import Answer
from redis_server import RedisServer

FLEETS = itertools.count()
GOOD = well_behaved("Hello")
SLACK_S = 20.0  #: for a machine that has other things to do


def held(gate: Gate) -> Answer:
    """Answers once the gate is open."""

    def choose(request: RecordedRequest) -> Script:
        return [Wait(gate), *(GOOD(request) if callable(GOOD) else GOOD)]

    return choose


def read_state(machine: Machine) -> FleetState:
    state: FleetState = machine.board.call(lambda: machine.board.server.fleet)
    return state


def slow(seconds: float) -> Answer:
    def choose(request: RecordedRequest) -> Script:
        return [Sleep(seconds), *(GOOD(request) if callable(GOOD) else GOOD)]

    return choose


class Pair:
    """Two machines with the same upstreams."""

    def __init__(self, folder: Path, stack: ExitStack, url: str) -> None:
        fleet = f"{folder.name}-{next(FLEETS)}"
        upstreams: dict[str, ThreadedUpstream] = {}
        self.machines = [
            Machine(
                folder / name,
                stack,
                upstreams,
                lambda merging, dealing, name=name: BoardFleet(lambda: url, fleet, name, merging, dealing, 1),
            )
            for name in ("one", "other")
        ]
        self.one, self.other = self.machines

    def start(self, *routes: Route) -> None:
        for machine in self.machines:
            machine.start(*routes, workers=1)
        self.wait_shared()

    def wait_shared(self) -> None:
        """Until each hears the other, and both workers know that there are two."""
        worker = self.one.workers[0]
        for machine in self.machines:
            worker.until(lambda machine=machine: len(read_state(machine).machines) == 1, 30)

    def wait_requests(self, machine: Machine, count: int, pool: str = "own") -> None:
        machine.workers[0].until(lambda: machine.explain(0)[pool]["requests"] == count, 30)


@pytest.fixture
def pair(tmp_path: Path, redis_server: RedisServer) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack, redis_server.url)


def test_what_one_machine_has_in_flight_moves_the_choice_of_the_other(pair: Pair) -> None:
    """Half of the capacity is the other machine's, so what spills does so far sooner than it would alone."""
    gate = Gate()
    own = pair.one.add("own", held(gate), tier="provisioned", requests_max=8)
    cloud = pair.one.add("cloud", GOOD, tier="provider")
    pair.start(make_route(own, cloud, affinity=Affinity.NONE))
    with ThreadPoolExecutor(24) as pool, gate:
        asked = [pool.submit(pair.one.ask, 0) for _ in range(6)]
        pair.wait_requests(pair.one, 6)
        pair.wait_requests(pair.other, 6)
        seen = pair.other.explain(0)["own"]
        assert (seen["others_requests"], seen["used"]) == (6, pytest.approx(6 / 8))
        (machine,) = read_state(pair.other).machines
        server = pair.other.board.server
        assert (machine.name, machine.workers) == ("one", 1)
        assert pair.other.board.call(lambda: server.count_at(machine.instance)) == 6
        worker = pair.other.workers[0]
        for _ in range(12):
            asked.append(pool.submit(pair.other.ask, 0))
        worker.until(lambda: any(each.pool == "cloud" for each in worker.records()), 30)
        gate.open()
        assert {each.result().status_code for each in asked} == {200}
    pair.wait_requests(pair.other, 0)


def test_h3_a_refusal_that_one_machine_hears_holds_on_the_other_and_so_does_a_newer_word(pair: Pair) -> None:
    facts = {"tier": "provider", "shares_quota": True, "api_key": "env:KEY_A"}
    busy = pair.one.add("busy", rate_limited("400"), **facts)
    free = pair.one.add("free", GOOD, tier="provider")
    pair.start(make_route(busy, free))
    pair.one.workers[0].until(lambda: pair.one.ask(0).status_code == 200 and pair.one.count("busy") > 0, 30)
    pair.other.workers[0].until(lambda: pair.other.explain(0)["busy"]["rejected"] == "busy", 30)
    assert 200 < pair.other.explain(0)["busy"]["retry_after_s"] <= 400
    asked = pair.one.count("busy")
    assert [pair.other.ask(0).status_code for _ in range(6)] == [200] * 6
    assert pair.one.count("busy") == asked, "the other machine leaves it alone"


def test_h6_what_a_provider_says_of_its_quota_is_known_on_the_other_machine(pair: Pair) -> None:
    headers = [
        ("x-ratelimit-limit-requests", "100"),
        ("x-ratelimit-remaining-requests", "25"),
        ("x-ratelimit-reset-requests", "60s"),
    ]
    facts = {"tier": "provider", "shares_quota": True, "api_key": "env:KEY_A"}
    cloud = pair.one.add("cloud", json_answer(chat_completion("Hello"), headers=headers), **facts)
    spare = pair.one.add("spare", GOOD, tier="provider", weight=0)
    pair.start(make_route(cloud, spare))
    pair.one.workers[0].until(lambda: pair.one.ask(0).status_code == 200 and pair.one.count("cloud") > 0, 30)
    worker = pair.other.workers[0]
    worker.until(lambda: pair.other.explain(0)["cloud"]["quota_used"] is not None, 30)
    assert pair.other.explain(0)["cloud"]["quota_used"] == pytest.approx(0.75, abs=0.2)


def test_a_machine_that_waits_gets_its_part_though_another_keeps_all_places_busy(pair: Pair) -> None:
    """Whatever gets free there the other machine would fill at once, with those that wait there."""
    own = pair.one.add("own", slow(0.2), tier="provisioned", requests_max=2)
    pair.start(make_route(own, queue=QueueRules()))
    is_over = threading.Event()

    def keep_busy() -> None:
        while not is_over.is_set():
            pair.one.ask(0, x_forebay_wait="30")

    with ThreadPoolExecutor(8) as pool:
        try:
            busy = [pool.submit(keep_busy) for _ in range(6)]
            pair.wait_requests(pair.other, 2)
            answers = [pair.other.ask(0, x_forebay_wait="25") for _ in range(3)]
        finally:
            is_over.set()
        assert [answer.status_code for answer in answers] == [200] * 3
        for each in busy:
            each.result()


def test_the_loads_of_a_machine_whose_control_plane_was_killed_vanish_in_time(pair: Pair) -> None:
    """As `kill -9` does it: its connection ends, and nothing more is said."""
    gate = Gate()
    own = pair.one.add("own", held(gate), tier="provisioned", requests_max=8)
    cloud = pair.one.add("cloud", GOOD, tier="provider")
    pair.start(make_route(own, cloud))
    with ThreadPoolExecutor(3) as pool, gate:
        asked = [pool.submit(pair.one.ask, 0) for _ in range(3)]
        pair.wait_requests(pair.other, 3)
        pair.one.board.close()
        since = time.monotonic()
        pair.wait_requests(pair.other, 0)
        assert time.monotonic() - since < SILENCE_MAX_S + SLACK_S
        pair.one.start_board()  # it comes again under another name, and its worker tells anew
        pair.wait_requests(pair.other, 3)
        gate.open()
        assert {each.result().status_code for each in asked} == {200}
    pair.wait_requests(pair.other, 0)


def test_without_redis_each_machine_goes_on_with_its_share_and_comes_back_by_itself(
    tmp_path: Path, redis_program: Path
) -> None:
    gate = Gate()
    with redis_servers.run(redis_program) as server, ExitStack() as stack:
        pair = Pair(tmp_path, stack, server.url)
        own = pair.one.add("own", held(gate), tier="provisioned", requests_max=8)
        cloud = pair.one.add("cloud", GOOD, tier="provider")
        pair.start(make_route(own, cloud))
        with ThreadPoolExecutor(3) as pool, gate:
            asked = [pool.submit(pair.one.ask, 0) for _ in range(2)]
            pair.wait_requests(pair.other, 2)
            # Everybody was heard, and is believed to go on when nobody is heard any more.
            worker = pair.one.workers[0]
            for machine in pair.machines:
                worker.until(lambda machine=machine: read_state(machine).expected == 2, 30)
            server.kill()
            pair.wait_requests(pair.other, 0)
            assert read_state(pair.other).trouble
            worker.until(lambda: pair.one.explain(0)["own"]["used"] == pytest.approx(2 / 4), 30)
            asked += [pool.submit(pair.other.ask, 0)]
            pair.wait_requests(pair.other, 1)
            server.start()
            pair.wait_requests(pair.other, 3)
            pair.wait_requests(pair.one, 3)
            gate.open()
            assert {each.result().status_code for each in asked} == {200}
        pair.wait_requests(pair.other, 0)


def test_places_have_the_same_names_on_all_machines_but_for_those_that_only_one_can_reach() -> None:
    one, other, alone = PlaceNames("one"), PlaceNames("other"), PlaceNames()
    far = ("http://10.0.0.1:8000/v1", "m", "env:KEY")
    near = [
        (f"http://{host}:8000/v1", "m", None) for host in ("127.0.0.1", "localhost", "[::1]", "127.9.9.9")
    ]
    assert one.name_place(far) == other.name_place(far) == alone.name_place(far)
    assert one.name_pool((far,), (8.0, 0.0)) == other.name_pool((far,), (8.0, 0.0))
    for place in near:
        assert one.name_place(place) != other.name_place(place)
        assert one.name_place(place) == PlaceNames("one").name_place(place)
        assert one.name_pool((far, place), (8.0, 0.0)) != other.name_pool((far, place), (8.0, 0.0))
    account = ("http", "127.0.0.1:8000", None)
    assert one.name_account(account) != other.name_account(account)
    assert one.name_account(("https", "api.example", None)) == other.name_account(
        ("https", "api.example", None)
    )
