"""The supervisor over real processes: small stand-ins for workers and engines, killed in every way."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.clock import SystemClock
from forebay.app.supervisor import Supervisor
from forebay.app.supervisor_policy import MOVES, ChildEvent, ChildState, RestartPolicy, describe_exit
from forebay.app.supervisor_probe import FileProbe, HttpProbe
from forebay.app.supervisor_process import (
    SUPERVISED_MARK,
    ChildSpec,
    open_log,
    read_log_tail,
    trim_log,
)
from forebay.app.supervisor_state import ChildStatus, find_leftovers

FAST = RestartPolicy(first_s=0.02, longest_s=0.1)

READY = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()))\n"
LIVE = READY + "time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LIVE
SLOW_END = (
    "import signal, sys, time\n"
    "def end(*_):\n time.sleep(0.2); print('ended', time.monotonic(), flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end)\n" + LIVE
)
PARENT = "import subprocess, sys; subprocess.Popen(['sleep', '600'])\n" + LIVE


class Nursery:
    """Specs of stand-ins, and one supervisor over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = str(folder)
        self.history: list[tuple[ChildStatus, ...]] = []
        self.supervisor: Supervisor

    def spec(self, name: str, code: str = LIVE, **options: object) -> ChildSpec:
        ready = self.folder / f"{name}.ready"
        settings: dict[str, object] = {"probe": FileProbe(ready), "restart": FAST, **options}
        return ChildSpec(name=name, argv=(sys.executable, "-S", "-c", code, str(ready)), **settings)  # type: ignore[arg-type]

    def supervise(self, *specs: ChildSpec) -> Supervisor:
        self.supervisor = Supervisor(
            specs, logs=self.folder, mark=self.mark, clock=SystemClock(), on_change=self._note
        )
        return self.supervisor

    def _note(self) -> None:
        self.history.append(self.supervisor.statuses)

    def status(self, name: str) -> ChildStatus:
        return next(each for each in self.supervisor.statuses if each.name == name)

    def pid(self, name: str) -> int:
        pid = self.status(name).pid
        assert pid is not None
        return pid

    def states(self, name: str) -> list[ChildState]:
        """All states of a child, in order, without repetition."""
        states: list[ChildState] = []
        for statuses in self.history:
            state = next(each.state for each in statuses if each.name == name)
            if not states or states[-1] is not state:
                states.append(state)
        return states


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    yield nursery
    deadline = time.monotonic() + 2  # the kernel takes a moment to end what was killed
    while left := list(find_leftovers(nursery.mark)):
        assert time.monotonic() < deadline, f"a test left processes running: {left}"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


class running:
    """The supervisor runs inside the block; it is killed at the end unless it has stopped."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def __aenter__(self) -> "asyncio.Task[None]":
        self._task = asyncio.create_task(self._supervisor.run())
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._supervisor.kill()
        async with asyncio.timeout(10):
            await self._task


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- the pure part ------------------------------------------------------------------------------------------


def test_every_state_but_stopped_can_end_and_leads_to_stopped() -> None:
    reaches = {ChildState.STOPPED}
    while len(wider := reaches | {before for (before, _), after in MOVES.items() if after in reaches}) > len(
        reaches
    ):
        reaches = wider
    assert reaches == set(ChildState)
    asked = {before for (before, event) in MOVES if event is ChildEvent.STOP}
    assert asked | {ChildState.STOPPING, ChildState.KILLING, ChildState.STOPPED} == set(ChildState)
    assert not any(before is ChildState.STOPPED for before, _ in MOVES)


@given(st.integers(0, 10_000))
def test_backoff_grows_up_to_its_limit(failures: int) -> None:
    policy = RestartPolicy()
    delay = policy.compute_delay_s(failures)
    assert 0.2 <= delay <= 10.0
    assert policy.compute_delay_s(failures + 1) >= delay
    assert [policy.compute_delay_s(n) for n in range(1, 8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]


@given(st.integers(0, 100), st.one_of(st.none(), st.floats(0, 1000)))
def test_failures_count_in_a_row_until_stable(failures: int, ready_s: float | None) -> None:
    stable = ready_s is not None and ready_s >= 30
    assert RestartPolicy().count_failures(failures, ready_s) == (1 if stable else failures + 1)


def test_exits_are_described() -> None:
    assert describe_exit(0) == "exited with 0"
    assert describe_exit(-signal.SIGKILL) == "killed by SIGKILL"
    assert describe_exit(-99) == "killed by signal 99"


# --- start and restart --------------------------------------------------------------------------------------


async def check_kill_restarts_only_the_victim(nursery: Nursery) -> None:
    names = ["a", "b", "c"]
    async with running(nursery.supervise(*(nursery.spec(name) for name in names))):
        await nursery.supervisor.wait_ready()
        for victim in names:
            before = {name: nursery.pid(name) for name in names}
            os.kill(before[victim], signal.SIGKILL)
            await until(lambda pids=before, name=victim: nursery.status(name).pid not in (None, pids[name]))
            await until(lambda name=victim: nursery.status(name).state is ChildState.READY)
            others = [name for name in names if name != victim]
            assert [nursery.pid(name) for name in others] == [before[name] for name in others]
            assert nursery.status(victim).restarts == 1
            assert nursery.status(victim).last_exit == "killed by SIGKILL"


def test_a_killed_child_is_restarted_and_the_others_go_on(nursery: Nursery) -> None:
    asyncio.run(check_kill_restarts_only_the_victim(nursery))


async def check_order(nursery: Nursery) -> None:
    specs = [
        nursery.spec("worker", needs=("control",), stop_stage=0, code=SLOW_END),
        nursery.spec("control", needs=("engine",), stop_stage=1, code=SLOW_END),
        nursery.spec("engine", stop_stage=2, code=SLOW_END),
    ]
    async with running(nursery.supervise(*specs)) as task:
        await nursery.supervisor.wait_ready()
        nursery.supervisor.stop()
        await task
    first_start = [
        next(i for i, seen in enumerate(nursery.history) if seen[index].state is ChildState.STARTING)
        for index in range(3)
    ]
    assert first_start == sorted(first_start, reverse=True), "engine, control, worker"
    ends = [read_log_tail(nursery.folder / f"{name}.log")[-1] for name in ("worker", "control", "engine")]
    times = [float(line.removeprefix("ended ")) for line in ends]
    assert times[1] - times[0] > 0.19, "control is asked to end when the worker has ended"
    assert times[2] - times[1] > 0.19
    assert {status.last_exit for status in nursery.supervisor.statuses} == {"exited with 0"}


def test_children_start_by_need_and_end_by_stage(nursery: Nursery) -> None:
    asyncio.run(check_order(nursery))


async def check_need_is_only_for_the_first_start(nursery: Nursery) -> None:
    specs = [nursery.spec("control"), nursery.spec("worker", needs=("control",))]
    async with running(nursery.supervise(*specs)):
        await nursery.supervisor.wait_ready()
        os.kill(nursery.pid("control"), signal.SIGSTOP)
        old = nursery.pid("worker")
        os.kill(old, signal.SIGKILL)
        await until(lambda: nursery.status("worker").pid not in (None, old))
        await until(lambda: nursery.status("worker").state is ChildState.READY)


def test_a_worker_comes_back_while_control_is_frozen(nursery: Nursery) -> None:
    asyncio.run(check_need_is_only_for_the_first_start(nursery))


async def check_crash_loop(nursery: Nursery) -> None:
    bad = nursery.spec("bad", code="print('no model here'); raise SystemExit(3)")
    async with running(nursery.supervise(bad, nursery.spec("good"), nursery.spec("next", needs=("bad",)))):
        await until(lambda: nursery.status("bad").failures >= 4)
        assert nursery.status("bad").last_exit == "exited with 3"
        assert not nursery.status("bad").was_ready
        assert nursery.status("good").state is ChildState.READY
        assert nursery.status("next").state is ChildState.WAITING
    assert read_log_tail(nursery.folder / "bad.log")[-1] == "no model here"
    assert set(nursery.states("bad")) == {ChildState.STARTING, ChildState.BACKOFF, ChildState.STOPPED}


def test_a_child_that_cannot_start_backs_off_and_bothers_nobody(nursery: Nursery) -> None:
    asyncio.run(check_crash_loop(nursery))


async def check_no_program(nursery: Nursery) -> None:
    spec = ChildSpec(name="none", argv=("/nonexistent/engine",), restart=FAST, probe=FileProbe(Path("/x")))
    async with running(nursery.supervise(spec)):
        await until(lambda: nursery.status("none").failures >= 2)
    assert "can't start /nonexistent/engine" in read_log_tail(nursery.folder / "none.log")[-1]


def test_a_missing_program_is_a_failure_like_another(nursery: Nursery) -> None:
    asyncio.run(check_no_program(nursery))


async def check_hung_start(nursery: Nursery) -> None:
    spec = nursery.spec("hung", code="import time; time.sleep(600)", start_deadline_s=0.3)
    async with running(nursery.supervise(spec)):
        await until(lambda: nursery.status("hung").failures >= 2)
    assert ChildState.HUNG in nursery.states("hung")
    assert nursery.status("hung").last_exit == "not ready within 0.3 s"


def test_a_child_that_never_gets_ready_is_killed_and_tried_again(nursery: Nursery) -> None:
    asyncio.run(check_hung_start(nursery))


async def check_file_of_a_predecessor(nursery: Nursery) -> None:
    (nursery.folder / "late.ready").write_text("1")
    spec = nursery.spec("late", code="import time; time.sleep(0.3)\n" + LIVE)
    async with running(nursery.supervise(spec)):
        await until(lambda: nursery.status("late").state is ChildState.READY)
        assert (nursery.folder / "late.ready").read_text() == str(nursery.pid("late"))


def test_a_ready_file_of_another_process_does_not_count(nursery: Nursery) -> None:
    asyncio.run(check_file_of_a_predecessor(nursery))


async def check_http_probe() -> None:
    answers = iter([b"HTTP/1.1 503 Loading\r\n\r\n", b"", b"nonsense\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probe = HttpProbe(f"http://127.0.0.1:{port}/health")
    assert [await probe.check(0) for _ in range(4)] == [False, False, False, True]
    server.close()
    await server.wait_closed()
    assert not await probe.check(0), "nobody listens"


def test_the_http_probe_takes_only_200_for_ready() -> None:
    asyncio.run(check_http_probe())


# --- the end ------------------------------------------------------------------------------------------------


async def check_stubborn(nursery: Nursery) -> None:
    async with running(
        nursery.supervise(nursery.spec("stubborn", code=STUBBORN, stop_deadline_s=0.3))
    ) as task:
        await nursery.supervisor.wait_ready()
        nursery.supervisor.stop()
        await task
    assert nursery.states("stubborn")[-3:] == [ChildState.STOPPING, ChildState.KILLING, ChildState.STOPPED]


def test_a_child_that_ignores_the_signal_is_killed_at_its_deadline(nursery: Nursery) -> None:
    asyncio.run(check_stubborn(nursery))


async def check_second_signal(nursery: Nursery) -> None:
    specs = [nursery.spec("a", code=STUBBORN, stop_deadline_s=600), nursery.spec("b", stop_stage=1)]
    async with running(nursery.supervise(*specs)) as task:
        await nursery.supervisor.wait_ready()
        nursery.supervisor.stop()
        await until(lambda: nursery.status("a").state is ChildState.STOPPING)
        assert nursery.status("b").state is ChildState.READY
        started = time.monotonic()
        nursery.supervisor.kill()
        await task
        assert time.monotonic() - started < 2


def test_kill_ends_all_at_once_in_the_middle_of_a_drain(nursery: Nursery) -> None:
    asyncio.run(check_second_signal(nursery))


async def check_stop_while_starting(nursery: Nursery) -> None:
    specs = [
        nursery.spec("never", code="import time; time.sleep(600)"),
        nursery.spec("waits", needs=("never",)),
        nursery.spec("fails", code="raise SystemExit(1)", restart=RestartPolicy(first_s=60)),
    ]
    async with running(nursery.supervise(*specs)) as task:
        await until(lambda: nursery.status("fails").state is ChildState.BACKOFF)
        await until(lambda: nursery.status("never").state is ChildState.STARTING)
        nursery.supervisor.stop()
        await asyncio.wait_for(task, 5)


def test_stop_is_quick_in_every_state(nursery: Nursery) -> None:
    asyncio.run(check_stop_while_starting(nursery))


async def check_grandchildren(nursery: Nursery) -> None:
    async with running(nursery.supervise(nursery.spec("parent", code=PARENT))):
        await nursery.supervisor.wait_ready()
        first = nursery.pid("parent")
        family = set(find_leftovers(nursery.mark))
        assert len(family) == 2
        assert first in family
        os.kill(first, signal.SIGKILL)
        await until(lambda: nursery.status("parent").pid not in (None, first))
        await until(lambda: not any(is_alive(pid) for pid in family))


def test_what_a_killed_child_had_started_goes_with_it(nursery: Nursery) -> None:
    asyncio.run(check_grandchildren(nursery))


async def check_cancelled_run(nursery: Nursery) -> None:
    task = asyncio.create_task(nursery.supervise(nursery.spec("a", code=STUBBORN)).run())
    await nursery.supervisor.wait_ready()
    pid = nursery.pid("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not is_alive(pid), 2)


def test_a_cancelled_supervisor_leaves_nothing(nursery: Nursery) -> None:
    asyncio.run(check_cancelled_run(nursery))


# --- specs and logs -----------------------------------------------------------------------------------------


def test_bad_specs_are_refused(nursery: Nursery) -> None:
    with pytest.raises(ValueError, match="same name"):
        nursery.supervise(nursery.spec("a"), nursery.spec("a"))
    with pytest.raises(ValueError, match="b needs nobody"):
        nursery.supervise(nursery.spec("b", needs=("nobody",)))


async def check_environment(nursery: Nursery) -> None:
    code = READY + "print(os.environ['EXTRA'], os.getsid(0) == os.getpid(), flush=True); time.sleep(600)"
    reading, writing = os.pipe()
    spec = nursery.spec("env", code=code, env={"EXTRA": "words"}, pass_fds=(writing,))
    async with running(nursery.supervise(spec)):
        await nursery.supervisor.wait_ready()
        await until(lambda: bool(read_log_tail(nursery.folder / "env.log")))
        pid = nursery.pid("env")
        assert os.path.exists(f"/proc/{pid}/fd/{writing}")
        assert not os.path.exists(f"/proc/{pid}/fd/{reading}")
        assert f"{SUPERVISED_MARK}={nursery.mark}" in Path(f"/proc/{pid}/environ").read_text().split("\0")
    os.close(reading)
    os.close(writing)
    assert read_log_tail(nursery.folder / "env.log") == ("words True",)


def test_a_child_gets_its_environment_its_descriptors_and_a_session(nursery: Nursery) -> None:
    asyncio.run(check_environment(nursery))


def test_logs_are_bounded_while_they_are_written(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    descriptor = open_log(log)
    os.write(descriptor, b"old " * 300)
    trim_log(log, max_bytes=1000)
    os.write(descriptor, b"new\n")
    os.close(descriptor)
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "x.log.1").read_bytes() == b"old " * 300
    trim_log(log, max_bytes=1000)
    assert log.read_bytes() == b"new\n"
    trim_log(tmp_path / "missing.log")


def test_a_full_log_is_set_aside_at_the_start(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("wb") as file:
        file.truncate(16 * 1024 * 1024)
    os.close(open_log(log))
    assert log.stat().st_size == 0
    assert (tmp_path / "x.log.1").stat().st_size == 16 * 1024 * 1024


def test_the_tail_of_a_log_is_read_without_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"x" * 100_000 + b"\n" + b"\n".join(b"%d" % n for n in range(50)) + b"\n\xff")
    assert read_log_tail(log, lines=3) == ("48", "49", "\ufffd")
    assert read_log_tail(tmp_path / "missing.log") == ()
