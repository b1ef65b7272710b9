"""`forebay restart` where it can do nothing: it must end nobody for that."""

import subprocess
import sys
from pathlib import Path

import pytest

from forebay.app.supervisor_state import RunState, save_run_state
from forebay.cli.restart import restart
from forebay.cli.terminal import Failure

#: Holds the lock as a supervisor does, and knows no more signals than one of an earlier version.
OLD = """
import sys
from pathlib import Path
from forebay.app.supervisor_state import SupervisorLock
with SupervisorLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_supervisor_that_knows_no_rolling_restart_is_left_alone(tmp_path: Path) -> None:
    """The signal would end it, and all callers with it."""
    file = tmp_path / "forebay.yaml"
    file.write_text("data: {dir: data}\n")
    run = tmp_path / "data" / "run"
    run.mkdir(parents=True)
    argv = [sys.executable, "-c", OLD, str(tmp_path / "data" / "lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as old:
        assert old.stdout is not None
        assert old.stdout.readline() == b"held\n"
        url = "http://127.0.0.1:1"
        state = RunState(pid=old.pid, started_at_s=0, gateway_url=url, control_url=url, children=())
        save_run_state(run / "state.json", state)
        with pytest.raises(Failure, match="knows no rolling restart"):
            restart(file)
        assert old.poll() is None
        old.communicate(b"")
    assert old.returncode == 0


def test_where_no_forebay_runs_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("data: {dir: data}\n")
    with pytest.raises(Failure, match="no Forebay runs here"):
        restart(file)


#: A supervisor in the middle of a restart: it ends that one well, and the one that it is asked for not.
BUSY = """
import os, signal, sys, time
from pathlib import Path
from forebay.app.supervisor_state import ROLL_SIGNAL, RunState, SupervisorLock, save_run_state

def tell(**facts):
    url = "http://127.0.0.1:1"
    state = RunState(
        pid=os.getpid(), started_at_s=0, gateway_url=url, control_url=url, children=(), **facts
    )
    save_run_state(Path(sys.argv[2]), state)

with SupervisorLock(Path(sys.argv[1])):
    signal.pthread_sigmask(signal.SIG_BLOCK, [ROLL_SIGNAL])
    signal.signal(ROLL_SIGNAL, lambda *_: None)
    begun = time.time()
    tell(rolls=0, roll="running", roll_began_s=0.0)
    print("held", flush=True)
    signal.sigwait([ROLL_SIGNAL])
    tell(rolls=1, roll="done", roll_began_s=begun, roll_ended="done")
    time.sleep(0.5)
    second = time.time()
    tell(rolls=1, roll="running", roll_began_s=begun, roll_ended="done")
    tell(rolls=2, roll="worker-0: no", roll_began_s=second, roll_ended="worker-0: no")
    sys.stdin.read()
"""


def test_a_restart_that_was_under_way_is_not_taken_for_the_one_that_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("data: {dir: data}\n")
    run = tmp_path / "data" / "run"
    run.mkdir(parents=True)
    argv = [sys.executable, "-c", BUSY, str(tmp_path / "data" / "lock"), str(run / "state.json")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"held\n"
        try:
            with pytest.raises(Failure, match="worker-0: no"):
                restart(file)
        finally:
            busy.communicate(b"")
