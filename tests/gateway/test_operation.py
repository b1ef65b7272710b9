"""A worker's life: new snapshots under load, draining, deadlines, sudden death, a disk that refuses."""

import contextlib
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from gateway_stage import Stage
from raw_caller import RawCaller, Reply

from forebay.app.applied import load_applied
from forebay.core.events import Outcome
from forebay.core.routes import Endpoint, GatewayLimits, Route, RouteTable, Snapshot, encode_snapshot
from forebay.testing.answers import chunk, json_answer, malformed_answers, sse_answer, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_key, make_route
from forebay.testing.openai import DONE, chat_chunk, chat_completion, chat_stream, event
from forebay.testing.steps import Gate, Send, Sleep, Stall, Step, Wait

ASK: dict[str, Any] = {"model": "m", "messages": []}
STREAM = ASK | {"stream": True}
HEADERS = {"authorization": f"Bearer {TEST_KEY}"}
WHOLE = b"".join(chat_stream(["Hel", "lo"], include_usage=False))


@pytest.fixture
def start(tmp_path: Path, upstream: Stage) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts workers of a test's own, all on one data folder."""
    with contextlib.ExitStack() as stack:

        def begin(**options: Any) -> GatewayProcess:
            routes = options.pop("routes", [make_route("m", upstream.url)])
            return stack.enter_context(GatewayProcess(routes, folder=tmp_path / "data", **options))

        yield begin


class Load:
    """Callers that ask again and again, each on connections of its own, and what went wrong."""

    def __init__(self, url: str, callers: int, *, fresh: bool = False) -> None:
        self.failed: list[str] = []
        self.ids: list[str] = []
        self._url = url
        self._fresh = fresh  # a new connection for each request
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on, args=(n,)) for n in range(callers)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait(self, more: int) -> None:
        """Until so many more requests have been answered."""
        goal = len(self.ids) + len(self.failed) + more
        deadline = time.monotonic() + 120
        while len(self.ids) + len(self.failed) < goal:
            assert time.monotonic() < deadline, "the load came to a halt"
            time.sleep(0.005)

    def _ask_on(self, number: int) -> None:
        headers = HEADERS | ({"connection": "close"} if self._fresh else {})
        with httpx.Client(headers=headers, verify=False, timeout=60) as client:
            while not self._over.is_set():
                self._ask_once(client, stream=number % 2 == 0)

    def _ask_once(self, client: httpx.Client, *, stream: bool) -> None:
        try:
            answer = client.post(self._url + "/chat/completions", json=STREAM if stream else ASK)
            good = answer.content == WHOLE if stream else answer.json()["choices"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.failed.append(repr(error))
            return
        if answer.status_code == 200 and good:
            self.ids.append(answer.headers["x-request-id"])
        else:
            self.failed.append(f"{answer.status_code} {answer.text}")


def open_streams(gateway: GatewayProcess, count: int) -> list[RawCaller]:
    callers = [RawCaller(gateway.port) for _ in range(count)]
    for caller in callers:
        caller.post("chat/completions", STREAM)
    for caller in callers:
        caller.read_until(b'"Hel"')
    return callers


def stream_behind(gate: Gate) -> list[Step]:
    first, rest = chat_stream(["Hel", "lo"])[:2], chat_stream(["Hel", "lo"])[2:]
    return [*sse_head(), chunk(b"".join(first)), Wait(gate), chunk(b"".join(rest)), Send(b"0\r\n\r\n")]


# --- snapshots ----------------------------------------------------------------------------------------------


def test_snapshots_are_swapped_under_load_without_a_failed_request(
    start: Callable[..., GatewayProcess], upstream: Stage, fallback: Stage
) -> None:
    gateway = start()
    gate = Gate()
    upstream.next.append(stream_behind(gate))
    (held,) = open_streams(gateway, 1)
    with Load(gateway.url, 4) as load:
        for round_ in range(8):
            url = (upstream, fallback)[round_ % 2].url
            routes = [make_route("m", url), *[make_route(f"other-{n}", url) for n in range(round_)]]
            gateway.write_snapshot(Snapshot(table=RouteTable(routes=tuple(routes)), keys=(make_key(),)))
            load.wait(40)
            gateway.until(
                lambda n=round_: (
                    len(httpx.get(gateway.url + "/models", headers=HEADERS).json()["data"]) == n + 1
                )
            )
    assert load.failed == []
    assert len(load.ids) > 300
    assert len(set(load.ids)) == len(load.ids), "request ids are unique"
    gate.open()
    assert bytes(held.read_all().body) == WHOLE, "a stream keeps the snapshot that it began with"
    records = [gateway.wait_record(request_id) for request_id in (load.ids[0], load.ids[-1], held.reply.id)]
    assert {record.outcome for record in records} == {Outcome.OK}
    assert records[0].route_hash != records[1].route_hash
    assert records[0].route_hash == records[2].route_hash
    all_ids = [record.request_id for record in gateway.records()]
    assert len(set(all_ids)) == len(all_ids)
    assert set(load.ids) <= set(all_ids)
    assert gateway.metric("forebay_requests_total", model="m") == len(all_ids)
    held.close()


def useless_snapshots(good: Snapshot) -> dict[str, bytes]:
    data = encode_snapshot(good)
    return {
        "empty": b"",
        "noise": b"\xff\x00 no snapshot",
        "cut": data[:-10],
        "JSON": b'{"table":{"routes":[]},"keys":[]}',
        "the wrong type": msgspec.msgpack.encode({"table": 7, "keys": []}),
    }


def test_a_snapshot_of_no_use_leaves_the_old_one_in_force(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start()
    told = 0
    with httpx.Client(base_url=gateway.url, headers=HEADERS, verify=False) as client:
        for data in useless_snapshots(gateway.snapshot).values():
            gateway.write_snapshot(data)
            told += 1
            gateway.until(lambda n=told: gateway.log.count("of no use") == n)
            gateway.until(lambda: load_applied(gateway.run_dir)["worker-0"].refused)
            applied = load_applied(gateway.run_dir)["worker-0"]
            assert applied.snapshot_hash == gateway.snapshot.compute_hash()
            assert client.post("/chat/completions", json=ASK).status_code == 200
        (gateway.run_dir / "snapshot.msgpack").unlink()
        assert client.post("/chat/completions", json=ASK).status_code == 200
        gateway.write_snapshot(msgspec.structs.replace(gateway.snapshot, keys=()))
        gateway.until(lambda: client.get("/models").status_code == 401)
    assert not load_applied(gateway.run_dir)["worker-0"].refused
    assert gateway.log.count("of no use") == told, "each is told once"
    assert gateway.metric("forebay_snapshots_refused_total") == told
    assert "Traceback" not in gateway.log


BAD_URLS = ["ftp://example/v1", "http://127.0.0.1:1/模型/v1", "http://bücher.example/v1", "http://h:x/v1", ""]


def bad_targets(folder: Path) -> dict[str, Route]:
    """Routes to one target that is of no use, by the reason."""
    (folder / "noise.pem").write_text("no certificate")
    routes = {f"url-{number}": make_route(f"url-{number}", url) for number, url in enumerate(BAD_URLS)}
    for model, name in {"ca-missing": "none.pem", "ca-noise": "noise.pem", "ca-folder": "."}.items():
        (target,) = make_route(model, "https://127.0.0.1:1/v1").targets
        target = msgspec.structs.replace(target, tls_ca=str(folder / name))
        routes[model] = Route(model=model, endpoints=tuple(Endpoint), targets=(target,))
    return routes


def test_a_target_of_no_use_is_its_own_problem_and_delays_no_revocation(
    start: Callable[..., GatewayProcess], upstream: Stage, tmp_path: Path
) -> None:
    gateway = start(keys=[make_key("fb-old", id="old"), make_key()])
    bad = bad_targets(tmp_path)
    behind = make_route("behind", BAD_URLS[0], upstream.url)
    table = RouteTable(routes=(*gateway.snapshot.table.routes, *bad.values(), behind))
    gateway.write_snapshot(msgspec.structs.replace(gateway.snapshot, table=table, keys=(make_key(),)))

    def check() -> None:
        with httpx.Client(base_url=gateway.url, headers=HEADERS, verify=False) as client:
            old = {"authorization": "Bearer fb-old"}
            gateway.until(lambda: client.post("/chat/completions", json=ASK, headers=old).status_code == 401)
            for model in ("m", "behind"):
                assert client.post("/chat/completions", json=ASK | {"model": model}).status_code == 200
            for model in bad:
                answer = client.post("/chat/completions", json=ASK | {"model": model})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (503, "upstream_misconfigured")
                assert f"target {model}-0 " in error["message"]
                assert ("tls_ca" in error["message"]) == model.startswith("ca")
                assert str(tmp_path) not in error["message"]
        assert "Traceback" not in gateway.log
        assert all(f"target {model}-0 is of no use" in gateway.log for model in bad)
        applied = load_applied(gateway.run_dir)["worker-0"]
        assert (applied.pid, applied.refused) == (gateway.process.pid, "")
        assert len(applied.problems) == len(bad) + 1

    check()
    gateway.kill()
    gateway.snapshot = msgspec.structs.replace(gateway.snapshot, table=table, keys=(make_key(),))
    gateway.start()
    check()


def test_a_snapshot_that_the_disk_refuses_is_taken_once_that_is_mended(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    """New models need new counters, and those a file."""
    gateway = start()
    folder = gateway.run_dir / "metrics"
    folder.rename(gateway.run_dir / "away")
    folder.touch()
    routes = (*gateway.snapshot.table.routes, make_route("new", upstream.url))
    gateway.write_snapshot(msgspec.structs.replace(gateway.snapshot, table=RouteTable(routes=routes)))
    gateway.until(lambda: "of no use" in gateway.log)
    folder.unlink()
    (gateway.run_dir / "away").rename(folder)
    with httpx.Client(base_url=gateway.url, headers=HEADERS, verify=False) as client:
        gateway.until(lambda: client.get("/models/new").status_code == 200)
    assert gateway.log.count("of no use") == 1


def test_a_revoked_key_stops_working_and_a_new_one_starts(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start(keys=[make_key("fb-old", id="old")])
    with httpx.Client(base_url=gateway.url, verify=False) as client:
        old, new = ({"authorization": f"Bearer {key}"} for key in ("fb-old", "fb-new"))
        assert client.post("/chat/completions", json=ASK, headers=old).status_code == 200
        assert client.post("/chat/completions", json=ASK, headers=new).status_code == 401
        gateway.write_snapshot(
            msgspec.structs.replace(gateway.snapshot, keys=(make_key("fb-new", id="new"),))
        )
        gateway.until(lambda: client.post("/chat/completions", json=ASK, headers=old).status_code == 401)
        assert client.post("/chat/completions", json=ASK, headers=new).status_code == 200


def test_limits_change_with_the_snapshot(start: Callable[..., GatewayProcess], upstream: Stage) -> None:
    gateway = start()
    body = b'{"model":"m","x":"' + b"x" * 5000 + b'"}'
    with httpx.Client(base_url=gateway.url, headers=HEADERS, verify=False) as client:
        assert client.post("/completions", content=body).status_code == 200
        gateway.write_snapshot(
            msgspec.structs.replace(gateway.snapshot, limits=GatewayLimits(body_max_bytes=4096))
        )
        gateway.until(lambda: client.post("/completions", content=body).status_code == 413)


def test_a_worker_without_a_snapshot_says_so_and_ends(tmp_path: Path) -> None:
    (tmp_path / "data/run").mkdir(parents=True)
    process = GatewayProcess([], folder=tmp_path / "data")
    for data in (None, b"nonsense"):
        process.write_snapshot = lambda _, data=data: (  # type: ignore[method-assign]
            None if data is None else (process.run_dir / "snapshot.msgpack").write_bytes(data)
        )
        with pytest.raises(RuntimeError, match="ended with 2"):
            process.start()
        assert "worker 0 can't start" in process.log
        assert "Traceback" not in process.log
    process.close()


# --- draining -----------------------------------------------------------------------------------------------


def test_a_drain_lets_open_streams_finish(start: Callable[..., GatewayProcess], upstream: Stage) -> None:
    gateway = start(limits=GatewayLimits(drain_grace_s=5, drain_deadline_s=40))
    gate = Gate()
    upstream.answer = stream_behind(gate)
    callers = open_streams(gateway, 20)
    upstream.next.append([Wait(gate), *json_answer(chat_completion())])
    waiting = RawCaller(gateway.port)
    waiting.post("chat/completions", ASK)
    upstream.wait_request(21)
    assert gateway.get("/readyz") == (200, b"ok\n")
    told_s = time.monotonic()
    gateway.terminate()
    gateway.until(lambda: gateway.get("/readyz") == (503, b"draining\n"))
    assert gateway.get("/healthz")[0] == 200
    late = RawCaller(gateway.port)  # within the grace everybody is still served
    late.post("chat/completions", STREAM)
    late.read_until(b'"Hel"')
    time.sleep(max(0.0, told_s + 5.2 - time.monotonic()))  # until the grace is over
    gate.open()
    for caller in [*callers, late]:
        assert bytes(caller.read_all().body) == WHOLE
    for caller in [*callers, late]:
        assert caller.socket.recv(1) == b"", "the connection ends once no other request comes"
    assert waiting.read_all().status == 200
    begun = time.monotonic()
    assert gateway.wait() == 0
    assert time.monotonic() - begun < 20, "well before the deadline"
    records = gateway.records()
    assert len(records) == 22
    assert {record.outcome for record in records} == {Outcome.OK}


def test_a_worker_with_a_successor_stays_ready_and_has_no_grace(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    """Whoever asks at the port for its readiness may be answered by the one that goes: it is no reason to
    look away."""
    gateway = start(limits=GatewayLimits(drain_grace_s=60, drain_deadline_s=20))
    gate = Gate()
    upstream.answer = stream_behind(gate)
    (caller,) = open_streams(gateway, 1)
    with RawCaller(gateway.port) as watcher:
        ask = b"GET /readyz HTTP/1.1\r\nhost: t\r\n\r\n"
        watcher.send(ask)
        assert watcher.read_all().status == 200
        gateway.process.send_signal(signal.SIGUSR1)
        for _ in range(2000):
            watcher.reply = Reply()
            watcher.send(ask)
            assert (watcher.read_all().status, bytes(watcher.reply.body)) == (200, b"ok\n")
            if watcher.reply.header("connection") == "close":
                break
            time.sleep(0.02)
        else:
            raise AssertionError("it has not begun to drain")
    gate.open()
    assert bytes(caller.read_all().body) == WHOLE
    begun = time.monotonic()
    assert gateway.wait() == 0
    assert time.monotonic() - begun < 15


def test_after_the_deadline_each_stream_is_told_and_recorded(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start(limits=GatewayLimits(drain_deadline_s=0.4))
    upstream.answer = [*sse_head(), chunk(b"".join(chat_stream(["Hel"])[:2])), Stall()]
    callers = open_streams(gateway, 20)
    upstream.answer = [Stall()]
    waiting = RawCaller(gateway.port)
    waiting.post("chat/completions", ASK)
    upstream.wait_request(21)
    uploading = RawCaller(gateway.port)
    uploading.post("chat/completions", b"x" * 100_000, body_sent=10)
    gateway.until(lambda: gateway.metric("forebay_requests_in_flight") == 22)
    gateway.terminate()
    begun = time.monotonic()
    assert gateway.wait() == 0
    assert time.monotonic() - begun < 0.4 + 15
    for caller in callers:
        body = bytes(caller.read_all().body)
        assert b'"code":"gateway_draining"' in body.splitlines()[-2]
        assert b"[DONE]" not in body
    for caller in (waiting, uploading):
        reply = caller.read_all()
        assert (reply.status, reply.header("retry-after")) == (503, "1")
        assert reply.json()["error"]["code"] == "gateway_draining"
    records = gateway.records()
    assert len(records) == 22
    assert {(record.outcome, record.error) for record in records} == {(Outcome.FAILED, "gateway_draining")}
    assert sum(record.tokens.output or 0 for record in records) >= 20
    assert "Traceback" not in gateway.log


def test_a_caller_that_does_not_read_cannot_keep_a_worker_and_is_recorded(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    part = chunk(event(chat_chunk({"content": "x" * 60_000})))

    def endless(_: object) -> Iterator[Step]:
        yield from sse_head()
        while True:
            yield part

    gateway = start(limits=GatewayLimits(drain_deadline_s=0.3))
    upstream.answer = endless
    caller = RawCaller(gateway.port, receive_buffer=4096)
    caller.post("chat/completions", STREAM)
    caller.read_head()
    time.sleep(0.5)
    gateway.terminate()
    assert gateway.wait() == 0
    (record,) = gateway.records()
    assert (record.outcome, record.error) == (Outcome.FAILED, "gateway_draining")
    assert (record.tokens.output or 0) > 0


def test_a_drain_waits_for_an_answer_that_is_still_being_taken(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start(limits=GatewayLimits(drain_deadline_s=60))
    body = b'{"x":"' + b"y" * (20 << 20) + b'"}'
    upstream.answer = [Send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)), Send(body)]
    caller = RawCaller(gateway.port, receive_buffer=4096)
    caller.post("chat/completions", ASK)
    caller.read_head()
    gateway.terminate()
    time.sleep(0.5)
    assert bytes(caller.read_all().body) == body
    assert gateway.wait() == 0


def test_an_idle_worker_ends_soon_however_often_it_is_told(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start()
    with RawCaller(gateway.port) as idle, RawCaller(gateway.port) as used:
        used.post("chat/completions", ASK)
        assert used.read_all().status == 200
        begun = time.monotonic()
        for _ in range(2):
            gateway.terminate()
        assert gateway.wait() == 0
        assert time.monotonic() - begun < 15
        assert idle.socket.recv(1) == b""
        assert used.socket.recv(1) == b""


# --- several workers on one socket --------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as shared:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.bind(("127.0.0.1", 0))
        shared.listen(4096)
        yield shared


def test_one_worker_is_killed_and_the_other_serves_on(
    start: Callable[..., GatewayProcess], upstream: Stage, listener: socket.socket
) -> None:
    first = start(listener=listener, index=0)
    second = start(listener=listener, index=1)
    with Load(first.url, 4, fresh=True) as load:
        load.wait(200)
        first.until(
            lambda: {record.worker for record in first.records()} == {0, 1}
        )  # however they are dealt out
    assert load.failed == []
    counted = second.metric("forebay_requests_total", model="m")
    assert counted == len(load.ids) == len(first.records())
    first.kill()
    assert second.metric("forebay_requests_total", model="m") == counted, "what it counted stays counted"
    second.until(lambda: second.metric("forebay_requests_in_flight") == 0)
    with Load(second.url, 4, fresh=True) as after:
        after.wait(100)
    assert after.failed == []
    third = start(listener=listener, index=0)
    with Load(third.url, 4, fresh=True) as last:
        last.wait(100)
    assert last.failed == []
    total = len(load.ids) + len(after.ids) + len(last.ids)
    assert third.metric("forebay_requests_total", model="m") == total
    ids = [record.request_id for record in third.records()]
    assert len(ids) == len(set(ids)) == total


@pytest.mark.parametrize("fresh", [True, False], ids=["new connections", "kept connections"])
def test_a_worker_is_replaced_under_load_without_a_failed_request(
    start: Callable[..., GatewayProcess], upstream: Stage, listener: socket.socket, fresh: bool
) -> None:
    first = start(listener=listener, index=0)
    start(listener=listener, index=1)
    with Load(first.url, 6, fresh=fresh) as load:
        load.wait(100)
        first.terminate()
        assert first.wait() == 0
        load.wait(100)
        third = start(listener=listener, index=0)
        load.wait(100)
    assert load.failed == []
    ids = {record.request_id for record in third.records()}
    assert ids >= set(load.ids)


def test_the_only_worker_is_replaced_and_callers_wait(
    start: Callable[..., GatewayProcess], upstream: Stage, listener: socket.socket
) -> None:
    """The socket stays open, so a caller that comes in between waits instead of being refused."""
    first = start(listener=listener, index=0)
    first.terminate()
    assert first.wait() == 0
    with RawCaller(listener.getsockname()[1]) as early:
        early.post("chat/completions", ASK)
        start(listener=listener, index=0)
        assert early.read_all().status == 200


# --- sudden death and a disk that refuses -------------------------------------------------------------------


def test_what_a_caller_has_seen_is_on_record_whatever_is_killed_next(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start()
    upstream.answer = sse_answer(chat_stream(["Hel", "lo"]))
    seen = []
    for stream in (True, False) * 5:
        if not stream:
            upstream.next.append(json_answer(chat_completion()))
        answer = httpx.post(gateway.url + "/chat/completions", json=ASK | {"stream": stream}, headers=HEADERS)
        seen.append(answer.headers["x-request-id"])
    gateway.kill()
    assert [record.request_id for record in gateway.records()] == seen


def test_records_wait_while_the_disk_refuses_and_then_no_more_is_accepted(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start(limits=GatewayLimits(record_backlog_max=5))
    ledger = gateway.folder / "ledger"
    shutil.rmtree(ledger)
    ledger.write_text("a file where the folder was")
    with httpx.Client(base_url=gateway.url, headers=HEADERS, verify=False) as client:
        ids = []
        for _ in range(5):
            answer = client.post("/chat/completions", json=ASK)
            assert answer.status_code == 200
            ids.append(answer.headers["x-request-id"])
        gateway.until(lambda: gateway.metric("forebay_records_waiting") == 5)
        refused = client.post("/chat/completions", json=ASK)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["code"] == "ledger_unwritable"
        assert client.get("/models").status_code == 200
        assert gateway.get("/readyz") == (503, b"records can't be written\n")
        assert gateway.get("/healthz") == (200, b"ok\n")
        ledger.unlink()  # the folder itself is made again
        gateway.until(lambda: client.post("/chat/completions", json=ASK).status_code == 200)
        assert gateway.get("/readyz") == (200, b"ok\n")
    found = [record.request_id for record in gateway.records()]
    assert [known for known in found if known in ids] == ids, "in order, each once"


def test_more_connections_than_the_limit_are_told_so(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start(limits=GatewayLimits(connections_max=3))
    held = [RawCaller(gateway.port) for _ in range(3)]
    for caller in held:
        caller.post("chat/completions", ASK)
        assert caller.read_all().status == 200
    with RawCaller(gateway.port) as fourth:
        fourth.post("chat/completions", ASK)
        reply = fourth.read_all()
        assert reply.status == 503
        assert reply.json()["error"]["code"] == "too_many_connections"
    held[0].close()
    gateway.until(lambda: gateway.get("/healthz")[0] == 200)
    for caller in held:
        caller.close()


def test_a_request_that_takes_its_body_s_time(start: Callable[..., GatewayProcess], upstream: Stage) -> None:
    """A slow upload is no reason to hurry, and none to hold others up."""
    gateway = start()
    body = b'{"model":"m","x":"' + b"x" * 100_000 + b'"}'
    with RawCaller(gateway.port) as slow:
        slow.post("chat/completions", body, body_sent=50)
        for at in range(50, len(body), 20_000):
            assert httpx.post(gateway.url + "/completions", json=ASK, headers=HEADERS).status_code == 200
            slow.send(body[at : at + 20_000])
        assert slow.read_all().status == 200
        record = gateway.wait_record(slow.reply.id)
    assert record.overhead_ns is not None
    assert record.overhead_ns < record.duration_ns / 2, "waiting for the caller is not the gateway's own time"


def test_a_worker_dies_of_nothing_that_a_target_does(
    start: Callable[..., GatewayProcess], upstream: Stage
) -> None:
    gateway = start()
    with httpx.Client(base_url=gateway.url, headers=HEADERS, verify=False) as client:
        for script in malformed_answers().values():
            for ask in (ASK, STREAM):
                upstream.next.append([*script, Sleep(0)])
                answer = client.post("/chat/completions", json=ask)
                assert answer.status_code in (200, 502), answer.text
                if answer.status_code == 502:
                    assert answer.json()["error"]["type"] == "upstream_error"
        assert client.post("/chat/completions", json=STREAM).content.endswith(DONE)
    assert "Traceback" not in gateway.log
    assert gateway.process.poll() is None
