"""An engine under load as engines are: it serves so many requests at full speed, more of them slower, and far
more of them worse than that.

usage: python bench/herd_engine.py PORT PLACES SERVICE_S

Up to `PLACES` requests at once, each takes `SERVICE_S`.  Beyond that they share the speed of so many.  Beyond
twice as many the KV cache no longer holds them: requests are put out and computed again, and the speed of all
together falls with every further one.  A caller that leaves is forgotten at once, as by vLLM.
"""

import asyncio
import sys
from heapq import heappop, heappush

import uvloop

from workload import build_answer

_BODY = build_answer()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)
HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Engine:
    """All requests in progress, in the time of their own work."""

    def __init__(self, places: int, service_s: float) -> None:
        self.places, self.service_s = places, service_s
        self.jobs: list[tuple[float, int, Connection]] = []
        self.count = self.number = 0
        self.done_s = 0.0  # work that each of the present requests has had since the engine stands
        self.at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    def compute_speed(self) -> float:
        """Of one request: 1 is full speed."""
        over = max(0, self.count - 2 * self.places) / self.places
        return min(1.0, self.places / max(1, self.count)) / (1 + over)

    def move(self) -> None:
        now = asyncio.get_running_loop().time()
        self.done_s += (now - self.at) * self.compute_speed()
        self.at = now

    def add(self, connection: "Connection") -> None:
        self.move()
        self.count += 1
        self.number += 1
        connection.job = self.number
        heappush(self.jobs, (self.done_s + self.service_s, self.number, connection))
        self.plan()

    def leave(self, connection: "Connection") -> None:
        if connection.job:
            self.move()
            connection.job = 0
            self.count -= 1
            self.plan()

    def plan(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        while self.jobs and self.jobs[0][2].job != self.jobs[0][1]:
            heappop(self.jobs)
        if self.jobs:
            left_s = max(0.0, self.jobs[0][0] - self.done_s) / self.compute_speed()
            self.timer = asyncio.get_running_loop().call_later(left_s, self.finish)

    def finish(self) -> None:
        self.move()
        while self.jobs and self.jobs[0][0] <= self.done_s + 1e-6:
            _, number, connection = heappop(self.jobs)
            if connection.job == number:
                connection.job = 0
                self.count -= 1
                connection.transport.write(ANSWER)
        self.plan()


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.job = 0
        self.data = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().find(b"content-length:")
        size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < size:
            return
        self.data = body[size:]
        if head.startswith(b"POST"):
            self.engine.add(self)
        else:
            self.transport.write(HEALTHY)

    def connection_lost(self, error: Exception | None) -> None:
        self.engine.leave(self)


async def serve(port: int, places: int, service_s: float) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(places, service_s)
    engine.at = loop.time()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
