"""The smoke inference of an environment: starts the engine in it with a small model and asks for a token.

Nothing of it stays: the engine is ended, with whatever it started, whether it answered or not.
"""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forebay.engines.environment import EnvironmentFailed, Recipe
from forebay.engines.environment_build import SmokeResult
from forebay.engines.environment_launch import compose_variables
from forebay.engines.environment_run import StepFailed, run_step, tie_to_parent
from forebay.engines.model import EngineSpec, LaunchPlan
from forebay.engines.plan import Place, plan_engine
from forebay.engines.weights import find_gguf

TINY_MODEL: Final = Path(__file__).with_name("tiny_model.py")
SMALL_MODEL: Final = "embedded:smollm2-135m"
MAKE_TIMEOUT_S: Final = 300.0
POLL_S: Final = 0.25
ASK_TIMEOUT_S: Final = 300.0  #: of the first answer, for which an engine may still compile
STOP_S: Final = 20.0
TAIL_BYTES: Final = 2000
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def run_smoke(recipe: Recipe, folder: Path, log: Path) -> SmokeResult:
    """Raises EnvironmentFailed, with what the engine said last."""
    with tempfile.TemporaryDirectory(prefix="forebay-smoke-") as place:
        variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
        variables |= compose_variables(folder.parent, recipe.engine, recipe.env)
        # Its caches go with it.
        variables |= {"XDG_CACHE_HOME": place, "XDG_CONFIG_HOME": place, "VLLM_CACHE_ROOT": f"{place}/vllm"}
        spec = make_spec(recipe, folder, Path(place), variables, log)
        plan = plan_engine(spec, Place(port=_find_port(), python=str(folder / "bin" / "python")))
        return _try(plan, {**variables, **plan.env}, log)


def make_spec(
    recipe: Recipe, folder: Path, place: Path, variables: Mapping[str, str], log: Path
) -> EngineSpec:
    """The smallest engine that answers.  vLLM gets a model that is made for it here.

    Raises:
        EnvironmentFailed: that model could not be made.
        EngineRefused: the weights that come with Forebay are not installed.
    """
    small = {"name": "smoke", "kind": recipe.engine, "slots": 1, "context_tokens": 512}
    if recipe.engine != "vllm":
        # The weights that come with Forebay are no part of the environment.
        return msgspec.convert({**small, "model": str(find_gguf(SMALL_MODEL))}, EngineSpec)
    model = place / "model"
    try:
        run_step(
            [str(folder / "bin" / "python"), "-I", str(TINY_MODEL), str(model)],
            log=log,
            env=variables,
            timeout_s=MAKE_TIMEOUT_S,
            report=lambda line: None,
        )
    except StepFailed as failed:
        raise EnvironmentFailed(
            f"the tiny model for the smoke inference could not be made: {failed.reason}."
        ) from None
    arguments = {"enforce-eager": True, "dtype": "float32", "kv-cache-memory-bytes": 64 << 20}
    return msgspec.convert({**small, "model": str(model), "arguments": arguments}, EngineSpec)


def _try(plan: LaunchPlan, env: Mapping[str, str], log: Path) -> SmokeResult:
    started = time.monotonic()
    with log.open("ab") as file:
        file.write(f"$ {' '.join(plan.argv)}\n".encode())
        file.flush()
        process = subprocess.Popen(
            plan.argv,
            cwd="/",
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=tie_to_parent,  # noqa: PLW1509 - one system call, and no lock is taken in it
        )
    try:
        _wait_until_healthy(process, plan, log, started)
        tokens = _ask(process, plan, log)
        return SmokeResult(seconds=time.monotonic() - started, tokens=tokens)
    finally:
        _end(process)


def _wait_until_healthy(
    process: "subprocess.Popen[bytes]", plan: LaunchPlan, log: Path, started: float
) -> None:
    while True:
        if process.poll() is not None:
            raise EnvironmentFailed(
                f"the engine of the smoke inference ended with {process.returncode}: {_read_tail(log)}."
            )
        if time.monotonic() - started > plan.ready_timeout_s:
            raise EnvironmentFailed(
                f"the engine of the smoke inference was not ready after {plan.ready_timeout_s:.0f} s."
            )
        with contextlib.suppress(OSError, HTTPException):
            if _send("GET", plan.health_url, None, timeout_s=5.0)[0] == 200:
                return
        time.sleep(POLL_S)


def _ask(process: "subprocess.Popen[bytes]", plan: LaunchPlan, log: Path) -> int:
    """Tokens of the answer."""
    try:
        status, body = _send("POST", plan.probe_url, plan.probe_body, timeout_s=ASK_TIMEOUT_S)
    except (OSError, HTTPException) as error:
        raise EnvironmentFailed(
            f"the engine of the smoke inference gave no answer ({error}): {_read_tail(log)}."
        ) from None
    try:
        tokens = msgspec.json.decode(body)["usage"]["completion_tokens"] if status == 200 else 0
    except (msgspec.DecodeError, LookupError, TypeError):
        tokens = 0
    if not isinstance(tokens, int) or tokens < 1:
        said = body[:300].decode(errors="replace")
        raise EnvironmentFailed(f"the engine of the smoke inference answered {status} and no token: {said}.")
    return tokens


def _send(method: str, url: str, body: bytes | None, *, timeout_s: float) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        headers = {"content-type": "application/json"} if body else {}
        connection.request(method, parts.path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The process, then its whole session: an engine may have started others."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _find_port() -> int:
    """A free one.  Somebody else may take it before the engine does, which then says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _read_tail(log: Path) -> str:
    data = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "it said nothing"
