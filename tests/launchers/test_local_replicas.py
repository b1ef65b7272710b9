"""What only the local launcher does: who gets GPUs and memory, why a process ended, and which logs stay."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launcher_contract import LIMIT_S, await_gone, await_status, replica
from launcher_scenes import open_local

from forebay.app import replica_keeper
from forebay.app.launcher_local import LocalLauncher
from forebay.app.machine_memory import MIB, measure_tree
from forebay.app.replica_exits import Circumstances, is_final, judge_exit
from forebay.app.replica_files import LOGS_FOLDER, REPORT_FILE, WANTED_FILE
from forebay.app.replica_room import Grant, Machine, NoRoom, find_room
from forebay.app.supervisor_process import ChildEnd
from forebay.engines.deployment import ExitReason, ReplicaState, Resources
from forebay.engines.environment import BuiltEnvironment, Platform
from forebay.engines.environment_store import EnvironmentStore
from forebay.engines.model import LauncherError

wishes = st.lists(
    st.builds(
        Resources,
        gpus=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0]),
        memory_mib=st.none() | st.integers(1, 2000),
    ),
    max_size=12,
)


@given(wishes, st.integers(0, 4), st.none() | st.integers(0, 4000))
def test_nothing_is_promised_twice(wanted: list[Resources], gpus: int, memory_mib: int | None) -> None:
    machine = Machine(gpus=tuple(map(str, range(gpus))), memory_mib=memory_mib)
    granted: list[Grant] = []
    for wish in wanted:
        found = find_room(machine, granted, wish)
        if isinstance(found, NoRoom):
            assert found.reason.startswith("waits for")
        else:
            granted.append(found)
            assert len(found.gpus) == -(-wish.gpus // 1)
    for gpu in machine.gpus:
        assert sum(min(1.0, each.resources.gpus) for each in granted if gpu in each.gpus) <= 1.0
    if memory_mib is not None:
        assert sum(each.resources.memory_mib or 0 for each in granted) <= memory_mib


def test_what_shares_a_gpu_leaves_whole_ones_free() -> None:
    machine, half = Machine(gpus=("0", "1")), Resources(gpus=0.5)
    first = find_room(machine, [], half)
    assert isinstance(first, Grant)
    second = find_room(machine, [first], half)
    assert isinstance(second, Grant)
    assert first.gpus == second.gpus
    whole = find_room(machine, [first, second], Resources(gpus=1))
    assert isinstance(whole, Grant)
    assert isinstance(find_room(machine, [first, second, whole], half), NoRoom)


TORCH = ("Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory. Tried to ...", "")


@pytest.mark.parametrize(
    ("code", "seen", "is_overdue", "reason"),
    [
        (-9, Circumstances(is_over_memory=True), False, ExitReason.OUT_OF_MEMORY),
        (-9, Circumstances(has_kernel_killed=True), False, ExitReason.OUT_OF_MEMORY),
        (-9, Circumstances(), False, ExitReason.CRASHED),
        (-9, Circumstances(), True, ExitReason.STALLED),
        (-9, Circumstances(last_words=TORCH), False, ExitReason.CRASHED),
        (1, Circumstances(last_words=TORCH), False, ExitReason.OUT_OF_MEMORY),
        (1, Circumstances(has_kernel_killed=True), False, ExitReason.CRASHED),
        (-6, Circumstances(last_words=("what():  std::bad_alloc",)), False, ExitReason.OUT_OF_MEMORY),
        (-11, Circumstances(), False, ExitReason.CRASHED),
        (2, Circumstances(), False, ExitReason.REFUSED),
        (3, Circumstances(), False, ExitReason.STALLED),
        (0, Circumstances(last_words=TORCH), False, ExitReason.CRASHED),
        (None, Circumstances(), False, ExitReason.CRASHED),
    ],
)
def test_exits_are_told_apart(
    code: int | None, seen: Circumstances, is_overdue: bool, reason: ExitReason
) -> None:
    end = ChildEnd(pid=1, code=code, is_overdue=is_overdue, was_ready=False)
    assert judge_exit(end, seen) is reason


def test_only_what_was_never_ready_is_refused_for_good() -> None:
    assert is_final(ExitReason.REFUSED, was_ready=False)
    assert not is_final(ExitReason.REFUSED, was_ready=True)
    assert not any(
        is_final(reason, was_ready=False) for reason in ExitReason if reason is not ExitReason.REFUSED
    )


def test_a_process_that_is_gone_has_no_memory_and_this_one_has() -> None:
    held = measure_tree(os.getpid())
    assert held is not None
    assert MIB < held < 100_000 * MIB
    assert measure_tree(2**22 + 1) is None


async def check_room(folder: Path) -> None:
    async with open_local(folder, Machine(memory_mib=500)) as scene:
        launcher, first, second = scene.connect(), replica(memory_mib=300), replica(index=1, memory_mib=300)
        await launcher.start(first)
        await await_status(launcher, first.id, lambda each: each.state is ReplicaState.READY)
        await launcher.start(second)
        waiting = await await_status(launcher, second.id, lambda each: "waits for 300 MiB" in each.message)
        assert waiting.state is ReplicaState.PENDING
        assert not waiting.url
        await launcher.stop(first.id)
        await await_status(launcher, second.id, lambda each: each.state is ReplicaState.READY)


def test_what_finds_no_room_waits_for_it(tmp_path: Path) -> None:
    asyncio.run(check_room(tmp_path))


async def check_logs_kept(folder: Path) -> None:
    async with open_local(folder) as scene:
        launcher = scene.connect()
        for number in range(4):
            each = replica(revision=f"r{number}", exit=2)
            await launcher.start(each)
            await await_status(launcher, each.id, lambda status: status.state is ReplicaState.REFUSED)
            await launcher.stop(each.id)
            await await_gone(launcher, each.id)
        kept = [number for number in range(4) if await launcher.logs(f"chat-r{number}-0")]
        assert kept == [2, 3]


def test_a_bounded_number_of_logs_outlives_their_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_keeper, "ENDED_LOGS_MAX", 2)
    asyncio.run(check_logs_kept(tmp_path))


@pytest.mark.parametrize("damage", [b"{", b"", b'{"replicas": [{"deployment": 1}]}', None])
def test_what_runs_goes_on_while_the_list_is_damaged(tmp_path: Path, damage: bytes | None) -> None:
    """And the list is mended: who added to an empty one would end all the others."""

    async def check() -> None:
        async with open_local(tmp_path) as scene:
            launcher, one, two = scene.connect(), replica(), replica(index=1)
            await launcher.start(one)
            before = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
            file, told = scene.run / WANTED_FILE, list[str]()
            if damage is None:
                file.unlink()
            else:
                file.write_bytes(damage)
            for _ in range(3000):
                try:
                    await launcher.start(two)
                    break
                except LauncherError as error:
                    told.append(error.message)
                    await asyncio.sleep(0.02)
            await await_status(launcher, two.id, lambda each: each.state is ReplicaState.READY)
            after = await await_status(launcher, one.id, lambda each: True)
            assert after == before
            assert all("replicas.json" in each for each in told)

    asyncio.run(check())


def test_a_list_that_was_damaged_before_the_start_is_set_aside(tmp_path: Path) -> None:
    async def check() -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / WANTED_FILE).write_bytes(b"garbage")
        async with open_local(tmp_path) as scene:
            await await_true(lambda: not (scene.run / WANTED_FILE).exists())
            assert (scene.run / f"{WANTED_FILE}.damaged").read_bytes() == b"garbage"
            launcher = scene.connect()
            await launcher.start(replica())
            await await_status(launcher, replica().id, lambda each: each.state is ReplicaState.READY)

    asyncio.run(check())


def test_a_report_that_is_damaged_is_no_answer_and_is_written_anew(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_local(tmp_path) as scene:
            launcher = scene.connect()
            await launcher.start(replica())
            await await_status(launcher, replica().id, lambda each: each.state is ReplicaState.READY)
            file = scene.run / REPORT_FILE
            whole = file.read_bytes()
            file.write_bytes(b"{")
            await await_true(lambda: file.read_bytes() == whole)
        file.write_bytes(b"{")
        with pytest.raises(LauncherError, match=r"replica-states\.json"):
            await launcher.list()

    asyncio.run(check())


def test_a_disk_that_has_no_room_for_logs_ends_nothing_that_runs(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_local(tmp_path) as scene:
            launcher = scene.connect()
            scene.logs.mkdir(exist_ok=True)
            in_the_way = scene.logs / LOGS_FOLDER
            in_the_way.touch()
            await launcher.start(replica())
            held = await await_status(launcher, replica().id, lambda each: "folder" in each.message)
            assert held.state is ReplicaState.PENDING
            in_the_way.unlink()
            await await_status(launcher, replica().id, lambda each: each.state is ReplicaState.READY)

    asyncio.run(check())


async def await_true(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


def test_without_a_supervisor_replicas_wait_and_say_for_what(tmp_path: Path) -> None:
    async def check() -> None:
        launcher, one = LocalLauncher(tmp_path / "run", tmp_path / "logs"), replica()
        await launcher.start(one)
        (status,) = await launcher.list()
        assert status.state is ReplicaState.PENDING
        assert "forebay up" in status.message

    asyncio.run(check())


def test_a_missing_environment_is_told_and_needs_no_process(tmp_path: Path) -> None:
    async def check() -> None:

        async with open_local(tmp_path) as scene:
            launcher = scene.connect()
            one = msgspec.structs.replace(replica(), environment="abc123")
            await launcher.start(one)
            status = await await_status(launcher, one.id, lambda each: each.state is ReplicaState.REFUSED)
            assert "abc123 is not there" in status.message

    asyncio.run(check())


DIGEST = "0123456789abcdef"


def write_environment(folder: Path) -> EnvironmentStore:
    place = folder / "environments" / DIGEST
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    built = BuiltEnvironment(
        digest=DIGEST,
        recipe="stand-in",
        engine="stand-in",
        version="1",
        revision=1,
        hardware="cpu",
        platform=Platform(python="3.11.2", system="linux"),
        built_at_s=0.0,
        build_s=0.0,
        smoke_s=None,
        size_bytes=0,
        packages={},
    )
    (place / BuiltEnvironment.FILE).write_bytes(msgspec.json.encode(built))
    return EnvironmentStore(folder)


async def await_user(store: EnvironmentStore, pid: int | None) -> int:
    """The process that uses the environment, another one than that."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            users = store.list_users(DIGEST)
            if users and users[0].pid != pid:
                assert [user.user for user in users] == ["chat-r1-0"]
                return users[0].pid
            await asyncio.sleep(0.02)


def test_what_runs_from_an_environment_is_noted_each_time_and_bears_none_of_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    store = write_environment(tmp_path)

    async def check() -> None:
        async with open_local(tmp_path) as scene:
            launcher = scene.connect()
            one = msgspec.structs.replace(replica(), environment=DIGEST)
            await launcher.start(one)
            first = await await_user(store, None)
            assert b"PYTHONPATH=/somewhere" not in Path(f"/proc/{first}/environ").read_bytes()
            await await_status(launcher, one.id, lambda each: each.state is ReplicaState.READY)
            os.kill(first, signal.SIGKILL)
            await await_user(store, first)
            assert len(list((tmp_path / "environments" / "uses" / DIGEST).iterdir())) == 1
            await launcher.stop(one.id)
            await await_gone(launcher, one.id)
            assert store.list_users(DIGEST) == ()

    asyncio.run(check())
