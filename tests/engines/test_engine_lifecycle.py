"""How engine processes end: answers in flight leave first, a killed parent takes them along, a hang ends."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from engine_process import Engine, run_engine, start_engine, wait_until_healthy

from forebay.engines.model import EngineSpec
from forebay.engines.plan import Place, plan_engine
from forebay.testing.threaded import find_closed_port

LLAMA = EngineSpec(name="llama", kind="llamacpp", context_tokens=512, slots=2)
MINILM = EngineSpec(name="minilm", kind="minilm")


def start_stream(engine: Engine, tokens: int) -> tuple[threading.Thread, bytearray, threading.Event]:
    """A stream read by a thread; the event tells that its first content has come."""
    body = json.dumps({"prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}).encode()
    got, begun = bytearray(), threading.Event()

    def read() -> None:
        with socket.create_connection(("127.0.0.1", engine.port), timeout=30) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            while chunk := connection.recv(65536):
                got.extend(chunk)
                if b"data:" in got:
                    begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    return reader, got, begun


@pytest.mark.parametrize("spec", [LLAMA, MINILM], ids=lambda spec: spec.kind)
def test_an_idle_engine_ends_at_once(spec: EngineSpec, tmp_path: Path) -> None:
    with run_engine(spec, tmp_path) as engine:
        code, seconds = engine.terminate()
    assert code == 0
    assert seconds < 15


def test_a_stream_in_flight_is_finished_first(tmp_path: Path) -> None:
    with run_engine(LLAMA, tmp_path) as engine:
        reader, got, begun = start_stream(engine, tokens=60)
        assert begun.wait(60)
        code, _ = engine.terminate()
        reader.join(30)
    assert code == 0
    assert got.count(b"data: {") == 61
    assert b"data: [DONE]" in got


def test_a_second_signal_or_the_deadline_cuts_streams_off(tmp_path: Path) -> None:
    with run_engine(LLAMA, tmp_path) as engine:
        reader, got, begun = start_stream(engine, tokens=450)
        assert begun.wait(60)
        engine.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            engine.process.wait(0.5)
        code, seconds = engine.terminate()
        reader.join(30)
        assert (code, seconds < 15) == (0, True)
        assert b"[DONE]" not in got
        assert "answers in flight were cut off" in engine.read_log()


def test_embeddings_in_flight_are_finished_first(tmp_path: Path) -> None:
    answers: list[tuple[int, bytes]] = []
    with run_engine(MINILM, tmp_path) as engine:
        asked = {"model": "minilm", "input": ["Rivers and dams. " * 60] * 12}
        caller = threading.Thread(target=lambda: answers.append(engine.ask("/v1/embeddings", asked)))
        caller.start()
        deadline = time.monotonic() + 60
        while not answers and b"forebay_embeddings_waiting 0" in engine.ask("/metrics")[1]:
            assert time.monotonic() < deadline
        code, _ = engine.terminate()
        caller.join(60)
    assert code == 0
    assert answers[0][0] == 200
    assert len(json.loads(answers[0][1])["data"]) == 12


@pytest.mark.parametrize("delay_s", [0.0, 1.5])
@pytest.mark.parametrize("spec", [LLAMA, MINILM], ids=lambda spec: spec.kind)
def test_a_killed_parent_takes_its_engine_along(spec: EngineSpec, delay_s: float) -> None:
    """Before it is tied to it, and after."""
    plan = plan_engine(spec, Place(port=find_closed_port()))
    script = (
        "import os, subprocess, sys, time\n"
        "from engine_process import tie_to\n"
        "command = tie_to(os.getpid(), *sys.argv[1:])\n"
        "child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, *plan.argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent) as parent:
        child = int(parent.stdout.readline())
        time.sleep(delay_s)
        assert is_running(child)
        parent.kill()
    deadline = time.monotonic() + 20
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """A zombie, which nobody has reaped yet, does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_engine_whose_model_hangs_ends_itself(tmp_path: Path) -> None:
    plan = plan_engine(LLAMA, Place(port=find_closed_port()))
    with start_engine(plan, tmp_path, "--stall-s=2") as engine:
        wait_until_healthy(engine)
        schema = {"type": "string", "pattern": "^(a{0,200}){0,200}$"}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "response_format": form}
        threading.Thread(target=ask_in_vain, args=(engine, body)).start()
        assert engine.process.wait(60) == 3
        assert "no sign of life for 2 s" in engine.read_log()


def ask_in_vain(engine: Engine, body: object) -> None:
    with pytest.raises(OSError):  # noqa: PT011  the connection breaks off in one way or another
        engine.ask("/v1/chat/completions", body)


@pytest.mark.parametrize("spec", [LLAMA, MINILM], ids=lambda spec: spec.kind)
def test_an_engine_listens_on_a_port_that_is_reserved_for_it(spec: EngineSpec, tmp_path: Path) -> None:
    """Bound by the supervisor, and not listened on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        plan = plan_engine(spec, Place(port=holder.getsockname()[1]))
        with start_engine(plan, tmp_path) as engine:
            wait_until_healthy(engine)
