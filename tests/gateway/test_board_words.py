"""What was said while there was no board is told once there is one, and to a new one again."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from routing_fleets import follow, make_pool, make_route

from forebay.app.board_server import BoardServer
from forebay.core.routes import RouteTable
from forebay.gateway.board import Board
from forebay.gateway.crowd import Crowd
from forebay.gateway.loads import Loads
from forebay.gateway.memory import Memory
from forebay.gateway.metrics import Cells
from forebay.gateway.metrics_layout import compute_layout

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder() -> Iterator[Path]:
    name = tempfile.mkdtemp(prefix="fb-")
    yield Path(name)
    shutil.rmtree(name)


class Worker:
    """A worker's side of the board, swept by hand."""

    def __init__(self, folder: Path, name: str) -> None:
        facts = {"shares_quota": True, "api_key": "env:KEY"}
        route = make_route(make_pool("one", 1, **facts), make_pool("two", 1))
        self.loads = Loads()
        follow(self.loads, route)
        self.owner = next(load for load in self.loads.by_id.values() if load.account is not None)
        self.other = next(load for load in self.loads.by_id.values() if load.account is None)
        self.cells = Cells(folder / "metrics", name, compute_layout(RouteTable(routes=(route,))))
        loop = asyncio.get_running_loop()
        self.board = Board(loop, folder / "board.sock", name, self.loads, Crowd(loop, Memory(1 << 20)))

    def sweep(self) -> None:
        """As often as it takes to tell once."""
        for _ in range(2):
            self.board.sweep(self.cells)


@pytest.fixture
async def workers(folder: Path) -> AsyncIterator[list[Worker]]:
    made = [Worker(folder, name) for name in ("a", "b")]
    yield made
    for worker in made:
        worker.board.close()


async def wait(workers: list[Worker], is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            for worker in workers:
                worker.sweep()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("boards", [1, 2])
async def test_what_was_said_without_a_board_is_told_to_the_next(
    folder: Path, workers: list[Worker], boards: int
) -> None:
    """Else a control plane that is started anew would let workers ask who wants to be left alone."""
    one, other = workers
    now = asyncio.get_running_loop().time()
    one.owner.refuse(now, 100.0, of_account=True)
    one.other.refuse(now, 200.0)
    own, others = one.owner.account, other.owner.account
    assert own is not None
    assert others is not None
    own.say_used(0.75, now, now + 300.0)
    one.sweep()  # to nobody
    for _ in range(boards):
        server = BoardServer(folder / "board.sock")
        await server.start()
        try:
            await wait(workers, partial(is_whole, server))
            await wait(workers, lambda: other.other.word.retry_at == now + 200.0)
            await wait(workers, lambda: others.word.retry_at == now + 100.0)
            await wait(workers, lambda: others.used == 0.75)
        finally:
            server.close()


def is_whole(server: BoardServer) -> bool:
    news = server.read()
    return len(news.words) == 2 and len(news.uses) == 1 and news.workers == 2
