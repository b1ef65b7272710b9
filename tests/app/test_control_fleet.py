"""The fleet as the admin API, Prometheus and `forebay fleet` show it, and warm-up in a control plane."""

import asyncio
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_scene import AUTH, TOKEN, LiveControl, Scene
from prometheus_client.parser import text_string_to_metric_families

from forebay.app.config import load_config
from forebay.app.engine_watch import load_known
from forebay.app.supervisor_state import RunState, save_run_state
from forebay.cli.doctor_authority import check_sharing
from forebay.cli.doctor_running import check_fleet
from forebay.cli.finding import Verdict
from forebay.cli.fleet import show_fleet
from forebay.cli.terminal import Failure
from forebay.engines.load_names import EngineKind
from forebay.testing.engines import FakeEngine
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import ScriptedUpstream

YAML = """
pools:
  gpu: {{engine: vllm, tier: provisioned, region: eu, warm_up: {{requests: 1, timeout_s: 60}},
         replicas: [{url}]}}
models:
  m: {{endpoints: [chat/completions], targets: [{{pool: gpu, model: there, context_window: 9000}}, {{url: https://one.example/v1}}]}}
  other: {{endpoints: [chat/completions], targets: [{{pool: gpu, model: there}}]}}
"""


async def get(scene: Scene, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(app=scene.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
        return await client.get(path, headers=AUTH if headers is None else headers)


async def watch_until_ready(scene: Scene) -> None:
    """The control plane's loop over engines, until the first replica is ready."""
    running = asyncio.create_task(scene.engines.run())
    try:
        async with asyncio.timeout(60):
            while (await get(scene, "/admin/v1/fleet")).json()["data"][0]["state"] != "ready":
                await asyncio.sleep(0.05)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def see(folder: Path, engine: FakeEngine) -> tuple[dict[str, Any], str, str, int]:
    """What is shown before the watch has looked, and after; the metrics page, and without a token."""

    async def scenario() -> tuple[dict[str, Any], str, str, int]:
        async with ScriptedUpstream(engine.handle) as upstream:
            scene = Scene(folder, YAML.format(url=upstream.url))
            await scene.plane.refresh_snapshot()
            before = (await get(scene, "/admin/v1/fleet")).json()
            await watch_until_ready(scene)
            after = (await get(scene, "/admin/v1/fleet")).json()
            page = (await get(scene, "/metrics")).text
            refused = (await get(scene, "/metrics", {})).status_code
            scene.close()
            return {"before": before, "after": after}, page, upstream.url, refused

    return asyncio.run(scenario())


ENGINE: dict[str, Any] = {"model": "there", "running": 3, "waiting": 1, "kv_cache_used": 0.5}
ENGINE |= {"adapters": ["sql"], "context_window": 8192, "real_name": "org/there", "version": "0.32.0"}


def test_the_fleet_is_shown_before_and_after_its_warm_up(tmp_path: Path) -> None:
    shown, _, url, _ = see(tmp_path, FakeEngine(EngineKind.VLLM, **ENGINE))
    cold, provider = shown["before"]["data"]
    assert (cold["state"], cold["age_s"], cold["running"]) == ("cold", None, None)
    assert cold["warm_up"] == {"state": "due", "answered": 0, "requests": 1, "error": None}
    assert (provider["pool"], provider["state"], provider["warm_up"]) == ("one.example", "unknown", None)
    ready = shown["after"]["data"][0]
    assert ready["age_s"] < 10
    assert ready | {"age_s": 0} == {
        "pool": "gpu", "tier": "provisioned", "region": "eu", "engine": "vllm", "model": "there", "url": url,
        "targets": ["m@gpu", "other@gpu"], "state": "ready", "running": 3, "waiting": 1, "kv_cache_used": 0.5,
        "queue_wait_s": None, "adapters": ["sql"], "age_s": 0, "error": None,
        "context_window": 8192, "real_model": "org/there", "engine_version": "0.32.0", "generates": None,
        "generation_error": None,
        "contradictions": [
            "`context_window` says 9000, the engine 8192: longer requests fail there; leave the setting out"
        ],
        "requests": 0, "requests_elsewhere": 0, "ejected_by": 0,
        "warm_up": {"state": "done", "answered": 1, "requests": 1, "error": None},
    }  # fmt: skip


def test_prometheus_reads_it_with_a_token(tmp_path: Path) -> None:
    _, page, _, refused = see(tmp_path, FakeEngine(EngineKind.VLLM, **ENGINE))
    assert refused == 401
    samples = {
        (sample.name, sample.labels.get("target", ""), sample.labels.get("state", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["forebay_engine_requests_running", "m@gpu", ""] == 3
    assert samples["forebay_engine_requests_waiting", "m@gpu", ""] == 1
    assert samples["forebay_engine_kv_cache_usage_ratio", "m@gpu", ""] == 0.5
    assert samples["forebay_engine_state", "m@gpu", "ready"] == 1
    assert samples["forebay_engine_state", "m@gpu", "cold"] == 0
    assert samples["forebay_warm_up_due", "m@gpu", ""] == 0
    assert samples["forebay_engine_context_window_tokens", "m@gpu", ""] == 8192
    assert ("forebay_engine_requests_running", "m@one.example", "") not in samples, "nobody said 0"
    assert samples["forebay_engine_state", "m@one.example", "unknown"] == 1


@contextmanager
def serve(scene: Scene, fleet: bytes, status: int = 200) -> Iterator[None]:
    """The admin API on a socket, as the command finds it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/admin/v1/fleet"
            assert self.headers["authorization"] == AUTH["authorization"]
            self.send_response(status)
            self.send_header("content-length", str(len(fleet)))
            self.end_headers()
            self.wfile.write(fleet)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        state = RunState(pid=os.getpid(), started_at_s=1, gateway_url=url, control_url=url, children=())
        save_run_state(scene.defaults.state_path, state)
        scene.defaults.admin_token_path.write_text(f"{TOKEN}\n")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_the_command_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(EngineKind.VLLM, **{**ENGINE, "adapters": ["a", "b", "c", "d", "e"]})
    shown, _, url, _ = see(tmp_path, engine)
    scene = Scene(tmp_path, YAML.format(url=url))
    file = tmp_path / "forebay.yaml"
    with serve(scene, json.dumps(shown["before"]).encode()):
        assert show_fleet(file, is_watched=False, as_json=False) == 0
    told = capsys.readouterr()
    assert "warming up, 0 of 1" in told.out
    assert "no replica is asked" in told.err
    with serve(scene, json.dumps(shown["after"]).encode()):
        assert show_fleet(file, is_watched=False, as_json=False) == 0
        lines = capsys.readouterr().out.splitlines()
        address = url.partition("://")[2].removesuffix("/v1")
        assert lines[1].split()[:8] == ["gpu", "provisioned", "eu", address, "there", "ready", "3", "1"]
        assert "50%" in lines[1]
        assert "`context_window` says 9000" in " ".join(lines)
        assert "a, b, c and 2 more" in lines[1]
        assert show_fleet(file, is_watched=False, as_json=True) == 0
        assert json.loads(capsys.readouterr().out) == shown["after"]
    scene.close()


def test_the_doctor_finds_what_is_stuck_and_where_an_engine_says_otherwise(tmp_path: Path) -> None:
    shown, _, url, _ = see(tmp_path, FakeEngine(EngineKind.VLLM, **ENGINE))
    shown["after"]["data"][0] |= {"generates": False, "generation_error": "no answer within 30 s"}
    scene = Scene(tmp_path, YAML.format(url=url))
    with serve(scene, json.dumps(shown["after"]).encode()):
        stuck, otherwise = check_fleet(load_config(tmp_path / "forebay.yaml", {}))
    assert stuck.verdict is Verdict.FAIL
    assert "does not generate: no answer within 30 s" in stuck.message
    assert otherwise.verdict is Verdict.WARN
    assert "9000" in otherwise.message
    assert "leave the setting out" in otherwise.hint
    assert list(check_fleet(load_config(tmp_path / "forebay.yaml", {}))) == [], "where nothing runs"
    scene.close()


@pytest.mark.parametrize(
    ("sharing", "words", "verdict"),
    [
        ({"connected": False, "trouble": "no connection", "machines": []}, "no connection", Verdict.FAIL),
        ({"connected": True, "trouble": None, "machines": []}, "no other machine is heard", Verdict.OK),
        (
            {"connected": True, "trouble": None, "machines": [
                {"name": "eu-2", "workers": 4, "requests": 17, "age_s": 0.3}
            ]},
            "eu-2",
            Verdict.OK,
        ),
    ],
)  # fmt: skip
def test_other_machines_are_shown_and_looked_at(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sharing: dict[str, Any],
    words: str,
    verdict: Verdict,
) -> None:
    scene = Scene(tmp_path, "limits: {authority: 'redis://127.0.0.1:1/0'}\nmodels: {}\n")
    with serve(scene, json.dumps({"data": [], "sharing": sharing}).encode()):
        assert show_fleet(tmp_path / "forebay.yaml", is_watched=False, as_json=False) == 0
        (finding,) = check_sharing(scene.defaults.model_copy(update={"limits": scene.watch.config.limits}))
    assert words in capsys.readouterr().err
    assert finding.verdict is verdict
    assert words in finding.message
    scene.close()


def test_a_watched_fleet_is_shown_again_until_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, "models: {}\n")
    times = 0

    def sleep(_: float) -> None:
        nonlocal times
        times += 1
        if times == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("forebay.cli.fleet.time.sleep", sleep)
    with serve(scene, b'{"data":[]}'), pytest.raises(KeyboardInterrupt):
        show_fleet(tmp_path / "forebay.yaml", is_watched=True, as_json=True)
    assert capsys.readouterr().out == '{"data":[]}\n' * 3
    scene.close()


def test_a_restart_of_the_control_plane_turns_no_replica_cold(tmp_path: Path) -> None:
    engine = FakeEngine(EngineKind.VLLM, model="there")
    with ThreadedUpstream(engine.handle) as upstream:
        control = LiveControl(tmp_path, YAML.format(url=upstream.url))
        try:

            def read() -> dict[str, Any]:
                found: dict[str, Any] = control.get("/admin/v1/fleet").json()["data"][0]
                return found

            control.wait_for(lambda: read()["state"] == "ready", 30)
            assert engine.generated == 1
            run = control.data / "run"
            control.wait_for(lambda: len(load_known(run / "snapshot.msgpack", run)) == 2)
            control.process.kill()
            control.process.wait()
            control.start()
            control.wait_for(lambda: read()["state"] != "unknown", 30)
            assert read()["state"] == "ready"
            assert engine.generated == 1, "it has served already"
        finally:
            control.close()


@pytest.mark.parametrize(
    ("status", "said", "hint"), [(404, "no model `x`", ""), (500, "500: no model", "doctor")]
)
def test_what_the_admin_api_refuses_is_said_in_its_words(
    tmp_path: Path, status: int, said: str, hint: str
) -> None:
    scene = Scene(tmp_path, YAML.format(url="http://127.0.0.1:1/v1"))
    body = b'{"error":{"message":"no model `x`"}}'
    with serve(scene, body, status), pytest.raises(Failure) as caught:
        show_fleet(tmp_path / "forebay.yaml", is_watched=False, as_json=False)
    assert said in str(caught.value)
    assert hint in caught.value.hint
    assert bool(hint) == bool(caught.value.hint)
    scene.close()
