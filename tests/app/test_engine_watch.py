"""Engines are asked for their load over real sockets, and new replicas are warm before requests come."""

import asyncio
from pathlib import Path

import pytest
from watch_scene import open_watch, write_config

from forebay.app import engine_probe, engine_state, engine_watch
from forebay.app.config import load_config
from forebay.app.engine_probe import PAGE_MAX_BYTES
from forebay.app.engine_state import Warmth
from forebay.app.engine_watch import LOOKS_MAX, load_known
from forebay.app.snapshot import compile_snapshot, write_snapshot
from forebay.app.watched import list_replicas
from forebay.core.engine_load import EngineLoad, EngineState
from forebay.engines.load_names import EngineKind
from forebay.testing.answers import answer, json_answer, malformed_answers
from forebay.testing.engines import FakeEngine
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Sleep
from forebay.testing.threaded import find_closed_port
from forebay.testing.upstream import ScriptedUpstream, UpstreamSettings

pytestmark = pytest.mark.anyio
WARM_UP = "engine: vllm, warm_up: {requests: 2, prompt: Hi, timeout_s: 30}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def generations(upstream: ScriptedUpstream) -> list[RecordedRequest]:
    return [request for request in upstream.requests if request.method == "POST"]


def is_ready(load: EngineLoad) -> bool:
    return load.state is EngineState.READY


# --- load ---------------------------------------------------------------------------------------------------


async def test_what_an_engine_says_is_told(tmp_path: Path) -> None:
    engine = FakeEngine(EngineKind.VLLM, model="there", running=3, waiting=1, kv_cache_used=0.5)
    engine.adapters, engine.running_adapters = ["sql"], ["poems"]
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url]))
        load = await scene.board.wait(is_ready)
        assert load == EngineLoad("m@p", EngineState.READY, 3, 1, 0.5, None, ("poems", "sql"))
        engine.waits.add(0.5, 1.5)
        engine.waiting = 20
        load = await scene.board.wait(lambda load: load.waiting == 20)
        load = await scene.board.wait(lambda load: load.queue_wait_s is not None)
        assert load.queue_wait_s == pytest.approx(1.0)
        assert len(upstream.connections) == 1, "connections are kept"


@pytest.mark.parametrize("kind", list(EngineKind))
async def test_each_kind_of_engine_is_read(tmp_path: Path, kind: EngineKind) -> None:
    engine = FakeEngine(kind, model="there", running=2, waiting=5)
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        pool = f"engine: {kind}, metrics: ':{upstream.port}/metrics'"  # Triton's has a port of its own
        scene.follow(write_config(tmp_path, [upstream.url], pool))
        assert (await scene.board.wait(is_ready)).waiting == 5


async def test_llama_cpp_without_a_metrics_page_is_read_by_its_slots(tmp_path: Path) -> None:
    engine = FakeEngine(EngineKind.LLAMA_CPP, running=3, has_metrics=False)
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], "engine: llama.cpp"))
        load = await scene.board.wait(is_ready)
        assert (load.running, load.waiting) == (3, None)


async def test_one_look_serves_all_models_of_a_replica(tmp_path: Path) -> None:
    engine = FakeEngine(EngineKind.TRITON, model="gb", waiting=4)
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        file = tmp_path / "forebay.yaml"
        file.write_text(
            "pools:\n  p: {engine: triton, tier: provisioned, metrics: /metrics, "
            f"replicas: [{upstream.url}]}}\n"
            "models:\n  one: {endpoints: [chat/completions], targets: [{pool: p, model: gb}]}\n"
            "  two: {endpoints: [chat/completions], targets: [{pool: p, model: another}]}\n"
        )
        scene.follow(load_config(file, {}))
        assert (await scene.board.wait(is_ready, "one@p")).waiting == 4
        assert (await scene.board.wait(is_ready, "two@p")).waiting == 99
        pages = [request for request in upstream.requests if request.path == "/metrics"]
        assert len(pages) == len({request.arrived_at_s for request in pages})
        assert len([page for page in pages if page.arrived_at_s < pages[0].arrived_at_s + 0.5]) == 1


async def test_a_silent_engine_is_unknown_and_neither_idle_nor_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_state, "SIGNAL_S", 0.5)
    monkeypatch.setattr(engine_probe, "LOOK_S", 0.5)
    monkeypatch.setattr(engine_watch, "SILENT_INTERVAL_S", 0.5)
    engine, silent = FakeEngine(model="there", running=3), False

    def handle(request: RecordedRequest) -> Script:
        return [Sleep(60)] if silent else engine.handle(request)

    async with ScriptedUpstream(handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url]))
        await scene.board.wait(is_ready)
        silent = True
        load = await scene.board.wait(lambda load: load.state is not EngineState.READY)
        assert load == EngineLoad("m@p", EngineState.UNKNOWN)
        silent = False
        assert (await scene.board.wait(is_ready)).running == 3


async def test_its_own_health_says_that_it_is_down_or_loading(tmp_path: Path) -> None:
    engine = FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url]))
        await scene.board.wait(is_ready)
        engine.status = 503
        await scene.board.wait(lambda load: load.state is EngineState.DOWN)
        engine.status, engine.is_loading = 200, True
        await scene.board.wait(lambda load: load.state is EngineState.COLD)
        engine.is_loading = False
        await scene.board.wait(is_ready)


BAD = {
    **malformed_answers(),
    "no_page": json_answer({"detail": "Not Found"}, status=404),
    "a_page_of_something_else": answer(b"up 1\n"),
    "binary": answer(bytes(range(256)) * 100),
    "too_large": answer(b"vllm:num_requests_running 1\n" * (PAGE_MAX_BYTES // 20)),
    "redirect": answer(b"", status=302, headers=[("location", "http://127.0.0.1:1/")]),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_page_says_nothing_and_costs_no_other(tmp_path: Path, name: str) -> None:
    good = FakeEngine(model="there", running=1)

    def handle(request: RecordedRequest) -> Script:
        return BAD[name] if request.path == "/metrics" else good.handle(request)

    async with ScriptedUpstream(handle) as bad, ScriptedUpstream(good.handle) as well:
        async with open_watch(tmp_path) as scene:
            scene.follow(write_config(tmp_path, [bad.url, well.url]))
            assert (await scene.board.wait(is_ready, "m@p#2")).running == 1
            await bad.wait_until(lambda: any(each.path == "/metrics" for each in bad.requests))
            load = scene.board.find("m@p")
            assert load is None or load.running is None
            state = scene.watch.list_states()
            await scene.board.wait(lambda _: any(each.error for each in state))


async def test_hanging_replicas_hold_up_no_other(tmp_path: Path) -> None:
    good = FakeEngine(model="there", running=1)
    hang = UpstreamSettings(on_connect=[Sleep(60)])
    async with ScriptedUpstream(None, hang) as hanging, ScriptedUpstream(good.handle) as well:
        async with open_watch(tmp_path) as scene:
            urls = [f"{hanging.origin}/{number}/v1" for number in range(40)]
            scene.follow(write_config(tmp_path, [*urls, well.url]))
            await scene.board.wait(is_ready, "m@p#41")
            assert scene.watch.counts["look", "ok"] >= 1


async def test_each_replica_has_its_turn_where_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first of them are due again before the last have been asked at all."""
    monkeypatch.setattr(engine_watch, "LOOKS_MAX", 1)
    engine = FakeEngine(EngineKind.VLLM, model="there", running=1)
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        urls = [f"{upstream.origin}/{number:02}/v1" for number in range(20)]
        scene.follow(write_config(tmp_path, urls, "engine: vllm, metrics: /metrics"))
        for number in range(1, 21):
            await scene.board.wait(is_ready, "m@p" if number == 1 else f"m@p#{number}", timeout_s=30)


async def test_no_more_looks_at_once_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "LOOKS_MAX", 3)
    most = 0

    def handle(request: RecordedRequest) -> Script:
        nonlocal most
        most = max(most, upstream.connections_open)
        return [Sleep(0.05), *answer(b"")]

    async with ScriptedUpstream(handle) as upstream, open_watch(tmp_path) as scene:
        urls = [f"{upstream.origin}/{number}/v1" for number in range(12)]
        config = write_config(tmp_path, urls, "engine: vllm, metrics: /metrics")
        scene.follow(config)
        await upstream.wait_requests(24)
        assert 1 < most <= 3 < LOOKS_MAX


async def test_the_key_goes_to_the_replica_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-secret")
    engine = FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as api, ScriptedUpstream(engine.handle) as page:
        async with open_watch(tmp_path) as scene:
            pool = f"engine: vllm, metrics: '{page.origin}/metrics', {WARM_UP.partition(', ')[2]}"
            target = ", tier: provisioned, api_key: env:KEY"
            scene.follow(write_config(tmp_path, [api.url], pool, target=target))
            await scene.board.wait(is_ready)
            assert {request.header("authorization") for request in api.requests} == {"Bearer sk-secret"}
            assert {request.header("authorization") for request in page.requests} == {None}


async def test_other_snapshots_are_followed(tmp_path: Path) -> None:
    engine = FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as one, ScriptedUpstream(engine.handle) as two:
        async with open_watch(tmp_path) as scene:
            scene.follow(write_config(tmp_path, [one.url]))
            await scene.board.wait(is_ready)
            scene.follow(write_config(tmp_path, [two.url]))
            await two.wait_requests(2)
            seen = len(one.requests)
            await two.wait_requests(6)
            assert len(one.requests) <= seen + 3, "a look that was on its way may end"
            assert [state.replica.url for state in scene.watch.list_states()] == [two.url]


@pytest.mark.parametrize("pool", ["engine: vllm, metrics: 'off'", "engine: other", "hardware: h100"])
async def test_a_pool_without_metrics_is_not_asked(tmp_path: Path, pool: str) -> None:
    engine = FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], pool))
        await asyncio.sleep(0.3)
        assert not upstream.requests
        assert not scene.board.told


def test_a_provider_is_asked_only_where_that_is_said(tmp_path: Path) -> None:
    for pool, asked in (("engine: vllm", False), ("engine: vllm, metrics: auto", True)):
        config = write_config(tmp_path, ["http://10.0.0.1/v1"], pool, target="")
        (replica,) = list_replicas(compile_snapshot(config, [], {}), config, {})
        assert replica.is_asked is asked


def test_engines_of_this_machine_are_asked(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("models:\n  m: {endpoints: [chat/completions], targets: [{engine: smollm2-135m}]}\n")
    config, urls = load_config(file, {}), {"smollm2-135m": "http://127.0.0.1:20001/v1"}
    (replica,) = list_replicas(compile_snapshot(config, [], urls), config, urls)
    assert replica.metrics_url == "http://127.0.0.1:20001/metrics"
    assert replica.health_url == "http://127.0.0.1:20001/health"


# --- warm-up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["chat/completions", "completions", "embeddings"])
async def test_a_new_replica_is_cold_until_it_has_answered_well(tmp_path: Path, endpoint: str) -> None:
    engine = FakeEngine(model="there", fail_generations=1)
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], WARM_UP, endpoint=endpoint))
        assert scene.board.told[0].state is EngineState.COLD, "told before the snapshot is in force"
        await scene.board.wait(is_ready)
        assert scene.board.list_states("m@p") == [EngineState.COLD, EngineState.READY]
        assert engine.generated == 2
        asked = generations(upstream)
        assert len(asked) == 3, "one was not answered well"
        assert {request.path for request in asked} == {f"/v1/{endpoint}"}
        assert all(request.json()["model"] == "there" and b"Hi" in request.body for request in asked)


async def test_an_answer_that_is_none_does_not_warm(tmp_path: Path) -> None:
    engine = FakeEngine(model="there")

    def handle(request: RecordedRequest) -> Script:
        return answer(b"<html>welcome</html>") if request.method == "POST" else engine.handle(request)

    async with ScriptedUpstream(handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], WARM_UP.replace("30", "3")))
        await upstream.wait_until(lambda: len(generations(upstream)) >= 1)
        await scene.board.wait(is_ready)
        (state,) = scene.watch.list_states()
        (place,) = state.places.values()
        assert place.warmth is Warmth.OVERDUE, "its time has passed: it is sent to all the same"
        assert "not what OpenAI's API answers" in place.error


async def test_prompts_of_a_file_are_asked_in_turn(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\n")
    engine = FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        pool = "engine: vllm, warm_up: {requests: 3, prompts_file: prompts.txt}"
        scene.follow(write_config(tmp_path, [upstream.url], pool))
        await scene.board.wait(is_ready)
        asked = [request.json()["messages"][0]["content"] for request in generations(upstream)]
        assert asked == ["one", "two", "one"]


async def test_one_that_comes_back_is_warmed_up_again(tmp_path: Path) -> None:
    engine = FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], WARM_UP))
        await scene.board.wait(is_ready)
        engine.is_loading = True  # it was restarted
        await scene.board.wait(lambda load: load.state is EngineState.COLD)
        assert engine.generated == 2, "it is not asked while it says that it is loading"
        engine.is_loading = False
        await scene.board.wait(is_ready)
        assert engine.generated == 4
        assert EngineState.UNKNOWN not in scene.board.list_states("m@p")


async def test_one_that_nothing_listened_for_is_warmed_up_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_watch, "REFUSED_INTERVAL_S", 0.3)
    monkeypatch.setattr(engine_state, "SIGNAL_S", 0.5)
    engine = FakeEngine(model="there")
    async with open_watch(tmp_path) as scene:
        settings = UpstreamSettings(port=find_closed_port())  # one that nobody else takes meanwhile
        async with ScriptedUpstream(engine.handle, settings) as upstream:
            scene.follow(write_config(tmp_path, [upstream.url], WARM_UP))
            await scene.board.wait(is_ready)
        await scene.board.wait(lambda load: load.state is EngineState.UNKNOWN)
        (state,) = scene.watch.list_states()
        await scene.board.wait(lambda _: state.was_down)
        async with ScriptedUpstream(engine.handle, settings):
            await scene.board.wait(lambda load: load.state is EngineState.COLD)
            await scene.board.wait(is_ready)
            assert engine.generated == 4


async def test_a_replica_that_served_before_a_restart_is_not_cold(tmp_path: Path) -> None:
    old, new = FakeEngine(model="there"), FakeEngine(model="there", fail_generations=1_000_000)
    async with ScriptedUpstream(old.handle) as one, ScriptedUpstream(new.handle) as two:
        config = write_config(tmp_path, [one.url, two.url], WARM_UP)
        async with open_watch(tmp_path) as scene:
            scene.follow(config)
            await scene.board.wait(is_ready)
            await two.wait_until(lambda: len(generations(two)) > 0)
            # As the control plane does it, which ends here and begins again.
            path, known = tmp_path / "snapshot.msgpack", frozenset({(one.url, "there", None)})
            write_snapshot(path, compile_snapshot(config, [], {}))
            await scene.board.wait(lambda _: load_known(path, tmp_path) == known)
        async with open_watch(tmp_path, known) as scene:
            scene.follow(config)
            assert scene.board.find("m@p") == EngineLoad("m@p", EngineState.UNKNOWN)
            assert scene.board.find("m@p#2") == EngineLoad("m@p#2", EngineState.COLD)
            await scene.board.wait(is_ready)
            assert old.generated == 2
            assert EngineState.COLD not in scene.board.list_states("m@p")


async def test_a_replica_that_leaves_ends_its_warm_up(tmp_path: Path) -> None:
    engine, other = FakeEngine(model="there", fail_generations=1_000_000), FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as one, ScriptedUpstream(other.handle) as two:
        async with open_watch(tmp_path) as scene:
            scene.follow(write_config(tmp_path, [one.url], WARM_UP))
            await one.wait_until(lambda: len(generations(one)) > 0)
            scene.follow(write_config(tmp_path, [two.url], WARM_UP))
            await scene.board.wait(is_ready)
            asked = len(generations(one))
            await two.wait_requests(len(two.requests) + 6)
            assert len(generations(one)) <= asked + 1


def test_nothing_of_before_is_known_where_there_is_nothing(tmp_path: Path) -> None:
    assert load_known(tmp_path / "none", tmp_path) == frozenset()
    (tmp_path / "broken").write_bytes(b"\xc1")
    assert load_known(tmp_path / "broken", tmp_path) == frozenset()
