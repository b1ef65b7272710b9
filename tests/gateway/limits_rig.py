"""Real workers and the authority over limits, for tests that hold both to what limits promise."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from forebay.app.clock import SystemClock
from forebay.app.quota_server import QuotaServer
from forebay.app.quota_state import QuotaState
from forebay.core.keys import KeyEntry
from forebay.core.limits import Limit, WhenAway
from forebay.core.routes import Route
from forebay.gateway.policy.lending import Standing
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_key, make_route

PATIENCE_S = 3.0  #: for a worker that stands still to return what others need
ASK_MAX_S = 15.0  #: for an authority that stands still, before it counts as away
HEADERS = {"authorization": f"Bearer {TEST_KEY}"}


class Authority:
    """A real one, in a thread of its own."""

    def __init__(self, folder: Path, limits: tuple[Limit, ...]) -> None:
        self.folder = folder
        self.limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    async def _start(self) -> None:
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        self.server = QuotaServer(
            self.folder / "run" / "quota.sock", QuotaState(self.folder / "quota.state"), SystemClock()
        )
        self.server._authority.recall_max_s = PATIENCE_S
        self.server.set_limits(self.limits)
        await self.server.start()

    def left(self) -> dict[str, int]:
        async def read() -> dict[str, int]:
            return {limit.id: units for limit, units in self.server.list_left()}

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(60)

    def wait_settled(self, limit_id: str) -> int:
        """What is left of a limit once no worker holds any of it, and nothing moves any more.

        What lies idle at a worker comes back after a second; what it owes it tells ten times a second.
        """

        async def read() -> Standing:
            (found,) = self.server.list_standings([limit_id])
            return found

        last, since, deadline = None, time.monotonic(), time.monotonic() + 60
        while last is None or last[1] or time.monotonic() < since + 0.5:
            assert time.monotonic() < deadline, f"of {limit_id} {last} are left and lent"
            standing = asyncio.run_coroutine_threadsafe(read(), self._loop).result(60)
            if (standing.left, standing.lent) != last:
                last, since = (standing.left, standing.lent), time.monotonic()
            time.sleep(0.02)
        return last[0]

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            self.server.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@contextmanager
def workers(
    folder: Path,
    count: int,
    url: str,
    limits: tuple[Limit, ...],
    *,
    keys: Mapping[str, Sequence[Limit]] | None = None,
    routes: Sequence[Route] | None = None,
    when_away: WhenAway = WhenAway.SHARE,
    constants: Mapping[str, float] | None = None,
) -> Iterator[list[GatewayProcess]]:
    """So many workers on one socket.

    Args:
        constants: as of `GatewayProcess`.
        keys: secrets, and the limits that each meets; by default the key of all tests meets all.
        routes: by default the model `m`, answered at `url`.
    """
    entries = [
        limit_key(number, secret, met)
        for number, (secret, met) in enumerate((keys or {TEST_KEY: limits}).items(), 1)
    ]
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.set_inheritable(True)
        started = []
        for index in range(count):
            worker = GatewayProcess(
                routes or [make_route("m", url)],
                folder=folder,
                keys=entries,
                index=index,
                listener=listener,
                constants={"forebay.gateway.quota_client.ASK_MAX_S": ASK_MAX_S} | dict(constants or {}),
            )
            worker.snapshot = msgspec.structs.replace(
                worker.snapshot, quotas=limits, quota_workers=count, quota_when_away=when_away
            )
            started.append(stack.enter_context(worker))
        yield started


def limit_key(number: int, secret: str, met: Sequence[Limit]) -> KeyEntry:
    return msgspec.structs.replace(make_key(secret, id=f"k{number}"), limits=tuple(one.id for one in met))


def ask(url: str, path: str = "chat/completions", *, key: str = TEST_KEY, **body: Any) -> httpx.Response:
    """One request over a connection of its own."""
    fields = {"chat/completions": {"messages": []}, "completions": {"prompt": "Hi"}}
    asked = {"model": "m"} | fields.get(path, {"input": "Hi"}) | body
    return httpx.post(
        f"{url}/{path}", json=asked, headers={"authorization": f"Bearer {key}"}, timeout=60, verify=False
    )


def ask_many(url: str, count: int, path: str = "chat/completions", **body: Any) -> list[httpx.Response]:
    with ThreadPoolExecutor(min(count, 20)) as pool:
        return list(pool.map(lambda _: ask(url, path, **body), range(count)))
