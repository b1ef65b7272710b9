"""`GET /admin/v1/routes/explain`, and `forebay route explain` over it: what is told, and what is refused."""

import asyncio
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_scene import AUTH, TOKEN, Scene

from forebay.app.machine_id import read_machine_id
from forebay.app.supervisor_state import RunState, save_run_state
from forebay.cli.route import Question, explain_route
from forebay.cli.terminal import Failure
from forebay.core.engine_load import EngineLoad, EngineState
from forebay.core.keys import Rights
from forebay.gateway.loads import Loads
from forebay.gateway.place_names import PlaceNames
from forebay.gateway.policy.news import News, PlaceCount, SaidOut, SaidWord
from forebay.gateway.tenancy import FOREBAY, NewKey

YAML = """
pools:
  gpu: {tier: provisioned, region: eu, capabilities: [tools], context_window: 8000,
        replicas: [http://10.0.0.1/v1, http://10.0.0.2/v1]}
  cloud: {tier: provider, region: us, replicas: [https://one.example/v1]}
models:
  m: {endpoints: [chat/completions], targets: [{pool: gpu}, {pool: cloud}], fallbacks: [small]}
  small: {endpoints: [chat/completions], targets: [{engine: smollm2-135m}]}
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, YAML)
    scene.refresh()
    yield scene
    scene.close()


def ask(scene: Scene, **question: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=scene.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://control", headers=AUTH) as client:
            return await client.get("/admin/v1/routes/explain", params=question)

    return asyncio.run(send())


def explain(scene: Scene, **question: Any) -> dict[str, tuple[int | None, str | None]]:
    answer = ask(scene, **question)
    assert answer.status_code == 200, answer.text
    return {each["target"]: (each["rank"], each["rejected"]) for each in answer.json()["candidates"]}


def test_the_order_is_told_and_the_draw_decides_between_equals(scene: Scene) -> None:
    found = explain(scene, model="m", draw=0.1)
    assert sorted(rank for rank, _ in found.values() if rank is not None) == [0, 1, 2]
    assert found["m@cloud"] == (1, None)
    firsts = {
        min(explain(scene, model="m", draw=draw).items(), key=lambda each: (each[1][0] is None, each[1][0]))[
            0
        ]
        for draw in (0.0, 0.2, 0.4, 0.6, 0.8, 0.99)
    }
    assert firsts == {"m@gpu", "m@gpu#2"}
    assert ask(scene, model="m").json()["fallbacks"] == ["small"]


def test_why_a_place_is_none_is_told(scene: Scene) -> None:
    found = explain(scene, model="m", needs=["images"])
    assert found == {"m@cloud": (0, None), "m@gpu": (None, "capability"), "m@gpu#2": (None, "capability")}
    found = explain(scene, model="m", tokens=9000)
    assert found == {"m@cloud": (0, None), "m@gpu": (None, "window"), "m@gpu#2": (None, "window")}
    assert explain(scene, model="small") == {"small@smollm2-135m": (0, None)}


def test_a_key_and_what_it_may_not(scene: Scene) -> None:
    record, _ = scene.keys.create(
        NewKey(name="eu", rights=Rights(models=("m",), regions=("eu",), tier_max="autoscaled")), FOREBAY
    )
    scene.refresh()
    found = explain(scene, model="m", key=record.entry.id)
    assert found["m@cloud"] == (None, "region")
    told = ask(scene, model="m", key=record.entry.id).json()
    assert told["candidates"][-1]["why"] == "the key is bound to the regions eu"
    assert told["fallbacks"] == []
    assert told["priority"] == "standard"
    assert ask(scene, model="small", key=record.entry.id).status_code == 403
    assert ask(scene, model="m", key=f"key_{'0' * 16}").json()["error"]["param"] == "key"


def test_what_can_not_be_asked_is_refused(scene: Scene) -> None:
    assert ask(scene, model="nope").status_code == 404
    assert ask(scene, model="m", endpoint="embeddings").json()["error"]["param"] == "endpoint"
    assert ask(scene, model="m", needs=["legs"]).status_code == 400
    assert ask(scene, model="m", draw=1).status_code == 400


@contextmanager
def serve(scene: Scene) -> Iterator[None]:
    """The admin API on a socket, as the command finds it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            assert path == "/admin/v1/routes/explain"
            assert self.headers["authorization"] == AUTH["authorization"]
            asked = httpx.QueryParams(query)
            answer = ask(scene, **{name: asked.get_list(name) for name in asked})
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

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


def test_the_command_shows_what_the_route_says(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    question = Question(
        model="m",
        key=None,
        priority="batch",
        endpoint="chat/completions",
        tokens=0,
        needs=("images",),
        draw=0.5,
    )
    file = scene.folder / "forebay.yaml"
    with serve(scene):
        assert explain_route(file, question, as_json=False).value == 0
        shown = capsys.readouterr()
        lines = shown.out.splitlines()
        assert lines[1].split()[:2] == ["1", "m@cloud"]
        assert "lacks images" in lines[2]
        assert "where none of them answers: small" in shown.err
        assert explain_route(file, question, as_json=True).value == 0
        assert json.loads(capsys.readouterr().out)["priority"] == "batch"
        with pytest.raises(Failure, match="no model `nope`"):
            explain_route(file, replace(question, model="nope"), as_json=False)


def test_what_the_board_knows_is_told_and_decides(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert scene.plane.snapshot_state is not None
    replicas = (
        Loads(PlaceNames(read_machine_id())).follow(scene.plane.snapshot_state.snapshot.table, 1).replicas
    )
    now = time.monotonic()
    scene.board.publish(
        [
            EngineLoad("m@gpu", EngineState.COLD),
            EngineLoad("m@gpu#2", EngineState.READY, running=12, waiting=3, kv_cache_used=0.5),
        ]
    )
    told = scene.board.read()
    assert {"m@gpu", "m@gpu#2"} <= {news.load.target_id for news in told.engines}
    scene.news = News(
        counts=(PlaceCount(replicas["m@gpu#2"].id, 7, 900),),
        words=(SaidWord(replicas["m@cloud"].id, now, now + 40),),
        engines=told.engines,
        workers=2,
    )
    answer = ask(scene, model="m").json()
    found = {each["target"]: each for each in answer["candidates"]}
    assert {target: each["rejected"] for target, each in found.items()} == {
        "m@gpu": "cold",
        "m@gpu#2": None,
        "m@cloud": "busy",
    }
    assert found["m@gpu#2"]["requests"] == 7
    assert found["m@gpu#2"]["engine"]["kv_cache_used"] == 0.5
    assert found["m@gpu"]["engine"]["running"] is None
    assert 30 < found["m@cloud"]["retry_after_s"] <= 40
    with serve(scene):
        question = Question(
            model="m", key=None, priority=None, endpoint="chat/completions", tokens=0, needs=(), draw=0.5
        )
        assert explain_route(scene.folder / "forebay.yaml", question, as_json=False).value == 0
    shown = capsys.readouterr().out
    assert found["m@gpu#2"]["ejected_by"] == 0
    for everywhere, rejected in ((False, None), (True, "ejected")):
        outs = (SaidOut(replicas["m@gpu#2"].id, now + 20, 2, everywhere),)
        scene.news = News(outs=outs, workers=3)
        found = {each["target"]: each for each in ask(scene, model="m").json()["candidates"]}
        assert found["m@gpu#2"]["ejected_by"] == 2
        assert found["m@gpu#2"]["rejected"] == rejected
        assert found["m@gpu"]["ejected_by"] == 0
    assert "its engine is not warm yet" in shown
