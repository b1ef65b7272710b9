"""`forebay doctor`: what is wrong is found, and how to mend it is said."""

import json
import os
import socket
import subprocess
from pathlib import Path

import msgspec
import pytest
from command_line import ESCAPE, forebay, in_terminal
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.app.config_model import LlamaCppEngine
from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_state import ChildStatus, RunState, save_run_state
from forebay.cli.doctor_engines import find_import_problem, find_weights
from forebay.cli.doctor_machine import fits
from forebay.engines.model import EngineRefused
from forebay.testing.answers import json_answer
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import ThreadedUpstream, find_closed_port


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    write_config(tmp_path)


def write_config(folder: Path, gateway: int = 0, control: int = 0, more: str = "engines: {}\n") -> None:
    """Without engines, which take seconds to load."""
    (folder / "forebay.yaml").write_text(
        f"gateway: {{port: {gateway}}}\ncontrol: {{port: {control}}}\n{more}"
    )


def examine() -> tuple[int, dict[str, dict[str, str]]]:
    result = forebay("doctor", "--json")
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    return result.exit_code, {finding["name"]: finding for finding in report["findings"]}


def find(name: str) -> tuple[str, str]:
    finding = examine()[1][name]
    return finding["verdict"], finding["message"]


def save_state(folder: Path, pid: int, gateway: str, control: str, *children: ChildStatus) -> None:
    run = folder / ".forebay" / "run"
    run.mkdir(parents=True, exist_ok=True)
    state = RunState(pid=pid, started_at_s=0, gateway_url=gateway, control_url=control, children=children)
    save_run_state(run / "state.json", state)


def child(state: ChildState, failures: int = 0) -> ChildStatus:
    return ChildStatus(
        name="smollm2-135m", state=state, pid=7, since_s=0, restarts=2, failures=failures, was_ready=True,
        last_exit="signal 9",
    )  # fmt: skip


def test_a_good_machine_is_well() -> None:
    status, found = examine()
    assert status == 0
    assert {finding["verdict"] for finding in found.values()} == {"ok"}
    assert {
        "python",
        "packages",
        "configuration",
        "data folder",
        "disk",
        "limits",
        "database",
        "processes",
    } <= set(found)
    assert "granian" in found["packages"]["message"]
    assert not Path(".forebay").exists()


def test_without_a_terminal_each_finding_is_a_line() -> None:
    lines = forebay("doctor").stdout.splitlines()
    assert all(line.startswith("ok    ") for line in lines[:-1])
    assert lines[-1] == "all is well"


def test_in_a_terminal_it_is_a_table(tmp_path: Path) -> None:
    with in_terminal("doctor", cwd=tmp_path) as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("all is well")
        assert "How to mend it" in terminal.written
        assert ESCAPE in terminal.written


def test_mistakes_in_the_configuration_fail(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text("a: 1\nb: 2\n")
    status, found = examine()
    assert status == 1
    assert found["configuration"]["verdict"] == "fail"
    assert "forebay.yaml:1: a: unknown key" in found["configuration"]["message"]
    assert "and 1 more" in found["configuration"]["message"]


def test_a_secret_that_is_not_there_fails_and_an_unwise_setting_warns(tmp_path: Path) -> None:
    model = "models: {{m: {{endpoints: [embeddings], targets: [{{url: '{}', api_key: 'env:NOT_SET'}}]}}}}\n"
    write_config(tmp_path, more=model.format("https://h/v1"))
    assert find("configuration")[0] == "fail"
    write_config(tmp_path, more="engines: {}\nmodels: {}\n")
    assert find("configuration")[0] == "warn"


def test_a_port_that_another_program_holds_fails(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", find_closed_port()))  # which nobody else takes
        holder.listen()
        port = holder.getsockname()[1]
        write_config(tmp_path, gateway=port)
        status, found = examine()
    assert status == 1
    finding = found["gateway port"]
    assert finding["verdict"] == "fail"
    assert f"Port {port} is already in use by " in finding["message"]
    assert f"pid {os.getpid()}" in finding["message"]
    assert "gateway.port" in finding["message"]
    assert find("gateway port")[0] == "ok"  # as soon as it is free


def test_an_address_that_this_machine_does_not_have_fails(tmp_path: Path) -> None:
    write_config(tmp_path, more="engines: {}\n")
    port = find_closed_port()
    (tmp_path / "forebay.yaml").write_text(f"gateway: {{host: 192.0.2.1, port: {port}}}\nengines: {{}}\n")
    assert find("gateway port")[0] == "fail"


def test_a_folder_and_files_that_others_may_read_are_warned_of(tmp_path: Path) -> None:
    folder = tmp_path / ".forebay"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "local.key").touch()
    (folder / "local.key").chmod(0o644)
    hints = [f["hint"] for f in json.loads(forebay("doctor", "--json").stdout)["findings"] if f["hint"]]
    assert hints == [f"chmod 700 {folder}", f"chmod 600 {folder / 'local.key'}"]


def test_a_data_folder_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / ".forebay").touch()
    assert find("data folder")[0] == "fail"


def test_a_database_that_is_none_fails(tmp_path: Path) -> None:
    (tmp_path / ".forebay").mkdir(mode=0o700)
    (tmp_path / ".forebay" / "forebay.db").write_bytes(b"no database " * 1000)
    assert find("database")[0] == "fail"
    (tmp_path / ".forebay" / "forebay.db").unlink()
    forebay("keys", "list")
    assert find("database")[0] == "ok"


def test_what_runs_is_asked_for_its_health(tmp_path: Path) -> None:
    with ThreadedUpstream(lambda request: json_answer({})) as upstream:
        write_config(tmp_path, gateway=upstream.port)
        save_state(tmp_path, os.getpid(), upstream.origin, upstream.origin, child(ChildState.READY))
        status, found = examine()
        assert {request.path for request in upstream.requests} == {"/readyz"}
    assert status == 0
    assert found["gateway port"]["message"] == f"{upstream.port}, held by the Forebay that runs here"
    assert found["supervisor"]["message"] == f"pid {os.getpid()}"
    assert found["process smollm2-135m"]["message"] == "ready, pid 7, started again 2 times"
    assert found["health of gateway"]["verdict"] == "ok"


@pytest.mark.parametrize(("answer_status", "verdict"), [(200, "ok"), (500, "fail")])
def test_an_engine_that_is_up_is_asked_for_an_answer(
    tmp_path: Path, answer_status: int, verdict: str
) -> None:
    def answer(request: RecordedRequest) -> Script:
        return json_answer({}, status=answer_status if request.method == "POST" else 200)

    with ThreadedUpstream(answer) as upstream:
        write_config(tmp_path, more="engines: {e: {kind: minilm}, absent: {kind: minilm}}\nmodels: {}\n")
        engine = msgspec.structs.replace(child(ChildState.READY), name="engine-e")
        save_state(tmp_path, os.getpid(), upstream.origin, upstream.origin, engine)
        urls = {"e": upstream.url, "absent": upstream.url}
        (tmp_path / ".forebay" / "run" / "engines.json").write_text(json.dumps(urls))
        _, found = examine()
        [asked] = [request for request in upstream.requests if request.method == "POST"]
    assert asked.path == "/v1/embeddings"
    assert asked.json()["model"] == "e"
    assert found["model of e"]["verdict"] == verdict
    assert "model of absent" not in found, "it does not run"
    assert (found["model of e"]["hint"] == "") == (verdict == "ok")


def test_what_is_not_ready_fails(tmp_path: Path) -> None:
    with ThreadedUpstream(lambda request: json_answer({}, status=503)) as upstream:
        nobody = f"http://127.0.0.1:{find_closed_port()}"
        save_state(tmp_path, os.getpid(), upstream.origin, nobody, child(ChildState.BACKOFF, failures=3))
        status, found = examine()
    assert status == 1
    assert "answered 503" in found["health of gateway"]["message"]
    assert "can't be reached" in found["health of control"]["message"]
    assert found["process smollm2-135m"]["verdict"] == "fail"
    assert "signal 9" in found["process smollm2-135m"]["message"]
    assert found["process smollm2-135m"]["hint"].endswith("smollm2-135m.log")


def test_the_state_of_a_supervisor_that_is_gone_counts_for_nothing(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    save_state(tmp_path, gone.pid, "http://127.0.0.1:1", "http://127.0.0.1:1", child(ChildState.READY))
    assert find("processes") == ("ok", "Forebay does not run here now")


def test_the_embedded_engines_are_found(tmp_path: Path) -> None:
    write_config(tmp_path, more="")
    _, found = examine()
    assert found["engine smollm2-135m"]["verdict"] == "ok"
    assert found["engine minilm-l6-v2"]["verdict"] == "ok"


def test_modules_that_can_not_be_loaded_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_aloud.py").write_text("raise ImportError('libmissing.so')")
    (tmp_path / "breaks_hard.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert find_import_problem(("json",)) is None
    assert find_import_problem(("no_such_module_here",)) == "not installed: no_such_module_here"
    assert "libmissing.so" in (find_import_problem(("breaks_aloud",)) or "")
    assert "signal 4" in (find_import_problem(("breaks_hard",)) or "")


def test_weights_that_are_gone_are_named(tmp_path: Path) -> None:
    engine = LlamaCppEngine(kind="llamacpp", model=str(tmp_path / "gone.gguf"))
    with pytest.raises(EngineRefused, match=r"gone\.gguf"):
        find_weights(engine)
    (small,) = find_weights(LlamaCppEngine(kind="llamacpp"))
    assert small.suffix == ".gguf"


@pytest.mark.parametrize(
    ("version", "requirement", "is_good"),
    [
        ("2.8.9", "granian==2.8.9", True),
        ("2.8.10", "granian==2.8.9", False),
        ("0.22.1", "uvloop>=0.21", True),
        ("0.9", "httptools>=0.21", False),
        ("10.0", "x>=9.1", True),
        ("1.0rc1", "x>=1.0", True),
        ("1", "x", True),
    ],
)
def test_versions(version: str, requirement: str, is_good: bool) -> None:
    assert fits(version, requirement) is is_good


@settings(deadline=None)
@given(st.text(max_size=10), st.text(max_size=10))
def test_odd_versions_are_no_end(version: str, requirement: str) -> None:
    assert fits(version, requirement) in (True, False)
