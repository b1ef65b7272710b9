"""The commands against a Forebay that runs, with a scripted server as its only target."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import command, environment, run_process

from forebay.testing.openai import usage, well_behaved
from forebay.testing.threaded import ThreadedUpstream, find_closed_port

START_S = 90.0
SEEN_S = 60.0


def wait_until(is_true: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come to pass")
        time.sleep(0.05)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("live")
    with ThreadedUpstream(well_behaved("Hel", "lo.", tokens=usage(prompt=9, completion=4))) as upstream:
        (folder / "forebay.yaml").write_text(
            "gateway: {port: 0, workers: 1, drain: {deadline_s: 5}}\n"
            "control: {port: 0}\n"
            "models:\n"
            f"  m: {{endpoints: [chat/completions], targets: [{{url: '{upstream.url}'}}]}}\n"
            f"  s: {{endpoints: [chat/completions], targets: "
            f"[{{url: '{upstream.url}', api_key: 'env:ONLY_THERE'}}]}}\n"
        )
        output = folder / "up.out"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command("up"),
                cwd=folder,
                env=environment({"ONLY_THERE": "sk-canary-0123456789"}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        try:
            wait_until(
                lambda: b"Ctrl-C ends it" in output.read_bytes() or process.poll() is not None, START_S
            )
            assert process.poll() is None, output.read_text()
            yield folder
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    written = output.read_bytes()
    assert b"\x1b" not in written
    assert b"Traceback" not in written


def test_chat_answers_and_usage_counts_at_once(live: Path) -> None:
    done = run_process("chat", "Hi!", cwd=live)
    assert (done.returncode, done.stdout) == (0, b"Hello.\n")
    assert done.stderr.startswith(b"9 tokens in, 4 out")
    row = json.loads(run_process("usage", "--by", "key,model,status", "--json", cwd=live).stdout)["rows"][0]
    assert (row["key_name"], row["model"], row["status"]) == ("local", "m", 200)
    assert (row["requests"], row["tokens_input"], row["tokens_output"]) == (1, 9, 4)


def test_an_unknown_model_is_answered_with_those_that_exist(live: Path) -> None:
    done = run_process("chat", "Hi!", "--model", "nothing-like-it", cwd=live)
    assert done.returncode == 1
    assert b"may call: m" in done.stderr


def test_a_key_opens_soon_after_it_is_made_and_closes_soon_after_it_is_revoked(live: Path) -> None:
    made = json.loads(run_process("keys", "create", "guest", "--json", cwd=live).stdout)

    def status() -> int:
        return run_process(
            "chat", "Hi!", "--model", "m", cwd=live, env={"FOREBAY_API_KEY": made["key"]}
        ).returncode

    wait_until(lambda: status() == 0, SEEN_S)
    assert run_process("keys", "revoke", made["id"], cwd=live).returncode == 0
    wait_until(lambda: status() == 1, SEEN_S)


def test_a_wrong_key_is_explained(live: Path) -> None:
    done = run_process("chat", "Hi!", cwd=live, env={"FOREBAY_API_KEY": "fb-wrong"})
    assert done.returncode == 1
    assert b"does not accept the key" in done.stderr
    assert b"it came from FOREBAY_API_KEY" in done.stderr
    assert b"fb-wrong" not in done.stderr


def test_doctor_finds_all_that_runs_well(live: Path) -> None:
    report = json.loads(run_process("doctor", "--json", cwd=live).stdout)
    assert report["ok"], report
    names = {finding["name"] for finding in report["findings"]}
    assert {
        "supervisor",
        "process control",
        "process worker-0",
        "health of gateway",
        "health of control",
    } <= names


@pytest.mark.parametrize("mistake", ["gateway: {prot: 1}\n", "a: [\n", "\t\n"], ids=["key", "bracket", "tab"])
def test_a_file_with_a_mistake_leaves_the_commands_with_what_runs(live: Path, mistake: str) -> None:
    file = live / "forebay.yaml"
    good = file.read_text()
    told = (
        b"forebay.yaml has mistakes (`forebay config check` shows them); "
        b"the configuration of the running Forebay is used\n"
    )
    file.write_text(mistake + good)
    try:
        chat = run_process("chat", "Hi!", cwd=live)
        assert (chat.returncode, chat.stdout) == (0, b"Hello.\n"), chat.stderr
        listed = run_process("keys", "list", cwd=live)
        assert (listed.returncode, b"local" in listed.stdout) == (0, True), listed.stderr
        used = run_process("usage", "--since", "all", "--csv", cwd=live)
        assert (used.returncode, b",m," in used.stdout) == (0, True), used.stderr
        for done in (chat, listed, used):
            assert done.stderr.startswith(told)
            assert done.stderr.count(b"mistake") == 1
        assert run_process("config", "show", cwd=live).returncode == 1
    finally:
        file.write_text(good)


def examine(folder: Path, env: dict[str, str] | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    done = run_process("doctor", "--json", cwd=folder, env=env)
    return done.returncode, {found["name"]: found for found in json.loads(done.stdout)["findings"]}


def test_a_secret_that_only_the_running_gateway_has_is_a_warning(live: Path) -> None:
    status, found = examine(live)
    assert status == 0
    assert found["configuration"]["verdict"] == "warn"
    assert found["configuration"]["message"] == (
        "models.s.targets[0].api_key: the environment variable ONLY_THERE is not set here; "
        "the gateway that runs has it"
    )
    assert found["configuration"]["hint"] == "export it before the next `forebay up`"
    assert examine(live, {"ONLY_THERE": "x"})[1]["configuration"]["verdict"] == "ok"


def test_a_secret_that_the_gateway_lacks_too_fails(live: Path) -> None:
    file = live / "forebay.yaml"
    good = file.read_text()
    file.write_text(good.replace("env:ONLY_THERE", "env:NOWHERE"))
    try:
        status, found = examine(live)
        assert status == 1
        assert found["configuration"]["verdict"] == "fail"
        assert "NOWHERE is not set" in found["configuration"]["message"]
        # The shell has it, and the gateway has refused the edit for want of it.
        wait_until(lambda: "last edit" in examine(live, {"NOWHERE": "x"})[1], SEEN_S)
        assert "NOWHERE is not set" in examine(live, {"NOWHERE": "x"})[1]["last edit"]["message"]
    finally:
        file.write_text(good)
    wait_until(lambda: "last edit" not in examine(live)[1], SEEN_S)


def test_an_edit_that_waits_for_a_restart_is_named(live: Path) -> None:
    file = live / "forebay.yaml"
    good = file.read_text()
    assert "restart" not in examine(live)[1]
    file.write_text(good.replace("gateway: {port: 0", f"gateway: {{port: {find_closed_port()}"))
    try:
        status, found = examine(live)
        assert (status, found["restart"]["verdict"]) == (0, "warn")
        assert found["restart"]["message"] == "edited, and in force after a restart only: gateway.port"
        assert "forebay up" in found["restart"]["hint"]
    finally:
        file.write_text(good)


def test_doctor_examines_what_runs_while_the_file_has_a_mistake(live: Path) -> None:
    file = live / "forebay.yaml"
    good = file.read_text()
    file.write_text(f"{good}prot: 1\n")
    try:
        status, found = examine(live)
    finally:
        file.write_text(good)
    assert (status, found["configuration"]["verdict"]) == (1, "fail")
    assert "prot: unknown key" in found["configuration"]["message"]
    assert "goes on with the last valid configuration" in found["configuration"]["message"]
    assert found["health of gateway"]["verdict"] == "ok"


def test_a_second_one_in_the_same_folder_is_refused(live: Path) -> None:
    done = run_process("up", cwd=live, env={"ONLY_THERE": "x"})
    assert done.returncode == 1
    assert b"already running" in done.stderr
