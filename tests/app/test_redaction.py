"""No log line holds a secret, wherever in the record it stood, and in whichever process."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from up_scene import LiveForebay

from forebay.app.redaction import RedactingFormatter, Redactor, redactor
from forebay.app.secret_refs import keep_from_logs, read_secret

KEY = "fb-" + "K4n4ry_-x" * 4 + "1234567"
TOKEN = "fba-" + "T0k3n_-yy" * 4 + "1234567"
PASSWORD = "sk-canary of a target, with (signs) in it."
assert len(KEY) == 46
SIGNED = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1LTEifQ.c2lnbmF0dXJlX29mX2l0"
CANARIES = (KEY, TOKEN, PASSWORD, SIGNED)


@pytest.fixture(autouse=True)
def _the_target_s_secret_has_been_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{PASSWORD}\n")
    assert read_secret(f"file:{file}") == PASSWORD


def make_line(message: str, *args: object, error: BaseException | None = None) -> str:
    given = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("forebay", logging.ERROR, __file__, 1, message, args, given)
    record.stack_info = "Stack: " + message
    return RedactingFormatter("%(message)s").format(record)


def assert_clean(text: str) -> None:
    assert "redacted" in text
    for canary in CANARIES:
        assert canary not in text
        assert canary[4:20] not in text


@pytest.mark.parametrize("canary", CANARIES)
def test_no_part_of_a_record_shows_a_secret(canary: str) -> None:
    assert_clean(make_line(f"got {canary}, {canary}"))
    assert_clean(make_line("got %s", {"authorization": f"Bearer {canary}"}))
    assert_clean(make_line("%s and %r", [canary], canary.encode()))
    try:
        try:
            raise KeyError(canary)
        except KeyError as inner:
            raise OSError(5, "refused", f"/tmp/{canary}") from inner
    except OSError as error:
        line = make_line("failed", error=error)
    assert "Traceback" in line
    assert "KeyError" in line
    assert_clean(line)


def test_what_is_no_secret_stays() -> None:
    for text in ("fb-short", "the key fb-AbCdEf… was revoked", "model m: 200 in 3 ms", ""):
        assert make_line(text).startswith(text)
        assert "redacted" not in make_line(text)


def test_a_secret_that_is_not_there_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_OF_TESTS", "canary-from-the-environment")
    keep_from_logs([None, "env:NOT_THERE_AT_ALL", f"file:{tmp_path}/none", "env:CANARY_OF_TESTS"])
    assert redactor.redact("x canary-from-the-environment") == "x [redacted]"


@given(st.lists(st.text(min_size=4, max_size=12), max_size=5), st.text(max_size=20))
def test_secrets_that_hold_each_other_are_gone_too(secrets: list[str], text: str) -> None:
    own = Redactor()
    for secret in secrets:
        own.learn(secret)
    for secret in secrets:
        assert secret not in own.redact(f"{text}\n{secret}\n").replace("[redacted]", "\0")


SPEAK = """
import asyncio, logging, sys, warnings
from forebay.app.redaction import log_to_stderr
log_to_stderr()
secret = sys.argv[1]
logging.getLogger("some.library").warning("library %s", secret)
warnings.warn(f"warned {secret}")

async def unheard():
    asyncio.get_running_loop().call_soon(lambda: 1 / int(f"nought {secret}"))
    await asyncio.sleep(0)

asyncio.run(unheard())
raise RuntimeError(f"uncaught {secret}")
"""


def test_what_libraries_and_the_interpreter_say_is_covered() -> None:
    done = run("-c", SPEAK, KEY)
    assert done.returncode == 1
    for word in ("library", "warned", "nought", "uncaught", "Traceback"):
        assert word in done.stderr
    assert_clean(done.stderr)


def test_the_worker_is_covered(tmp_path: Path) -> None:
    done = run("-m", "forebay.app.worker", "--run-dir", str(tmp_path / KEY), "--index=0", "--listen-fd=0")
    assert done.returncode == 2
    assert "worker 0 can't start" in done.stderr
    assert_clean(done.stderr)


def test_the_control_plane_is_covered(tmp_path: Path) -> None:
    missing = str(tmp_path / TOKEN / "engines.json")
    done = run("-m", "forebay.app.control", "--config=-", "--data", str(tmp_path), "--engines-json", missing)
    assert done.returncode == 1
    assert "the control plane can't start" in done.stderr
    assert_clean(done.stderr)


def test_the_supervisor_is_covered(tmp_path: Path) -> None:
    name = "fb-" + "c4n4ry" * 7 + "z"
    (tmp_path / "forebay.yaml").write_text(
        "gateway: {port: 0, workers: 1}\ncontrol: {port: 0}\n"
        f"engines: {{{name}: {{kind: minilm}}}}\nmodels: {{}}\n"
    )
    live = LiveForebay(tmp_path)
    log = live.data / "logs" / "supervisor.log"
    try:
        live.wait_for(lambda: log.exists() and "engine-" in log.read_text())
    finally:
        live.close()
    assert "engine-fb-[redacted]: waiting -> starting" in log.read_text()
    assert name not in log.read_text()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
