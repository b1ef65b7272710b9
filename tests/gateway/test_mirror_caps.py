"""Mirrors under pressure: every cap holds, and what is above it is dropped, counted and missed by nobody."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.events import Finished
from forebay.core.routes import Choosing, Endpoint, Mirror, Order, Route
from forebay.gateway.mirror_digest import COMPARED_BYTES_MAX, compute_digest
from forebay.gateway.mirror_lane import Lane, is_sampled, share
from forebay.testing.answers import json_answer
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_key, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Wait
from forebay.testing.threaded import ThreadedUpstream

EU_KEY, OWN_KEY = "fb-test-key-of-europe", "fb-test-key-of-own-machines"
PATIENT = {"forebay.gateway.mirrors.LAG_MAX_S": 30.0}  #: a worker that stood still makes no copies
RULES: dict[str, dict[str, Any]] = {
    "few": {"requests_max": 1, "queue_max": 1},
    "small": {"bytes_max": 1024},
    "slow": {"per_s": 0.001},
    "never": {"share": 1e-12},
    "now": {"at_once": True},
    "late": {"requests_max": 1, "timeout_s": 0.3},
}


class Side:
    """An upstream that answers, unless its gate is shut."""

    def __init__(self) -> None:
        self.gate: Gate | None = None
        self.status = 200
        self.upstream = ThreadedUpstream(self._answer)

    def _answer(self, request: RecordedRequest) -> Script:
        if self.status != 200:
            return json_answer({"error": {"message": "no"}}, status=self.status)
        if request.path.endswith("/embeddings"):
            return json_answer({"data": [request.json()["input"]], "usage": {"prompt_tokens": 1}})
        waits = [] if self.gate is None else [Wait(self.gate)]
        return [*waits, *well_behaved("Hello")(request)]


class Scene:
    def __init__(self, worker: GatewayProcess, first: Side, mirror: Side) -> None:
        self.worker = worker
        self.first = first
        self.mirror = mirror

    def ask(self, model: str, key: str = TEST_KEY, *, size: int = 1, path: str = "chat/completions") -> str:
        """The request's id."""
        words = "x" * size
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": words}]}
        if path == "embeddings":
            body = {"model": model, "input": words}
        headers = {"authorization": f"Bearer {key}"}
        got = httpx.post(f"{self.worker.url}/{path}", json=body, headers=headers, timeout=60)
        assert got.status_code == 200, got.text
        return got.headers["x-request-id"]

    def count(self, model: str, result: str) -> float:
        return self.worker.metric("forebay_mirrors_total", model=model, result=result)

    def wait_count(self, model: str, result: str, count: int) -> None:
        self.worker.until(lambda: self.count(model, result) == count)

    def copies_of(self, *request_ids: str) -> list[Finished]:
        return [record for record in self.worker.records() if record.mirror_of in request_ids]

    def wait_copy(self, request_id: str) -> Finished:
        return self.worker.wait_for(lambda record: record.mirror_of == request_id)


def make_routes(first: str, mirror: str) -> list[Route]:
    routes = [make_route("copies", mirror), make_route("a", first), make_route("b", first)]
    away = msgspec.structs.replace(routes[0].targets[0], region="us", tier="provider")
    routes[0] = msgspec.structs.replace(routes[0], targets=(away,))
    for name, rules in RULES.items():
        mirrors = (Mirror(**{"model": "copies", "share": 1.0, **rules}),)
        route = make_route(name, first)
        home = msgspec.structs.replace(route.targets[0], region="eu", tier="provisioned")
        routes.append(msgspec.structs.replace(route, mirrors=mirrors, targets=(home,)))
    for index, other in ((1, "b"), (2, "a")):  # each other's
        mirrors = (Mirror(model=other, share=1.0),)
        routes[index] = msgspec.structs.replace(routes[index], mirrors=mirrors)
    return [*routes, *make_fleet(first, mirror)]


def make_fleet(first: str, mirror: str) -> list[Route]:
    """Models whose places are counted: one has a place for two at once, which its own requests share with
    the copies of another's."""
    place = make_route("fleet", mirror).targets[0]
    place = msgspec.structs.replace(place, requests_max=4)
    other = msgspec.structs.replace(place, id="fleet-other", pool="other", tier="provider", url=first)
    choosing = Choosing(order=Order.LOAD)
    fleet = make_route("fleet", mirror)
    fleet = msgspec.structs.replace(fleet, targets=(place, other), choosing=choosing)
    mirrors = (Mirror(model="fleet", share=1.0, timeout_s=30.0),)
    return [fleet, msgspec.structs.replace(make_route("to-fleet", first), mirrors=mirrors)]


@pytest.fixture(scope="module")
def _scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    first, mirror = Side(), Side()
    eu = msgspec.structs.replace(make_key(EU_KEY, id="eu"), regions=("eu",))
    own = msgspec.structs.replace(make_key(OWN_KEY, id="own"), tier_max="quantized")
    folder: Path = tmp_path_factory.mktemp("caps")
    with first.upstream, mirror.upstream:
        routes = make_routes(first.upstream.url, mirror.upstream.url)
        with GatewayProcess(routes, folder=folder, keys=[make_key(), eu, own], constants=PATIENT) as worker:
            yield Scene(worker, first, mirror)
            assert "Traceback" not in worker.log


@pytest.fixture
def scene(_scene: Scene) -> Iterator[Scene]:
    _scene.mirror.upstream.requests.clear()
    yield _scene
    for side in (_scene.first, _scene.mirror):
        if side.gate is not None:
            side.gate.open()
        side.gate, side.status = None, 200


def test_copies_above_the_caps_are_dropped_and_counted(scene: Scene) -> None:
    gate = scene.mirror.gate = Gate()
    asked = [scene.ask("few")]
    scene.mirror.upstream.wait_requests(1)
    asked += [scene.ask("few") for _ in range(6)]
    scene.wait_count("few", "queue_full", 5)
    gate.open()
    scene.wait_count("few", "ok", 2)
    asked.append(scene.ask("few"))
    scene.wait_count("few", "ok", 3)
    copies = scene.copies_of(*asked)
    assert len(copies) == 3
    assert sum(copy.mirrors_dropped for copy in copies) == 5
    assert len(scene.mirror.upstream.requests) == 3


def test_a_copy_that_waits_too_long_is_dropped(scene: Scene) -> None:
    scene.mirror.gate = Gate()
    first, second = scene.ask("late"), scene.ask("late")
    assert scene.wait_copy(first).error == "upstream_total_timeout"
    scene.worker.until(lambda: scene.count("late", "late") + scene.count("late", "failed") == 2)
    assert all(copy.duration_ns < 5e9 for copy in scene.copies_of(first, second))


@pytest.mark.parametrize(
    ("model", "key", "size", "result"),
    [
        ("small", TEST_KEY, 2000, "too_large"),
        ("few", EU_KEY, 1, "barred"),
        ("few", OWN_KEY, 1, "barred"),
    ],
)
def test_what_may_not_be_copied_goes_nowhere(
    scene: Scene, model: str, key: str, size: int, result: str
) -> None:
    before = scene.count(model, result)
    asked = scene.ask(model, key, size=size)
    scene.worker.until(lambda: scene.count(model, result) == before + 1)
    scene.worker.wait_record(asked)
    assert not scene.copies_of(asked)
    assert not scene.mirror.upstream.requests


def test_a_rate_is_a_cap(scene: Scene) -> None:
    for _ in range(5):
        scene.ask("slow")
    scene.wait_count("slow", "too_many", 4)
    scene.wait_count("slow", "ok", 1)


def test_a_request_outside_the_share_costs_nothing(scene: Scene) -> None:
    scene.worker.wait_record(scene.ask("never"))
    assert scene.worker.metric("forebay_mirrors_total", model="never") == 0


def test_a_copy_is_never_mirrored(scene: Scene) -> None:
    copy = scene.wait_copy(scene.ask("a"))
    assert copy.model == "b"
    scene.worker.wait_idle()
    assert not scene.copies_of(copy.request_id)
    assert scene.worker.metric("forebay_mirrors_total", model="b") == 0


def test_a_copy_may_go_at_once(scene: Scene) -> None:
    with httpx.Client() as client:
        gate = scene.first.gate = Gate()
        body = {"model": "now", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        headers = {"authorization": f"Bearer {TEST_KEY}"}
        asked = client.build_request(
            "POST", f"{scene.worker.url}/chat/completions", json=body, headers=headers
        )
        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(client.send, asked)
            scene.mirror.upstream.wait_requests(1)  # while its request has no answer yet
            assert not answered.done()
            gate.open()
            got = answered.result(60)
    assert got.status_code == 200
    assert scene.wait_copy(got.headers["x-request-id"]).outcome == "ok"


def test_results_are_compared_where_they_follow_from_the_input(scene: Scene) -> None:
    assert scene.wait_copy(scene.ask("few", path="embeddings")).mirror_same is True
    assert scene.wait_copy(scene.ask("few")).mirror_same is None


def test_half_of_a_place_is_for_requests(scene: Scene) -> None:
    scene.mirror.gate = Gate()
    for number in range(4):
        scene.ask("to-fleet")
        if number < 2:
            scene.mirror.upstream.wait_requests(number + 1)
    scene.wait_count("to-fleet", "target_busy", 2)
    assert len(scene.mirror.upstream.requests) == 2


def test_copies_that_fail_put_no_place_out_of_service(scene: Scene) -> None:
    scene.mirror.status = 500
    for _ in range(8):
        assert scene.wait_copy(scene.ask("to-fleet")).status == 500
    scene.mirror.status = 200
    assert scene.worker.wait_record(scene.ask("fleet")).target == "fleet-0"


def test_nothing_stays_held(scene: Scene) -> None:
    scene.wait_copy(scene.ask("few", size=100_000))
    scene.worker.until(lambda: scene.worker.metric("forebay_memory_held_bytes") == 0)


def test_a_drain_cuts_copies_at_once_and_records_them(tmp_path: Path) -> None:
    mirror = Side()
    mirror.gate = Gate()
    with Side().upstream as first, mirror.upstream:
        routes = make_routes(first.url, mirror.upstream.url)
        with GatewayProcess(routes, folder=tmp_path, constants=PATIENT) as worker:
            scene = Scene(worker, Side(), mirror)
            asked = scene.ask("few")
            mirror.upstream.wait_requests(1)
            begun = time.monotonic()
            worker.terminate()
            assert worker.wait() == 0
            assert time.monotonic() - begun < 20
            copy = scene.wait_copy(asked)
            assert (copy.error, copy.usage_source) == ("gateway_draining", "estimated")
        mirror.gate.open()


def test_a_worker_that_is_too_busy_makes_no_copy(tmp_path: Path) -> None:
    """As one that takes longer than it may, which here is no time at all."""
    first, mirror = Side(), Side()
    with first.upstream, mirror.upstream:
        routes = make_routes(first.upstream.url, mirror.upstream.url)
        busy = {"forebay.gateway.mirrors.LAG_MAX_S": -1.0}
        with GatewayProcess(routes, folder=tmp_path, constants=busy) as worker:
            scene = Scene(worker, first, mirror)
            asked = scene.ask("few")
            scene.wait_count("few", "gateway_busy", 1)
            assert not scene.copies_of(asked)
            assert not mirror.upstream.requests


def test_no_copy_goes_out_that_could_not_be_recorded(tmp_path: Path) -> None:
    first, mirror = Side(), Side()
    with first.upstream, mirror.upstream:
        routes = make_routes(first.upstream.url, mirror.upstream.url)
        with GatewayProcess(routes, folder=tmp_path, constants=PATIENT) as worker:
            scene = Scene(worker, first, mirror)
            shutil.rmtree(tmp_path / "ledger")
            (tmp_path / "ledger").write_text("a file where the folder was")
            for _ in range(3):
                scene.ask("few")
            scene.wait_count("few", "records_unwritable", 3)
            assert not mirror.upstream.requests
            # It is told now and then: only after it was told can it be told to have ended.
            worker.until(lambda: worker.metric("forebay_records_waiting") > 0)
            (tmp_path / "ledger").unlink()
            worker.until(lambda: worker.metric("forebay_records_waiting") == 0)
            assert scene.wait_copy(scene.ask("few")).mirrors_dropped == 3


def test_a_worker_that_is_killed_owes_nothing(tmp_path: Path) -> None:
    first, mirror = Side(), Side()
    mirror.gate = Gate()
    with first.upstream, mirror.upstream:
        routes = make_routes(first.upstream.url, mirror.upstream.url)
        with GatewayProcess(routes, folder=tmp_path, constants=PATIENT) as worker:
            asked = Scene(worker, first, mirror).ask("few")
            mirror.upstream.wait_requests(1)
            worker.kill()
            assert [record.request_id for record in worker.records()] == [asked]
        mirror.gate.open()
        with GatewayProcess(routes, folder=tmp_path, constants=PATIENT) as worker:
            scene = Scene(worker, first, mirror)
            assert scene.wait_copy(scene.ask("few")).status == 200
            assert len(worker.records()) == 3, "none for the copy that was cut"


# --- alone --------------------------------------------------------------------------------------------------


def test_the_share_is_what_it_says_and_the_same_for_all() -> None:
    ids = [f"req_0abc{number:x}" for number in range(20_000)]
    for part in (0.01, 0.25, 1.0):
        mirror = Mirror(model="m", share=part)
        drawn = {each for each in ids if is_sampled(each, mirror)}
        assert abs(len(drawn) / len(ids) - part) < 0.012
        assert drawn == {each for each in ids if is_sampled(each, mirror)}
        assert drawn <= {
            each for each in ids if is_sampled(each, Mirror(model="m", share=min(1.0, 2 * part)))
        }


@given(gaps=st.lists(st.floats(0, 3), max_size=60), per_s=st.floats(0.1, 20), workers=st.integers(1, 8))
def test_no_more_pass_than_a_rate_allows(gaps: list[float], per_s: float, workers: int) -> None:
    lane: Lane[int] = Lane("m", "n")
    mirror, now, passed, rate = Mirror(model="n", per_s=per_s), 100.0, 0, per_s / workers
    for gap in gaps:
        now += gap
        passed += lane.find_refusal(mirror, 1, workers, now) == ""
        assert passed <= max(1.0, rate) + 1 + (now - 100.0) * rate


@given(most=st.integers(1, 1000), workers=st.integers(1, 64))
def test_workers_share_a_cap(most: int, workers: int) -> None:
    assert most <= share(most, workers) * workers < most + workers


@pytest.mark.parametrize(
    ("endpoint", "one", "other", "is_same"),
    [
        (Endpoint.INFER, b'{"id":1,"outputs":[{"data":[1.50]}]}', b'{"outputs": [{"data": [1.5]}]}', True),
        (Endpoint.INFER, b'{"outputs":[{"data":[1.50]}]}', b'{"outputs":[{"data":[1.51]}]}', False),
        (Endpoint.RERANK, b'{"results":[{"a":1,"b":2}]}', b'{"results":[{"b":2,"a":1}],"id":"x"}', True),
        (Endpoint.SCORE, b'{"data":[1],"model":"a"}', b'{"data":[1],"model":"b"}', True),
        (Endpoint.EMBEDDINGS, b'{"data":[[1,2]]}', b'{"data":[[2,1]]}', False),
    ],
)
def test_results_are_compared_by_what_they_say(
    endpoint: Endpoint, one: bytes, other: bytes, is_same: bool
) -> None:
    found = compute_digest(endpoint, one)
    assert found is not None
    assert (found == compute_digest(endpoint, other)) is is_same


@given(results=st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists))
def test_a_digest_is_made_of_whatever_comes(results: object) -> None:
    body = json.dumps({"data": results}).encode()
    assert compute_digest(Endpoint.SCORE, body) == compute_digest(Endpoint.SCORE, body)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.CHAT, b'{"choices":[]}'),
        (Endpoint.INFER, b'{"outputs":[]}\x00\x01'),
        (Endpoint.INFER, b'{"error":"x"}'),
        (Endpoint.SCORE, b"[]"),
        (Endpoint.SCORE, b'{"data":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        (Endpoint.EMBEDDINGS, b'{"data":[' + b" " * COMPARED_BYTES_MAX + b"]}"),
    ],
)
def test_what_can_not_be_compared_is_neither_same_nor_other(endpoint: Endpoint, body: bytes) -> None:
    assert compute_digest(endpoint, body) is None
