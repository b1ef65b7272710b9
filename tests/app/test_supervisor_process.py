"""What a child is given at its start, and how its log is kept."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import READY, Nursery, open_nursery, running, until

from forebay.app.supervisor_process import SUPERVISED_MARK, open_log, read_log_tail, trim_log


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with open_nursery(tmp_path) as nursery:
        yield nursery


def test_bad_specs_are_refused(nursery: Nursery) -> None:
    with pytest.raises(ValueError, match="same name"):
        nursery.supervise(nursery.spec("a"), nursery.spec("a"))
    with pytest.raises(ValueError, match="b needs nobody"):
        nursery.supervise(nursery.spec("b", needs=("nobody",)))


async def check_environment(nursery: Nursery) -> None:
    code = READY + "print(os.environ['EXTRA'], os.getsid(0) == os.getpid(), flush=True); time.sleep(600)"
    reading, writing = os.pipe()
    withheld = frozenset({"WITHHELD", "EXTRA"})
    spec = nursery.spec("env", code=code, env={"EXTRA": "words"}, pass_fds=(writing,), withheld=withheld)
    async with running(nursery.supervise(spec)):
        await nursery.wait_ready()
        await until(lambda: bool(read_log_tail(nursery.folder / "env.log")))
        pid = nursery.pid("env")
        assert os.path.exists(f"/proc/{pid}/fd/{writing}")
        assert not os.path.exists(f"/proc/{pid}/fd/{reading}")
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert f"{SUPERVISED_MARK}={nursery.mark}" in variables
        assert "SHARED=1" in variables
        assert "WITHHELD=1" not in variables
    os.close(reading)
    os.close(writing)
    assert read_log_tail(nursery.folder / "env.log") == ("words True",)


def test_a_child_gets_its_environment_its_descriptors_and_a_session(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED", "1")
    monkeypatch.setenv("WITHHELD", "1")
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
