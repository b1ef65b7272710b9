"""A place that answers its port and does not generate is out of service; what engines say of themselves is
used where the configuration is silent."""

from pathlib import Path

import anyio
import pytest
from watch_scene import open_watch, write_config

from forebay.app import engine_watch, liveness
from forebay.app.config import load_config
from forebay.app.config_engines import LivenessConfig
from forebay.app.discovered import apply_facts, list_contradictions
from forebay.app.liveness import Liveness
from forebay.app.snapshot import compile_snapshot
from forebay.app.watched import list_replicas
from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.routes import CAPABILITIES
from forebay.engines.facts import ModelFacts
from forebay.engines.load_names import EngineKind
from forebay.testing.answers import json_answer
from forebay.testing.engines import FakeEngine
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Sleep
from forebay.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio
RULES = LivenessConfig(interval_s=10.0, timeout_s=3.0, failures_max=2)
QUICK = "engine: vllm, liveness: {interval_s: 0.3, timeout_s: 0.3, failures_max: 2}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def is_ready(load: EngineLoad) -> bool:
    return load.state is EngineState.READY


def is_down(load: EngineLoad) -> bool:
    return load.state is EngineState.DOWN


# --- when, and what follows ---------------------------------------------------------------------------------


def test_a_check_is_due_when_nothing_was_seen_for_the_interval() -> None:
    live = Liveness(RULES)
    assert not live.is_due(100.0), "it has just come"
    assert live.is_due(110.0)
    live.note_check("", 111.0, is_opinion=False)
    assert not live.is_due(120.0)
    live.see_counter(5.0, 120.0)
    assert not live.is_due(120.5), "the first count says nothing, the last check does"
    live.see_counter(6.0, 125.0)
    assert not live.is_due(134.0), "it has generated since"
    assert live.is_due(135.0)


def test_two_failures_in_a_row_put_it_out_and_any_sign_brings_it_back() -> None:
    live = Liveness(RULES)
    live.note_check("no answer", 10.0, is_opinion=True)
    assert not live.is_stuck
    assert live.is_due(10.0 + liveness.RETRY_S), "sooner than after one that went well"
    live.note_check("no answer", 20.0, is_opinion=True)
    assert live.is_stuck
    assert live.error == "no answer"
    live.see_counter(1.0, 21.0)
    assert live.is_stuck
    live.see_counter(2.0, 22.0)
    assert not live.is_stuck
    assert live.error == ""


def test_failures_apart_and_what_is_no_opinion_put_nothing_out() -> None:
    live = Liveness(RULES)
    for at in range(10):
        live.note_check("no answer", at, is_opinion=True)
        live.note_check("", at + 0.5, is_opinion=False)
        live.note_check("answered 404", at + 0.6, is_opinion=False)
    assert not live.is_stuck
    assert live.error == "answered 404"


def test_a_counter_that_falls_is_an_engine_that_began_anew() -> None:
    live = Liveness(RULES)
    live.see_counter(100.0, 1.0)
    live.see_counter(3.0, 2.0)
    assert live.alive_at is None
    live.see_counter(None, 3.0)
    live.see_counter(4.0, 4.0)
    assert live.alive_at is None, "what was not said for a while is counted anew"


@pytest.mark.parametrize("rules", [None, LivenessConfig(interval_s=0)])
def test_who_turns_it_off_is_never_asked(rules: LivenessConfig | None) -> None:
    live = Liveness(rules)
    assert not live.is_due(0.0)
    assert not live.is_due(1e9)


@pytest.mark.parametrize(
    ("pool", "is_checked"),
    [
        ("engine: vllm", True),
        ("engine: mine", False),
        ("engine: vllm, tier: provider", False),
        ("engine: vllm, metrics: 'off'", False),
        ("engine: vllm, tier: provider, liveness: {}", True),
    ],
)
def test_known_engines_are_checked_unless_they_cost_money(
    tmp_path: Path, pool: str, is_checked: bool
) -> None:
    target = "" if "tier" in pool else ", tier: provisioned"
    config = write_config(tmp_path, ["http://10.0.0.1/v1"], pool, target=target)
    (replica,) = list_replicas(compile_snapshot(config, [], {}), config, {})
    assert (replica.places[0].liveness is not None) is is_checked


# --- over sockets -------------------------------------------------------------------------------------------


async def test_an_engine_that_is_stuck_is_down_until_it_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "RETRY_S", 0.1)
    engine = FakeEngine(model="there")
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], QUICK))
        await scene.board.wait(is_ready)
        engine.is_stuck = True
        load = await scene.board.wait(is_down)
        assert load.running == 0, "its page is read all the same"
        engine.is_stuck = False
        await scene.board.wait(is_ready)
        assert engine.generated > 0
        asked = [request.json() for request in upstream.requests if request.method == "POST"]
        assert {each["max_tokens"] for each in asked} == {1}
        assert scene.watch.counts["check", "failed"] >= 2
        assert scene.watch.counts["check", "ok"] >= 1


async def test_an_engine_that_generates_is_not_asked(tmp_path: Path) -> None:
    engine = FakeEngine(model="there", counted=1.0)

    def handle(request: RecordedRequest) -> Script:
        if request.path == "/metrics":
            assert engine.counted is not None
            engine.counted += 7
        return engine.handle(request)

    async with ScriptedUpstream(handle) as upstream, open_watch(tmp_path) as scene:
        # Its interval is far longer than looks come late on a busy machine.
        rules = "engine: vllm, liveness: {interval_s: 6, timeout_s: 30, failures_max: 1}"
        scene.follow(write_config(tmp_path, [upstream.url], rules))
        await scene.board.wait(is_ready)
        seen = engine.counted
        while engine.counted < seen + 7 * 8:  # looks, of which one comes each second
            await scene.board.wait(is_ready)
            await _turn()
        posts = [request for request in upstream.requests if request.method == "POST"]
        assert len(posts) <= 1, "not after the counter was known"


async def _turn() -> None:
    await anyio.sleep(0.05)


@pytest.mark.parametrize("status", [401, 404, 429, 503])
async def test_what_may_be_no_fault_of_the_engine_puts_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(liveness, "RETRY_S", 0.05)
    engine = FakeEngine(model="there")

    def handle(request: RecordedRequest) -> Script:
        if request.method == "POST":
            return json_answer({"error": {"message": "no"}}, status=status)
        return engine.handle(request)

    async with ScriptedUpstream(handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], QUICK.replace("timeout_s: 0.3", "timeout_s: 30")))
        while scene.watch.counts["check", "failed"] < 3:
            await _turn()
        assert EngineState.DOWN not in scene.board.list_states("m@p")
        (state,) = scene.watch.list_states()
        (place,) = state.places.values()
        assert str(status) in place.liveness.error


# --- what engines say of themselves -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "window", "name"),
    [
        (EngineKind.VLLM, 4096, "org/real"),
        (EngineKind.SGLANG, None, ""),
        (EngineKind.LLAMA_CPP, 4096, "org-real"),
        (EngineKind.TGI, 4096, "org-real"),
        (EngineKind.TRITON, None, "org-real"),
    ],
)
async def test_each_kind_says_what_it_is(
    tmp_path: Path, kind: EngineKind, window: int | None, name: str
) -> None:
    engine = FakeEngine(kind, model="there", context_window=4096, version="1.2")
    engine.real_name = name or "unsaid"
    async with ScriptedUpstream(engine.handle) as upstream, open_watch(tmp_path) as scene:
        pool = f"engine: {kind}, metrics: ':{upstream.port}/metrics'"
        scene.follow(write_config(tmp_path, [upstream.url], pool))
        while not (found := scene.watch.find_facts()):
            await _turn()
        ((key, facts),) = found.items()
        assert key == (upstream.url, "there", None)
        assert facts.context_window == window
        assert facts.real_name == name
        assert kind is EngineKind.SGLANG or facts.version == "1.2"


async def test_a_page_that_hangs_costs_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "MODELS_INTERVAL_S", 0.0)
    engine = FakeEngine(EngineKind.LLAMA_CPP, running=3)

    def handle(request: RecordedRequest) -> Script:
        if request.path == "/props":
            return [Sleep(60)]
        return engine.handle(request)

    async with ScriptedUpstream(handle) as upstream, open_watch(tmp_path) as scene:
        scene.follow(write_config(tmp_path, [upstream.url], "engine: llama.cpp"))
        assert (await scene.board.wait(is_ready)).running == 3


FILE = """
pools:
  p: {engine: vllm, tier: provisioned, replicas: [http://10.0.0.1/v1]}
  q: {engine: vllm, tier: provisioned, context_window: 9000, capabilities: [images], replicas: [http://10.0.0.2/v1]}
models:
  m: {endpoints: [chat/completions], targets: [{pool: p, model: there}, {pool: q, model: there}]}
"""


def test_what_nobody_wrote_is_the_engines_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(FILE)
    snapshot = compile_snapshot(load_config(file, {}), [], {})
    facts = ModelFacts(context_window=4096, lacks=("images",), served=("there",))
    keys = [("http://10.0.0.1/v1", "there", None), ("http://10.0.0.2/v1", "there", None)]
    filled = apply_facts(snapshot, dict.fromkeys(keys, facts))
    silent, written = filled.table.routes[0].targets
    assert silent.context_window == 4096
    assert silent.capabilities == tuple(each for each in CAPABILITIES if each != "images")
    assert written == snapshot.table.routes[0].targets[1]
    assert apply_facts(snapshot, {}) is snapshot
    assert apply_facts(snapshot, {keys[1]: facts}) is snapshot
    assert list_contradictions(silent, facts) == []
    window, images = list_contradictions(written, facts)
    assert "9000" in window
    assert "4096" in window
    assert "images" in images
    (name,) = list_contradictions(silent, ModelFacts(served=("a", "b")))
    assert "'there' but a, b" in name
