"""Rolling restarts: the next process is ready before its predecessor is asked to end."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import LIVE, SLOW_END, STUBBORN, Nursery, is_alive, open_nursery, running, until

from forebay.app.supervisor_policy import ChildState
from forebay.app.supervisor_state import SupervisorLock, find_supervisor

#: It lives, unless the test has laid a file beside that of its readiness: then it does what follows.
SECOND = "import os, sys, time\nif os.path.exists(sys.argv[1] + '.other'):\n {then}\n"


def change(nursery: Nursery, *names: str) -> None:
    """From now on they start as `SECOND` says."""
    for name in names:
        (nursery.folder / f"{name}.ready.other").touch()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with open_nursery(tmp_path) as nursery:
        yield nursery


def test_each_is_replaced_in_turn_by_one_that_is_ready(nursery: Nursery) -> None:
    async def scenario() -> None:
        names = ["a", "b"]
        async with running(nursery.supervise(*(nursery.spec(name, code=SLOW_END) for name in names))):
            await nursery.wait_ready()
            before = {name: nursery.pid(name) for name in names}
            assert await nursery.supervisor.roll(names) == ""
            for name in names:
                assert nursery.pid(name) != before[name]
                assert nursery.states(name)[-2:] == [ChildState.ROLLING, ChildState.READY]
                assert (nursery.status(name).restarts, nursery.status(name).failures) == (0, 0)
            await until(lambda: not any(map(is_alive, before.values())))
            for name in names:
                log = (nursery.folder / f"{name}.log").read_text()
                assert log.startswith("ended "), "it was asked to end, and took its time"
            rolling = [
                tuple(each.state is ChildState.ROLLING for each in statuses) for statuses in nursery.history
            ]
            assert (True, True) not in rolling, "one after the other"
            assert is_alive(nursery.pid("a"))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("then", "deadline_s", "words"),
    [("sys.exit(3)", 60.0, "exited with 3 before it was ready"), ("time.sleep(60)", 0.3, "not ready within")],
)
def test_one_that_does_not_get_ready_leaves_its_predecessor_serving(
    nursery: Nursery, then: str, deadline_s: float, words: str
) -> None:
    async def scenario() -> None:
        code = SECOND.format(then=then) + LIVE
        specs = [nursery.spec("a", code=code, start_deadline_s=deadline_s), nursery.spec("b")]
        async with running(nursery.supervise(*specs)):
            await until(lambda: nursery.status("b").state is ChildState.READY)
            await until(lambda: nursery.status("a").state is ChildState.READY)
            change(nursery, "a")
            before = [nursery.pid("a"), nursery.pid("b")]
            assert words in await nursery.supervisor.roll(["a", "b"])
            assert [nursery.pid("a"), nursery.pid("b")] == before, "given up at the first"
            assert nursery.status("a").state is ChildState.READY

    asyncio.run(scenario())


def test_one_that_is_killed_while_its_successor_starts_comes_back(nursery: Nursery) -> None:
    async def scenario() -> None:
        waits = "while os.path.exists(sys.argv[1] + '.other'): time.sleep(0.01)"
        async with running(nursery.supervise(nursery.spec("a", code=SECOND.format(then=waits) + LIVE))):
            await nursery.wait_ready()
            change(nursery, "a")
            before = nursery.pid("a")
            rolling = asyncio.ensure_future(nursery.supervisor.roll(["a"]))
            await until(lambda: nursery.status("a").state is ChildState.ROLLING)
            os.kill(before, signal.SIGKILL)
            assert "ended meanwhile" in await rolling
            (nursery.folder / "a.ready.other").unlink()
            await until(lambda: nursery.status("a").state is ChildState.READY)
            assert nursery.pid("a") != before

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_nothing_is_left_where_all_is_stopped_meanwhile(nursery: Nursery, way: str) -> None:
    """Of the one that drains, of the one that serves, and of the one that starts."""

    async def scenario() -> None:
        code = SECOND.format(then="time.sleep(0.3)") + STUBBORN
        specs = [nursery.spec(name, code=code, stop_deadline_s=1.0) for name in ("a", "b")]
        async with running(nursery.supervise(*specs)) as task:
            await nursery.wait_ready()
            change(nursery, "a", "b")
            rolling = asyncio.ensure_future(nursery.supervisor.roll(["a", "b"]))
            await until(lambda: nursery.status("b").state is ChildState.ROLLING)
            getattr(nursery.supervisor, way)()
            await task
            assert await rolling
            assert all(each.state is ChildState.STOPPED for each in nursery.supervisor.statuses)

    asyncio.run(scenario())


def test_the_predecessor_is_told_that_it_has_a_successor(nursery: Nursery) -> None:
    async def scenario() -> None:
        code = (
            "import signal, sys\n"
            "def end(number, _): print('told', signal.Signals(number).name, flush=True); sys.exit(0)\n"
            "for each in (signal.SIGTERM, signal.SIGUSR1): signal.signal(each, end)\n" + LIVE
        )
        async with running(nursery.supervise(nursery.spec("a", code, retire_signal=signal.SIGUSR1))) as task:
            await nursery.wait_ready()
            before = nursery.pid("a")
            assert await nursery.supervisor.roll(["a"]) == ""
            await until(lambda: not is_alive(before))
            nursery.supervisor.stop()
            await task
            log = (nursery.folder / "a.log").read_text()
            assert log.split() == ["told", "SIGUSR1", "told", "SIGTERM"]

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(5))
def test_a_roll_ends_whatever_comes_right_behind_it(nursery: Nursery, turns: int) -> None:
    """A stop, some turns of the loop later, which may be seen before the roll is."""

    async def scenario() -> None:
        async with running(nursery.supervise(nursery.spec("a"))) as task:
            await nursery.wait_ready()
            rolling = asyncio.ensure_future(nursery.supervisor.roll(["a"]))
            for _ in range(turns):
                await asyncio.sleep(0)
            nursery.supervisor.stop()
            await task
            async with asyncio.timeout(60):
                assert await rolling

    asyncio.run(scenario())


def test_one_that_does_not_serve_is_left_to_its_own_restarts(nursery: Nursery) -> None:
    async def scenario() -> None:
        specs = [
            nursery.spec("a"),
            nursery.spec("b", needs=("c",)),
            nursery.spec("c", code="import time; time.sleep(9)"),
        ]
        async with running(nursery.supervise(*specs)):
            await until(lambda: nursery.status("a").state is ChildState.READY)
            before = nursery.pid("a")
            assert await nursery.supervisor.roll(["b", "a"]) == ""
            assert nursery.pid("a") != before
            assert nursery.status("b").state is ChildState.WAITING

    asyncio.run(scenario())


def test_who_supervises_is_known_by_the_lock_alone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert find_supervisor(lock) is None
    with SupervisorLock(lock):
        assert find_supervisor(lock) == os.getpid()
    lock.write_text("1\n")
    assert find_supervisor(lock) is None, "it was written by one that is gone"
