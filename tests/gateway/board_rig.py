"""Real workers on sockets of their own, and the board between them."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from forebay.app.board_server import BoardServer, JoinFleet
from forebay.core.engine_load import EngineLoad
from forebay.core.routes import Choosing, Endpoint, Order, Route, Target
from forebay.testing.gateway import TEST_KEY, GatewayProcess
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import Answer

HEADERS = {"authorization": f"Bearer {TEST_KEY}"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


class BoardThread:
    """A board in a thread of its own."""

    def __init__(self, folder: Path, join_fleet: JoinFleet | None = None) -> None:
        self.path = folder / "run" / "board.sock"
        self._join_fleet = join_fleet
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.server: BoardServer

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.server = BoardServer(self.path, self._join_fleet)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(60)
        return self

    def call(self, do: Callable[[], Any]) -> Any:
        """What it returns, called in the board's own thread."""

        async def run() -> Any:
            return do()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def publish(self, *loads: EngineLoad) -> None:
        self.call(lambda: self.server.publish(loads))

    def close(self) -> None:
        """Ends it, once."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _stop(self) -> None:
        self.server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest)

    def __exit__(self, *_: object) -> None:
        self.close()


class Machine:
    """Upstreams, some workers in front of them, each at an address of its own, and a board."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        upstreams: dict[str, ThreadedUpstream] | None = None,
        join_fleet: JoinFleet | None = None,
    ) -> None:
        self.folder = folder
        self.stack = stack
        self.upstreams = {} if upstreams is None else upstreams
        self._join_fleet = join_fleet
        self._constants: Mapping[str, float] | None = None
        self.workers: list[GatewayProcess] = []
        self.board: BoardThread

    def add(self, name: str, answer: Answer, *, model: str = "m", path: str = "", **facts: Any) -> Target:
        upstream = self.upstreams.get(name)
        if upstream is None:
            upstream = self.upstreams[name] = self.stack.enter_context(ThreadedUpstream(answer))
        return Target(id=f"{model}@{name}{path}", pool=name, url=upstream.url + path, model="m", **facts)

    def start(
        self,
        *routes: Route,
        workers: int = 2,
        board: bool = True,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        self._constants = constants
        if board:
            self.start_board()
        for index in range(workers):
            self.start_worker(index, routes, workers)
        if board:
            self.wait_board(workers)

    def start_board(self) -> None:
        self.board = self.stack.enter_context(BoardThread(self.folder, self._join_fleet))

    def start_worker(
        self, index: int, routes: tuple[Route, ...], workers: int, **table: Any
    ) -> GatewayProcess:
        worker = GatewayProcess(
            routes,
            folder=self.folder,
            index=index,
            environment={"KEY_A": "secret-a", "KEY_B": "secret-b"},
            constants=self._constants,
        )
        worker.snapshot = msgspec.structs.replace(
            worker.snapshot,
            explains_routes=True,
            quota_workers=workers,
            table=msgspec.structs.replace(worker.snapshot.table, **table),
        )
        self.workers.append(self.stack.enter_context(worker))
        return worker

    def wait_board(self, workers: int) -> None:
        worker = next(each for each in self.workers if each.process.poll() is None)
        worker.until(lambda: worker.metric("forebay_board_connected") == workers)

    def ask(self, worker: int, model: str = "m", *, stream: bool = False, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            f"{self.workers[worker].url}/chat/completions",
            json=CHAT | {"model": model, "stream": stream},
            headers=HEADERS | named,
            timeout=30,
        )

    def explain(self, worker: int, model: str = "m") -> dict[str, dict[str, Any]]:
        """The candidates by their pools."""
        answer = self.ask(worker, model, x_forebay_debug="route")
        assert answer.status_code == 200, answer.text
        return {each["pool"]: each for each in answer.json()["candidates"]}

    def count(self, name: str) -> int:
        return len(self.upstreams[name].requests)


def make_route(*targets: Target, model: str = "m", **facts: Any) -> Route:
    choosing = Choosing(order=Order.LOAD, **facts)
    return Route(model=model, endpoints=(Endpoint.CHAT,), targets=targets, choosing=choosing)
