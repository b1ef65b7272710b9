"""The parts of `forebay up`: which processes it plans, what it shows, and how it asks."""

import asyncio
import io
import os
import shlex
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from forebay.app import up_question
from forebay.app.config import Config
from forebay.app.config_values import ConfigOrigin
from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_process import ChildSpec
from forebay.app.supervisor_state import ChildStatus
from forebay.app.up import has_failed_to_start, suggest_mending
from forebay.app.up_children import Place, WorkerProbe, plan_children, plan_control
from forebay.app.up_display import Display, Welcome, make_examples
from forebay.app.up_question import Unanswered, stream_answer
from forebay.testing.answers import chunk, last_chunk, sse_head
from forebay.testing.openai import chat_chunk, error_answer, event, well_behaved
from forebay.testing.steps import Close, Script, Send, Sleep, Stall
from forebay.testing.upstream import ScriptedUpstream

PLACE = Place(
    gateway_fd=11,
    gateway_url="http://127.0.0.1:8080",
    control_fd=12,
    control_url="http://127.0.0.1:8081",
    engine_ports={"smollm2-135m": 20001, "minilm-l6-v2": 20002},
    workers=2,
)


def plan(tmp_path: Path, **sections: object) -> dict[str, ChildSpec]:
    origin = ConfigOrigin(folder=tmp_path, file=tmp_path / "forebay.yaml")
    config = Config.model_validate(sections, context=origin)
    return {spec.name: spec for spec in plan_children(config, PLACE)}


def test_engines_and_control_start_at_once_and_workers_end_first(tmp_path: Path) -> None:
    specs = plan(tmp_path)
    assert list(specs) == ["engine-smollm2-135m", "engine-minilm-l6-v2", "control", "worker-0", "worker-1"]
    assert {name: spec.needs for name, spec in specs.items() if spec.needs} == {
        "worker-0": ("control",),
        "worker-1": ("control",),
    }
    stages = [specs[name].stop_stage for name in ("worker-0", "control", "engine-smollm2-135m")]
    assert stages == sorted(set(stages))


def test_engines_alone_do_not_get_the_variables_that_hold_secrets(tmp_path: Path) -> None:
    target = {"url": "https://provider.example/v1", "api_key": "env:PROVIDER_KEY"}
    models = {"m": {"endpoints": ["chat/completions"], "targets": [target]}}
    engines = {name: {"kind": "minilm"} for name in PLACE.engine_ports}
    specs = plan(tmp_path, models=models, engines=engines, data={"database": "env:DATABASE_URL"})
    withheld = {"PROVIDER_KEY", "DATABASE_URL", "FOREBAY_API_KEY"}
    assert specs["engine-smollm2-135m"].withheld == withheld
    assert not any(spec.withheld for name, spec in specs.items() if not name.startswith("engine-"))


def test_batches_have_a_process_where_they_are_served_that_begins_small(tmp_path: Path) -> None:
    origin = ConfigOrigin(folder=tmp_path, file=None)
    config = Config.model_validate({}, context=origin)
    place = msgspec.structs.replace(PLACE, batch_fd=13)
    spec = {spec.name: spec for spec in plan_children(config, place)}["batch"]
    assert spec.needs == ("control",)
    assert spec.pass_fds == (13,)
    assert f"batch_waiter.py 13 {tmp_path}/.forebay/batch" in " ".join(spec.argv)
    assert "-m forebay.app.batch" in " ".join(spec.argv)
    assert "--gateway-url http://127.0.0.1:8080 --listen-fd 13" in " ".join(spec.argv)


def test_settings_reach_the_processes(tmp_path: Path) -> None:
    specs = plan(
        tmp_path,
        gateway={"drain": {"grace_s": 7.0, "deadline_s": 90.0}},
        engines={
            "smollm2-135m": {"kind": "llamacpp", "model": "weights.gguf", "threads": 3, "slots": 9},
            "minilm-l6-v2": {"kind": "minilm", "batch_max": 77},
        },
    )
    assert specs["worker-1"].stop_deadline_s > 97
    assert specs["worker-1"].pass_fds == (11,)
    assert "--listen-fd 11" in " ".join(specs["worker-1"].argv)
    assert "--index 1" in " ".join(specs["worker-1"].argv)
    control = " ".join(specs["control"].argv)
    assert f"--config {tmp_path}/forebay.yaml --data {tmp_path}/.forebay" in control
    assert "--no-config-yet" not in control
    engine = " ".join(specs["engine-smollm2-135m"].argv)
    for told in (f"--model={tmp_path}/weights.gguf", "--threads=3", "--slots=9", "--port=20001"):
        assert told in engine
    assert "--batch-max=77" in specs["engine-minilm-l6-v2"].argv
    assert PLACE.engine_urls["minilm-l6-v2"] == "http://127.0.0.1:20002/v1"


def test_without_a_file_the_control_plane_looks_where_one_would_lie(tmp_path: Path) -> None:
    origin = ConfigOrigin(folder=tmp_path, file=None)
    config = Config.model_validate({}, context=origin)
    control = " ".join(plan_control(config, PLACE).argv)
    assert f"--config {tmp_path}/forebay.yaml --no-config-yet --data {tmp_path}/.forebay" in control


def test_a_worker_is_not_ready_for_what_another_one_serves(tmp_path: Path) -> None:
    async def check() -> None:
        async with ScriptedUpstream(
            lambda _: [Send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")]
        ) as any_one:
            probe = WorkerProbe(tmp_path, 1, any_one.origin)
            (tmp_path / "w0-77-1.cells").touch()
            (tmp_path / "w1-76-1.cells").touch()
            assert not await probe.check(77)
            (tmp_path / "w1-77-1.cells").touch()
            assert await probe.check(77)
        assert not await probe.check(77), "nobody answers"

    asyncio.run(check())


# --- what is shown ------------------------------------------------------------------------------------------


def status(name: str, state: ChildState, **other: object) -> ChildStatus:
    values: dict[str, object] = {
        "pid": 1, "since_s": 100.0, "restarts": 0, "failures": 0, "was_ready": False, "last_exit": "",
    }  # fmt: skip
    return ChildStatus(name=name, state=state, **{**values, **other})  # type: ignore[arg-type]


def show(terminal: bool, *rounds: list[ChildStatus]) -> str:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=terminal, width=100, color_system=None))
    display.start_progress()
    for number, statuses in enumerate(rounds):
        display.show_progress(statuses, 102.5 + number)
    display.stop_progress()
    return out.getvalue()


def test_without_a_terminal_each_news_is_one_line() -> None:
    starting = status("control", ChildState.STARTING)
    failed = status("control", ChildState.BACKOFF, failures=1, last_exit="exited with 1")
    ready = status("control", ChildState.READY)
    text = show(False, [starting], [failed], [failed], [starting], [ready], [ready])
    assert text.splitlines() == [
        "control: exited with 1; it is started again (1 failed)",
        "control: ready",
    ]


def test_in_a_terminal_every_process_has_a_line_with_its_time() -> None:
    text = show(True, [status("control", ChildState.STARTING), status("worker-0", ChildState.WAITING)])
    assert "control" in text
    assert "worker-0" in text
    assert "2.5 s" in text
    assert "\x1b[?25h" in text, "the cursor is there again"


FACTS = Welcome(
    gateway_url="http://127.0.0.1:8080",
    control_url="http://127.0.0.1:8081",
    chat_model="it's",
    models=("it's",),
    key="fb-key",
    key_path="/data/local.key",
    token_path="/data/admin.token",
    logs_path="/data/logs",
)


def test_the_examples_are_whole_for_a_shell_and_for_python() -> None:
    model = "org/model:v1@x"
    facts = Welcome(
        **{name: getattr(FACTS, name) for name in Welcome.__struct_fields__} | {"chat_model": model}
    )
    curl, python = (example for _, example in make_examples(facts))
    words = shlex.split(curl)
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"]
    assert model in words[-1]
    compile(python, "example", "exec")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_welcome_holds_all_that_a_caller_needs(terminal: bool) -> None:
    out = io.StringIO()
    Display(Console(file=out, force_terminal=terminal, width=100, color_system=None)).welcome(FACTS)
    for said in ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8081/admin/v1", "fb-key", "/data/admin.token"):
        assert said in out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 100])
def test_what_is_to_be_copied_is_never_broken_in_two(width: int) -> None:
    out = io.StringIO()
    facts = msgspec.structs.replace(FACTS, key="fb-" + "k" * 43)
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    Display(console).welcome(facts)
    shown = out.getvalue().partition("With curl")[0]
    for said in (facts.key, facts.key_path, facts.token_path, facts.gateway_url):
        assert said in shown
    assert ("┌" in shown) == (width == 100)


def test_a_model_moves_no_cursor_in_a_terminal() -> None:
    out = io.StringIO()
    Display(Console(file=out, force_terminal=True)).write("a\x1b[2Jb\x07\nc\u00e9")
    assert out.getvalue() == "a[2Jb\nc\u00e9"


def test_a_broken_pipe_makes_it_silent() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        display = Display(Console(file=pipe))
        display.write("first\n")
        display.say("second")
        display.welcome(FACTS)


@pytest.mark.parametrize(
    ("changes", "given_up"),
    [
        ({}, False),
        ({"failures": 2, "last_exit": "exited with 1"}, False),
        ({"failures": 3, "last_exit": "exited with 1"}, True),
        ({"failures": 1, "last_exit": "exited with 2"}, True),
        ({"failures": 9, "last_exit": "exited with 2", "was_ready": True}, False),
    ],
)
def test_a_start_is_given_up_when_it_is_in_vain(changes: dict[str, object], given_up: bool) -> None:
    assert has_failed_to_start(status("control", ChildState.BACKOFF, **changes)) is given_up


def test_it_says_where_to_look() -> None:
    assert "engines.my-model" in suggest_mending("engine-my-model")
    for name in ("control", "worker-0"):
        assert "forebay doctor" in suggest_mending(name)


# --- the question -------------------------------------------------------------------------------------------


async def ask(upstream: ScriptedUpstream) -> str:
    return "".join([text async for text in stream_answer(upstream.origin, "fb-key", "m", "Hi?")])


def test_a_question_is_answered_piece_by_piece() -> None:
    async def check() -> None:
        async with ScriptedUpstream(well_behaved("Hel", "lo")) as upstream:
            assert await ask(upstream) == "Hello"
            request = upstream.requests[0]
            assert request.header("authorization") == "Bearer fb-key"
            assert request.json()["messages"][-1] == {"role": "user", "content": "Hi?"}

    asyncio.run(check())


def test_the_body_of_an_answer_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that closes at `[DONE]` counts as one that left."""
    events = [event(chat_chunk({"content": "He"}, finish_reason="stop")), b"data: [DONE]\n\n"]

    async def check() -> None:
        script = [*sse_head(), *map(chunk, events), Sleep(0.2), last_chunk()]
        async with ScriptedUpstream(lambda _: script) as upstream:
            with monkeypatch.context() as patience:
                patience.setattr(up_question, "REST_S", 60.0)  # the machine may be busy
                assert await ask(upstream) == "He"
            assert upstream.requests[0].answered_at_s is not None
        async with ScriptedUpstream(lambda _: [*script[:-2], Stall()]) as upstream:
            assert await ask(upstream) == "He"

    asyncio.run(check())


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNK = event(chat_chunk({"content": "He"}))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (error_answer(429, "Slow down."), "Slow down."),
        ([Send(b"HTTP/1.1 502 Bad\r\ncontent-length: 2\r\n\r\nno")], "HTTP 502"),
        ([Send(HEAD + CHUNK), Close()], "broke off"),
        ([Send(HEAD + CHUNK + b'data: {"error": {"message": "gone"}}\n\n'), Close()], "gone"),
        ([Send(HEAD + b"data: nonsense\n\n"), Close()], "not a chat completion"),
        ([Close()], "closed"),
    ],
)
def test_what_is_no_answer_is_said(script: Script, said: str) -> None:
    async def check() -> None:
        async with ScriptedUpstream(lambda _: script) as upstream:
            with pytest.raises(Unanswered, match=said):
                await ask(upstream)

    asyncio.run(check())


def test_nobody_there_is_said() -> None:
    async def check() -> None:
        upstream = ScriptedUpstream(well_behaved("x"))
        async with upstream:
            origin = upstream.origin
        with pytest.raises(Unanswered, match="cannot connect"):
            await anext(stream_answer(origin, "fb-key", "m", "Hi?"))

    asyncio.run(check())
