"""The lock, the state file, leftovers of a killed supervisor, and the sockets that outlive a worker."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_process import SUPERVISED_MARK
from forebay.app.supervisor_socket import (
    AddressUnavailable,
    find_port_holder,
    format_url,
    open_listener,
    reserve_engine_port,
)
from forebay.app.supervisor_state import (
    AlreadyRunning,
    ChildStatus,
    RunState,
    SupervisorLock,
    clear_leftovers,
    find_leftovers,
    load_run_state,
    save_run_state,
)

SUPERVISE = """
import asyncio, os, sys
from pathlib import Path
from forebay.app.clock import SystemClock
from forebay.app.supervisor import Supervisor
from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_process import ChildSpec
from forebay.app.supervisor_state import SupervisorLock

folder = Path(sys.argv[1])
sleeper = "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {} time.sleep(600)"
parent = sleeper.format("subprocess.Popen(['sleep', '600']);")
specs = [
    ChildSpec(name=name, argv=(sys.executable, "-S", "-c", code))
    for name, code in [("a", sleeper.format("")), ("b", sleeper.format("")), ("c", parent)]
]

async def main():
    supervisor = Supervisor(specs, logs=folder, mark=str(folder), clock=SystemClock())
    task = asyncio.create_task(supervisor.run())
    while not all(status.was_ready for status in supervisor.statuses):
        await asyncio.sleep(0.01)
    print(*(status.pid for status in supervisor.statuses), flush=True)
    await task

with SupervisorLock(folder / "lock"):
    asyncio.run(main())
"""


def start_supervisor(folder: Path) -> tuple["subprocess.Popen[str]", list[int]]:
    command = [sys.executable, "-c", SUPERVISE, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    process.stdout.close()
    return process, pids


def wait_gone(pids: list[int], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while left := [pid for pid in pids if os.path.exists(f"/proc/{pid}/exe")]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)


def test_a_killed_supervisor_takes_its_children_along_and_the_next_starts(tmp_path: Path) -> None:
    for _ in range(3):
        process, pids = start_supervisor(tmp_path)
        assert len(pids) == 3
        process.kill()
        process.wait()
        wait_gone(pids, 30.0)
        cleared = clear_leftovers(str(tmp_path))
        assert not set(cleared) & set(pids)
        assert list(find_leftovers(str(tmp_path))) == []


def test_what_a_child_had_started_is_cleared_by_the_next_supervisor(tmp_path: Path) -> None:
    env = {**os.environ, SUPERVISED_MARK: str(tmp_path)}
    mine = subprocess.Popen(["sleep", "600"], env=env)
    other = subprocess.Popen(["sleep", "600"], env={**env, SUPERVISED_MARK: f"{tmp_path}/other"})
    try:
        assert clear_leftovers(str(tmp_path)) == (mine.pid,)
        assert mine.wait() == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_supervisor_spares_whoever_started_it(tmp_path: Path) -> None:
    code = "import sys; from forebay.app.supervisor_state import clear_leftovers as c; print(c(sys.argv[1]))"
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}, sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", middle, str(tmp_path)],
        env={**os.environ, SUPERVISED_MARK: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "()\n", "")


def test_the_lock_is_held_by_one_and_names_it(tmp_path: Path) -> None:
    process, _ = start_supervisor(tmp_path)
    try:
        with pytest.raises(AlreadyRunning, match=f"already running in .* pid {process.pid}"):
            SupervisorLock(tmp_path / "lock")
    finally:
        process.kill()
        process.wait()
    with SupervisorLock(tmp_path / "lock"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
            SupervisorLock(tmp_path / "lock")
    with SupervisorLock(tmp_path / "lock"):
        pass


def test_the_state_is_read_back_and_rubbish_is_none(tmp_path: Path) -> None:
    child = ChildStatus(
        name="a",
        state=ChildState.READY,
        pid=1,
        since_s=1.5,
        restarts=2,
        failures=0,
        was_ready=True,
        last_exit="",
    )
    state = RunState(
        pid=7, started_at_s=1.0, gateway_url="http://g", control_url="http://c", children=(child,)
    )
    path = tmp_path / "state.json"
    assert load_run_state(path) is None
    save_run_state(path, state)
    assert load_run_state(path) == state
    assert state.ready
    assert not msgspec.structs.replace(
        state, children=(child, msgspec.structs.replace(child, state=ChildState.BACKOFF))
    ).ready
    path.write_bytes(path.read_bytes()[:-10])
    assert load_run_state(path) is None


# --- sockets ------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named_with_its_setting_and_its_holder() -> None:
    with open_listener("127.0.0.1", 0, section="gateway") as first:
        port = first.getsockname()[1]
        holder = f"{Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})"
        assert find_port_holder(port) == holder
        with pytest.raises(AddressUnavailable) as caught:
            open_listener("127.0.0.1", port, section="gateway")
    message = caught.value.message
    assert f"Port {port} is already in use by {holder}" in message
    assert "gateway.port" in message
    assert find_port_holder(port) is None


def test_a_closed_listener_can_be_opened_again_at_once() -> None:
    """Connections of the last run may linger; they must not keep the port."""
    listener = open_listener("127.0.0.1", 0, section="gateway")
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = listener.accept()
        accepted.close()
    listener.close()
    open_listener("127.0.0.1", port, section="gateway").close()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}"),
        ("localhost", "http://127.0.0.1:{}"),
        ("0.0.0.0", "http://127.0.0.1:{}"),
        ("::1", "http://[::1]:{}"),
        ("[::1]", "http://[::1]:{}"),
        ("::", "http://127.0.0.1:{}"),
    ],
)
def test_every_kind_of_host_is_bound_and_reachable(host: str, url: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with open_listener(host, 0, section="gateway") as listener:
        port = listener.getsockname()[1]
        assert format_url(listener) == url.format(port)
        reached = "::1" if "::1" in host else "127.0.0.1"
        with socket.create_connection((reached, port), 2):
            accepted, _ = listener.accept()
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            accepted.close()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "said"), [("203.0.113.77", "no address of this machine"), ("no-such-host.invalid", "resolved")]
)
def test_a_host_that_is_not_here_is_explained(host: str, said: str) -> None:
    with pytest.raises(AddressUnavailable, match=said) as caught:
        open_listener(host, 0, section="control")
    assert "control.host" in caught.value.message


@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_a_reserved_port_is_for_the_engine_alone(option: int) -> None:
    with reserve_engine_port() as holder, socket.socket() as engine, socket.socket() as stranger:
        address = holder.getsockname()
        with pytest.raises(OSError, match="in use"):
            stranger.bind(address)
        with reserve_engine_port(preferred=address[1]) as other:
            assert other.getsockname() != address
        engine.setsockopt(socket.SOL_SOCKET, option, 1)
        engine.bind(address)
        engine.listen()
        with socket.create_connection(address, 2):
            engine.accept()[0].close()


def test_an_engine_gets_its_last_port_again() -> None:
    with reserve_engine_port() as holder:
        port = holder.getsockname()[1]
    with reserve_engine_port(preferred=port) as again:
        assert again.getsockname()[1] == port
