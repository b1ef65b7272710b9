"""Both ends of the lines between workers and the control plane, over a real socket."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from forebay.app.worker_lines import WorkerLine, WorkerLines
from forebay.gateway.control_line import ControlLine, LineFacts
from forebay.gateway.frames import frame

_decode = msgspec.msgpack.Decoder(str).decode


def _encode(text: str) -> bytes:
    return frame(msgspec.msgpack.encode(text))


class _Owner:
    """Takes a worker's first word for its name, and answers each of the others."""

    def __init__(self, path: Path) -> None:
        self.lines = WorkerLines(path, "tests", _decode, self)
        self.heard: list[tuple[str, str]] = []
        self.left: list[str] = []

    def hear(self, line: WorkerLine[str], message: str) -> None:
        if message == "nonsense":
            raise ValueError("nobody understands that")
        if not line.worker:
            self.lines.take(line, message)
        else:
            self.heard.append((line.worker, message))
            line.send(_encode(f"re: {message}"))

    def leave(self, worker: str) -> None:
        self.left.append(worker)


class _Worker:
    def __init__(self, path: Path, name: str, retry_s: float = 0.01) -> None:
        self._name = name
        facts = LineFacts(path=path, name="the other end", decode=_decode, retry_s=retry_s)
        self.line = ControlLine(asyncio.get_running_loop(), facts, self)
        self.heard: list[str] = []
        self.begun = self.ended = 0

    def begin(self) -> None:
        self.begun += 1
        self.line.send(_encode(self._name))

    def hear(self, message: str) -> None:
        self.heard.append(message)

    def end(self) -> None:
        self.ended += 1

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self.line.keep_open(asyncio.get_running_loop().time())
                await asyncio.sleep(0.005)


def _run(path: Path, do: Callable[[_Owner], Awaitable[None]]) -> None:
    async def run() -> None:
        owner = _Owner(path)
        await owner.lines.start()
        try:
            await do(owner)
        finally:
            owner.lines.close()

    asyncio.run(run())


def test_a_line_talks_both_ways_and_comes_back_when_it_breaks(tmp_path: Path) -> None:
    async def do(owner: _Owner) -> None:
        worker = _Worker(tmp_path / "s", "a")
        await worker.until(lambda: owner.lines.by_worker)
        worker.line.send(_encode("one"))
        await worker.until(lambda: worker.heard == ["re: one"])
        owner.lines.close_some()
        await worker.until(lambda: worker.begun == 2 and "a" in owner.lines.by_worker)
        assert (worker.ended, owner.left) == (1, ["a"])
        worker.line.close()
        await worker.until(lambda: owner.left == ["a", "a"])
        assert worker.begun == 2, "a line that was closed stays so"

    _run(tmp_path / "s", do)


def test_a_worker_that_comes_again_is_no_worker_that_left(tmp_path: Path) -> None:
    async def do(owner: _Owner) -> None:
        old, new = _Worker(tmp_path / "s", "a"), _Worker(tmp_path / "s", "a")
        await old.until(lambda: owner.lines.by_worker)
        before = owner.lines.by_worker["a"]
        await new.until(lambda: owner.lines.by_worker["a"] is not before)
        async with asyncio.timeout(60):
            while not old.ended:
                await asyncio.sleep(0.005)
        assert owner.left == []
        new.line.send(_encode("one"))
        await new.until(lambda: new.heard == ["re: one"])

    _run(tmp_path / "s", do)


@pytest.mark.parametrize("words", [frame(b"\xc1"), b"\xff\xff\xff\xff", _encode("nonsense")])
def test_what_nobody_understands_ends_the_line_and_nothing_behind_it_is_heard(
    tmp_path: Path, words: bytes
) -> None:
    async def do(owner: _Owner) -> None:
        worker = _Worker(tmp_path / "s", "a")
        await worker.until(lambda: owner.lines.by_worker)
        worker.line.send(words + _encode("behind it"))
        await worker.until(lambda: worker.begun == 2)
        assert (owner.heard, owner.left) == ([], ["a"])

    _run(tmp_path / "s", do)


def test_who_backs_off_comes_later_each_time_until_it_is_well(tmp_path: Path) -> None:
    async def do(owner: _Owner) -> None:
        worker = _Worker(tmp_path / "s", "a")
        loop = asyncio.get_running_loop()
        for wait_s in (0.1, 0.2):
            await worker.until(lambda: worker.line.is_open)
            since = loop.time()
            worker.line.back_off(0.1)
            await worker.until(lambda: not worker.line.is_open)
            await worker.until(lambda: worker.line.is_open)
            assert loop.time() - since >= wait_s
        worker.line.settle()
        since = loop.time()
        worker.line.back_off(0.0)
        await worker.until(lambda: worker.begun == 4)
        assert loop.time() - since >= 0.02, "twice the shortest wait"

    _run(tmp_path / "s", do)
