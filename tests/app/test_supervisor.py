"""The supervisor over real processes: small stand-ins for workers and engines, killed in every way."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import (
    FAST,
    LIVE,
    PARENT,
    SLOW_END,
    STUBBORN,
    FileProbe,
    Nursery,
    is_alive,
    open_nursery,
    running,
    until,
)

from forebay.app.supervisor_policy import ChildState, RestartPolicy
from forebay.app.supervisor_probe import HttpProbe
from forebay.app.supervisor_process import ChildSpec, read_log_tail
from forebay.app.supervisor_state import find_leftovers


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with open_nursery(tmp_path) as nursery:
        yield nursery


async def check_kill_restarts_only_the_victim(nursery: Nursery) -> None:
    names = ["a", "b", "c"]
    async with running(nursery.supervise(*(nursery.spec(name) for name in names))):
        await nursery.wait_ready()
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
        await nursery.wait_ready()
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
        await nursery.wait_ready()
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
        await nursery.wait_ready()
        nursery.supervisor.stop()
        await task
    assert nursery.states("stubborn")[-3:] == [ChildState.STOPPING, ChildState.KILLING, ChildState.STOPPED]


def test_a_child_that_ignores_the_signal_is_killed_at_its_deadline(nursery: Nursery) -> None:
    asyncio.run(check_stubborn(nursery))


async def check_second_signal(nursery: Nursery) -> None:
    specs = [nursery.spec("a", code=STUBBORN, stop_deadline_s=600), nursery.spec("b", stop_stage=1)]
    async with running(nursery.supervise(*specs)) as task:
        await nursery.wait_ready()
        nursery.supervisor.stop()
        await until(lambda: nursery.status("a").state is ChildState.STOPPING)
        assert nursery.status("b").state is ChildState.READY
        started = time.monotonic()
        nursery.supervisor.kill()
        await task
        assert time.monotonic() - started < 60


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
        await asyncio.wait_for(task, 30)


def test_stop_is_quick_in_every_state(nursery: Nursery) -> None:
    asyncio.run(check_stop_while_starting(nursery))


async def check_grandchildren(nursery: Nursery) -> None:
    async with running(nursery.supervise(nursery.spec("parent", code=PARENT))):
        await nursery.wait_ready()
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
    await nursery.wait_ready()
    pid = nursery.pid("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not is_alive(pid))


def test_a_cancelled_supervisor_leaves_nothing(nursery: Nursery) -> None:
    asyncio.run(check_cancelled_run(nursery))
