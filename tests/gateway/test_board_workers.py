"""Workers that know each other's loads: what one has in flight moves the choice of the other.

Faults H3 and H6 over real workers, and what becomes of loads when board or workers are gone.
"""

import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from board_rig import Machine, make_route

from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.routes import Affinity
from forebay.gateway.frames import FRAME_MAX_BYTES
from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import chat_completion, chat_stream, rate_limited, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Wait
from forebay.testing.upstream import Answer

GOOD = well_behaved("Hello")


def held(gate: Gate) -> Answer:
    """Answers once the gate is open."""

    def choose(request: RecordedRequest) -> Script:
        return [Wait(gate), *(GOOD(request) if callable(GOOD) else GOOD)]

    return choose


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


def test_what_one_worker_has_in_flight_moves_the_choice_of_the_other(machine: Machine) -> None:
    """What spills is drawn, so as many are asked that one must: each that stays makes the pool fuller."""
    gate = Gate()
    own = machine.add("own", held(gate), tier="provisioned", requests_max=8)
    cloud = machine.add("cloud", GOOD, tier="provider")
    machine.start(make_route(own, cloud, affinity=Affinity.NONE))
    first, second = machine.workers
    assert machine.explain(1)["own"]["used"] == 0
    with ThreadPoolExecutor(21) as pool, gate:
        asked = [pool.submit(machine.ask, 0) for _ in range(16)]
        first.until(lambda: machine.count("own") + machine.count("cloud") == 16)
        assert machine.count("own") >= 6, "below the level nothing spills"
        second.until(lambda: machine.explain(1)["own"]["others_requests"] == machine.count("own"))
        seen = machine.explain(1)["own"]
        assert seen["requests"] == seen["others_requests"]
        assert seen["used"] == pytest.approx(seen["requests"] / 8)
        # Five would fit if nobody else were there; beside the others' six not even four stay.
        asked += [pool.submit(machine.ask, 1) for _ in range(5)]
        first.until(lambda: any(each.worker == 1 and each.pool == "cloud" for each in first.records()))
        gate.open()
        assert {each.result().status_code for each in asked} == {200}
    second.until(lambda: machine.explain(1)["own"]["requests"] == 0)


def test_without_a_board_each_worker_has_its_share(machine: Machine) -> None:
    gate = Gate()
    own = machine.add("own", held(gate), tier="provisioned", requests_max=8)
    cloud = machine.add("cloud", GOOD, tier="provider")
    machine.start(make_route(own, cloud))
    with ThreadPoolExecutor(2) as pool, gate:
        asked = [pool.submit(machine.ask, 0) for _ in range(2)]
        machine.workers[0].until(lambda: machine.explain(0)["own"]["used"] == pytest.approx(2 / 8))
        machine.board.close()
        machine.workers[0].until(lambda: machine.explain(0)["own"]["used"] == pytest.approx(2 / 4))
        machine.workers[1].until(lambda: machine.explain(1)["own"]["requests"] == 0)
        gate.open()
        assert machine.ask(1).status_code == 200
        assert {each.result().status_code for each in asked} == {200}
    machine.workers[0].until(lambda: machine.workers[0].metric("forebay_board_connected") == 0)


def test_the_load_of_a_worker_that_was_killed_is_gone(machine: Machine) -> None:
    gate = Gate()
    own = machine.add("own", held(gate), tier="provisioned", requests_max=8)
    cloud = machine.add("cloud", GOOD, tier="provider")
    machine.start(make_route(own, cloud))
    with ThreadPoolExecutor(3) as pool, gate:
        asked = [pool.submit(machine.ask, 0) for _ in range(3)]
        second = machine.workers[1]
        second.until(lambda: machine.explain(1)["own"]["requests"] == 3)
        machine.workers[0].kill()
        second.until(lambda: machine.explain(1)["own"]["requests"] == 0)
        assert all(each.exception() is not None for each in asked)


def test_a_worker_that_does_not_speak_any_more_is_unknown(machine: Machine) -> None:
    """It hangs, so nobody knows how much of its load is left."""
    gate = Gate()
    own = machine.add("own", held(gate), tier="provisioned", requests_max=8)
    cloud = machine.add("cloud", GOOD, tier="provider")
    machine.start(make_route(own, cloud))
    with ThreadPoolExecutor(3) as pool, gate:
        asked = [pool.submit(machine.ask, 0) for _ in range(3)]
        first, second = machine.workers
        second.until(lambda: machine.explain(1)["own"]["requests"] == 3)
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            second.until(lambda: machine.explain(1)["own"]["requests"] == 0)
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
        second.until(lambda: machine.explain(1)["own"]["requests"] == 3)
        gate.open()
        assert {each.result().status_code for each in asked} == {200}


# --- H3 -----------------------------------------------------------------------------------------------------


def test_h3_retry_after_holds_for_every_model_and_worker_of_the_account(machine: Machine) -> None:
    facts = {"tier": "provider", "shares_quota": True, "api_key": "env:KEY_A"}
    busy = machine.add("busy", rate_limited("300"), **facts)
    other = machine.add("busy", GOOD, model="n", path="/other", **facts)
    strangers = machine.add("busy", GOOD, model="x", path="/more", **(facts | {"api_key": "env:KEY_B"}))
    free = machine.add("free", GOOD, tier="provider")
    machine.start(
        make_route(busy, free), make_route(other, free, model="n"), make_route(strangers, free, model="x")
    )
    machine.workers[0].until(lambda: machine.ask(0).status_code == 200 and machine.count("busy") == 1)
    assert machine.explain(0)["busy"]["rejected"] == "busy"
    assert machine.explain(0, "n")["busy"]["rejected"] == "busy"
    machine.workers[1].until(lambda: machine.explain(1)["busy"]["rejected"] == "busy")
    seen = machine.explain(1, "n")["busy"]
    assert seen["rejected"] == "busy"
    assert 200 < seen["retry_after_s"] <= 300
    assert "of its account" in seen["why"]
    assert machine.explain(1, "x")["busy"]["rejected"] is None, "another account"
    assert machine.ask(1, "n").status_code == 200
    assert machine.count("busy") == 1


def test_h3_own_engines_have_each_their_own_quota_and_all_workers_leave_it_alone(machine: Machine) -> None:
    busy = machine.add("busy", rate_limited("300"), tier="provisioned")
    beside = machine.add("busy", GOOD, model="n", path="/other", tier="provisioned")
    free = machine.add("free", GOOD, tier="provisioned")
    machine.start(make_route(busy, free), make_route(beside, free, model="n"))
    first, second = machine.workers
    first.until(lambda: machine.ask(0).status_code == 200 and machine.count("busy") == 1)
    second.until(lambda: machine.explain(1)["busy"]["rejected"] == "busy")
    assert machine.explain(1, "n")["busy"]["rejected"] is None
    assert {machine.ask(1).status_code for _ in range(6)} == {200}
    assert machine.count("busy") == 1


# --- engines ------------------------------------------------------------------------------------------------


@contextmanager
def publishing(machine: Machine, *loads: EngineLoad) -> Iterator[None]:
    """As a control plane does, again and again: after five seconds it is forgotten."""
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            machine.board.publish(*loads)
            is_over.wait(0.3)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(publish)
        try:
            yield
        finally:
            is_over.set()
        done.result()


def test_what_engines_say_reaches_every_worker_and_is_forgotten(machine: Machine) -> None:
    own = machine.add("own", GOOD, tier="provisioned")
    other = machine.add("other", GOOD, tier="provisioned")
    cloud = machine.add("cloud", GOOD, tier="provider")
    machine.start(make_route(own, other, cloud))
    full = {"running": 30, "waiting": 90, "kv_cache_used": 0.99, "queue_wait_s": 30.0}
    first = machine.workers[0]
    with publishing(
        machine, EngineLoad(own.id, EngineState.COLD), EngineLoad(other.id, EngineState.READY, **full)
    ):
        for number, worker in enumerate(machine.workers):
            worker.until(lambda number=number: machine.explain(number)["own"]["rejected"] == "cold")
            worker.until(lambda number=number: machine.explain(number)["other"]["engine"]["waiting"] == 90)
            assert machine.ask(number).status_code == 200
        assert machine.count("cloud") == 2
        # Each worker counts it at its own sweep.
        first.until(lambda: first.metric("forebay_places", state="cold") == 2)
    machine.workers[0].until(lambda: machine.explain(0)["own"]["engine"] is None)
    assert machine.explain(0)["own"]["rejected"] is None


# --- quotas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_is_left_of_a_quota_spills_before_it_refuses(machine: Machine, stream: bool) -> None:
    headers = [
        ("x-ratelimit-limit-tokens", "1000"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "50s"),
    ]
    scarce = (
        sse_answer(chat_stream(("Hello",)), headers=headers)
        if stream
        else json_answer(chat_completion("Hello"), headers=headers)
    )
    facts = {"tier": "autoscaled", "shares_quota": True, "api_key": "env:KEY_A"}
    first = machine.add("first", scarce, **facts)
    other = machine.add("first", scarce, model="n", path="/other", **facts)
    cloud = machine.add("cloud", GOOD, tier="provider")
    machine.start(make_route(first, cloud), make_route(other, cloud, model="n"))
    assert machine.explain(0)["first"]["quota_used"] is None
    assert machine.ask(0, stream=stream).status_code == 200

    def is_scarce(number: int) -> bool:
        seen = machine.explain(number, "n")["first"]
        return (seen["quota_used"] or 0) > 0.9 and (seen["used"] or 0) > 1.2

    for number, worker in enumerate(machine.workers):
        worker.until(lambda number=number: is_scarce(number))
    asked = machine.count("first")
    assert {machine.ask(number % 2).status_code for number in range(10)} == {200}
    assert machine.count("first") == asked


# --- a board of no use --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff" * 100, struct.pack("<I", FRAME_MAX_BYTES + 1), struct.pack("<I", 3) + b"abc", b""],
    ids=["bytes", "long", "words", "silence"],
)
def test_a_board_that_talks_rubbish_hurts_no_request(machine: Machine, rubbish: bytes) -> None:
    own = machine.add("own", GOOD, tier="provisioned", requests_max=8)
    cloud = machine.add("cloud", GOOD, tier="provider")
    path = machine.folder / "run" / "board.sock"
    path.parent.mkdir(parents=True)
    listener = machine.stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen(8)
    listener.settimeout(60)
    machine.start(make_route(own, cloud), workers=1, board=False)
    for _ in range(2):
        line, _ = listener.accept()
        line.sendall(rubbish)
        assert machine.ask(0).status_code == 200
        line.settimeout(60)
        while line.recv(65536):
            pass
        line.close()
    assert machine.workers[0].metric("forebay_board_connected") == 0
    assert machine.workers[0].log.count("speaks another language") == (1 if rubbish else 0)


def test_rubbish_at_the_board_hurts_no_other_worker(machine: Machine) -> None:
    gate = Gate()
    own = machine.add("own", held(gate), tier="provisioned", requests_max=8)
    cloud = machine.add("cloud", GOOD, tier="provider")
    machine.start(make_route(own, cloud))
    for rubbish in (b"\xff" * 100, struct.pack("<I", FRAME_MAX_BYTES + 1), struct.pack("<I", 3) + b"abc"):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(machine.board.path))
            line.settimeout(60)
            line.sendall(rubbish)
            assert line.recv(100) == b""
    with ThreadPoolExecutor(2) as pool, gate:
        asked = [pool.submit(machine.ask, 0) for _ in range(2)]
        machine.workers[1].until(lambda: machine.explain(1)["own"]["requests"] == 2)
        gate.open()
        assert {each.result().status_code for each in asked} == {200}
