"""`forebay up` over real processes: start, question, words, kills, drain, and the next start."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from up_scene import LiveForebay, are_gone, write_config

from forebay.app.config import Config
from forebay.app.config_edit import ConfigEdit, save_edit
from forebay.app.up import find_chat_model
from forebay.testing.openai import chat_chunk, event, well_behaved
from forebay.testing.steps import Close, Gate, Send, Wait
from forebay.testing.threaded import ThreadedUpstream, find_closed_port


@pytest.fixture
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(well_behaved("Par", "is.")) as upstream:
        yield upstream


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[LiveForebay]]:
    started: list[LiveForebay] = []
    yield started
    for live in started:
        live.close()


def test_it_starts_answers_explains_itself_and_ends(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    write_config(tmp_path, upstream.url, workers=2)
    live = LiveForebay(tmp_path, "--ask", "What is the capital of France?")
    started.append(live)
    live.wait_ready()
    state = live.state
    for said in (
        "control: ready",
        "worker-1: ready",
        "> What is the capital of France?\nParis.\n",
        f"{state.gateway_url}/v1",
        f"{state.control_url}/admin/v1",
        live.key,
        "curl -N ",
        "from openai import OpenAI",
    ):
        assert said in live.output
    assert "\x1b" not in live.output, "no terminal, no colours"
    assert (tmp_path / ".forebay" / "admin.token").read_text().strip() not in live.output
    assert upstream.requests[0].json()["messages"][1]["content"] == "What is the capital of France?"
    assert state.ready
    assert state.pid == live.process.pid

    # The commands that it prints work as they are.
    example = live.output.partition("With curl\n")[2].partition("\n\n")[0]
    answer = subprocess.run(["sh", "-c", example], capture_output=True, text=True, timeout=60)
    assert "data: [DONE]" in answer.stdout, answer.stderr
    python = live.output.partition("openai)\n")[2].partition("\n\n")[0]
    answer = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60)
    assert answer.stdout == "Paris.\n", answer.stderr

    pids = live.pids()
    live.process.send_signal(signal.SIGINT)
    assert live.wait_end() == 0
    assert live.output.endswith("Stopped.\n")
    assert are_gone(pids)
    assert not (tmp_path / ".forebay" / "run" / "state.json").exists()
    for log in (tmp_path / ".forebay" / "logs").iterdir():
        assert "Traceback" not in log.read_text(), log


def test_any_child_may_be_killed(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    write_config(tmp_path, upstream.url)
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_ready()
    for victim, other in (("worker-0", "control"), ("control", "worker-0"), ("worker-0", "control")):
        before, spared = live.child(victim), live.child(other)
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)
        # The only worker may be gone: the caller waits in the socket's queue and is not refused.
        assert live.chat().status_code == 200
        live.wait_for(lambda name=victim, old=before: live.child(name).restarts > old.restarts)
        live.wait_for(lambda: live.state.ready)
        assert live.child(other).pid == spared.pid
    assert "worker-0: killed by SIGKILL; it runs again" in live.output


def test_a_killed_supervisor_leaves_nothing_and_the_next_one_starts(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    path = write_config(tmp_path, upstream.url)
    port = find_closed_port()
    path.write_text(path.read_text().replace("gateway: {port: 0", f"gateway: {{port: {port}"))
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_ready()
    second = LiveForebay(tmp_path)
    started.append(second)
    assert second.wait_end() == 1
    assert f"already running in {tmp_path}/.forebay, pid {live.process.pid}" in second.output
    assert live.state.ready

    key, pids = live.key, live.pids()
    live.process.kill()
    live.wait_end()
    live.wait_for(lambda: are_gone(pids))
    again = LiveForebay(tmp_path)
    started.append(again)
    again.wait_ready()
    assert again.state.gateway_url == f"http://127.0.0.1:{port}"
    assert again.key == key
    assert again.chat().status_code == 200


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 60).close()
    except ConnectionRefusedError:
        return True
    return False


def test_open_streams_end_well_on_sigterm(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    write_config(tmp_path, upstream.url)
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_ready()
    gate = Gate()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    first, last = (
        event(chat_chunk({"content": "a"})),
        event(chat_chunk({"content": "z"}, finish_reason="stop")),
    )
    upstream.enqueue([Send(head + first), Wait(gate), Send(last + b"data: [DONE]\n\n"), Close()])
    stream = live.open_stream()
    assert stream.status == 200
    live.process.send_signal(signal.SIGTERM)
    live.wait_for(lambda: live.child("worker-0").state.value == "stopping")
    assert live.child("control").state.value == "ready", "the control plane outlives the workers"
    port = int(live.state.gateway_url.rpartition(":")[2])
    live.wait_for(lambda: is_refused(port))
    gate.open()
    assert stream.read().endswith(b"data: [DONE]\n\n")
    assert live.wait_end() == 0


def test_a_second_signal_ends_at_once(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    path = write_config(tmp_path, upstream.url)
    path.write_text(path.read_text().replace("deadline_s: 10", "deadline_s: 500"))
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_ready()
    gate = Gate()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    upstream.enqueue([Send(head + event(chat_chunk({"content": "a"}))), Wait(gate)])
    stream = live.open_stream()
    pids = live.pids()
    live.process.send_signal(signal.SIGINT)
    live.wait_for(lambda: "Stopping" in live.output)
    live.process.send_signal(signal.SIGINT)
    assert live.wait_end() == 130
    assert live.output.endswith("\nEnding at once: requests in flight are cut off.\n")
    assert "requests in flight get up to 500 s. Ctrl-C again ends at once." in live.output
    assert are_gone(pids)
    stream.close()
    gate.open()


def test_a_port_in_use_is_explained(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = write_config(tmp_path, upstream.url)
        path.write_text(path.read_text().replace("control: {port: 0}", f"control: {{port: {port}}}"))
        live = LiveForebay(tmp_path)
        started.append(live)
        assert live.wait_end() == 1
    assert f"Port {port} is already in use by " in live.output
    assert f"(pid {os.getpid()})" in live.output
    assert "control.port" in live.output
    assert "Traceback" not in live.output


def test_what_cannot_start_is_shown_with_its_log(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    write_config(tmp_path, upstream.url)
    (tmp_path / ".forebay").mkdir()
    (tmp_path / ".forebay" / "forebay.db").write_bytes(b"this is no database" * 1000)
    live = LiveForebay(tmp_path)
    started.append(live)
    assert live.wait_end(60) == 1
    assert "control does not start: exited with 1, tries: 3" in live.output
    assert "the control plane can't start: " in live.output, "the end of the log"
    assert f"{tmp_path}/.forebay/logs/control.log" in live.output
    assert "forebay doctor" in live.output
    assert "Traceback" not in live.output


def test_ctrl_c_during_the_start_ends_it(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    write_config(tmp_path, upstream.url)
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_for((tmp_path / ".forebay" / "run" / "state.json").exists)
    live.process.send_signal(signal.SIGINT)
    assert live.wait_end() == 130
    assert live.output.endswith("Stopped.\n")


def test_it_goes_on_when_nobody_reads_what_it_says(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    write_config(tmp_path, upstream.url)
    command = [sys.executable, "-m", "forebay", "up"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    watcher = LiveForebay.__new__(LiveForebay)
    watcher.data, watcher.lines = tmp_path / ".forebay", []
    state_path = tmp_path / ".forebay" / "run" / "state.json"
    try:
        watcher.wait_for(lambda: state_path.exists() and watcher.state.ready)
        assert watcher.chat().status_code == 200
    finally:
        process.terminate()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_an_edit_reaches_the_gateway(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    path = write_config(tmp_path, upstream.url)
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_ready()

    def list_models() -> list[str]:
        return [model["id"] for model in live.gateway("/v1/models").json()["data"]]

    assert list_models() == ["m"]
    good = path.read_text()
    path.write_text(good.replace("  m: {", "  n: {"))
    live.wait_for(lambda: list_models() == ["n"])
    path.write_text(good.replace("endpoints", "endpints"))
    control_log = live.data / "logs" / "control.log"
    live.wait_for(lambda: "endpints" in control_log.read_text())
    assert list_models() == ["n"]
    path.write_text(good)
    live.wait_for(lambda: list_models() == ["m"])


def test_what_became_of_an_edit_is_a_line_in_the_terminal(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    path = write_config(tmp_path, upstream.url)
    run = tmp_path / ".forebay" / "run"
    run.mkdir(parents=True)
    save_edit(run, ConfigEdit(problems=("of an earlier run",)))
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_ready()
    good = path.read_text()
    port = find_closed_port()
    for text, line in (
        (good.replace("  m: {", "  n: {"), "forebay.yaml: edit applied\n"),
        (
            good.replace("endpoints", "endpints") + "prot: 1\n",
            f"forebay.yaml: edit refused, the last valid configuration stays: {path}:2: models.m.endpints: "
            "unknown key (did you mean `endpoints`?), and 2 more (see `forebay config check`)\n",
        ),
        (
            good.replace("gateway: {port: 0", f"gateway: {{port: {port}"),
            "forebay.yaml: edit applied; after a restart only: gateway.port\n",
        ),
        (
            "\n",
            f"forebay.yaml: edit refused, the last valid configuration stays: {path} is empty "
            "(put its content back; a restart without it takes the defaults)\n",
        ),
    ):
        path.write_text(text)
        live.wait_for(lambda line=line: line in live.output)
    assert live.output.count("forebay.yaml: edit ") == 4, "each is told once"
    assert "of an earlier run" not in live.output


def test_a_model_whose_engine_was_added_later_is_said_to_wait(
    tmp_path: Path, upstream: ThreadedUpstream, started: list[LiveForebay]
) -> None:
    path = write_config(tmp_path, upstream.url)
    live = LiveForebay(tmp_path)
    started.append(live)
    live.wait_ready()
    path.write_text(
        f"engines: {{later: {{kind: minilm}}}}\n{path.read_text()}".replace(
            "models:\n", "models:\n  late: {endpoints: [embeddings], targets: [{engine: later}]}\n"
        )
    )
    ask = {"model": "late", "input": "x"}

    def answer() -> tuple[int, str]:
        told = live.gateway("/v1/embeddings", method="POST", json=ask)
        return told.status_code, told.json()["error"]["code"]

    live.wait_for(lambda: answer() != (404, "model_not_found"))
    assert answer() == (503, "engine_not_running")
    assert live.chat().status_code == 200


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        ({}, "smollm2-135m"),
        ({"far": {"endpoints": ["chat/completions"], "targets": [{"url": "https://x/v1"}]}}, "far"),
        (
            {
                "a": {"endpoints": ["chat/completions"], "targets": [{"url": "https://x/v1"}]},
                "b": {"endpoints": ["chat/completions"], "targets": [{"engine": "smollm2-135m"}]},
            },
            "b",
        ),
        ({"e": {"endpoints": ["embeddings"], "targets": [{"engine": "minilm-l6-v2"}]}}, None),
    ],
)
def test_things_are_shown_with_a_model_that_runs_here(models: dict[str, object], chosen: str | None) -> None:
    config = Config.model_validate({"models": models} if models else {})
    assert find_chat_model(config) == chosen
