"""Callers that come at a rate whatever becomes of them, and leave when it is too late for them.

An open loop: a crowd does not wait for answers before more of it comes.  Nothing here knows who is measured.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Herd:
    """What became of a crowd.  Times are seconds since it began to come."""

    good: list[float] = field(default_factory=list)  #: when answers came that came in time
    good_s: list[float] = field(default_factory=list)  #: how long they took
    refused_s: list[float] = field(default_factory=list)  #: how long refusals took
    came: int = 0
    late: int = 0  #: callers that left
    without_retry: int = 0  #: refusals that did not say when to come again

    def count_goodput(self, since_s: float, until_s: float) -> float:
        """Answers in time, in a second."""
        return sum(since_s <= at < until_s for at in self.good) / (until_s - since_s)


class Caller(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, crowd: "Crowd") -> None:
        self.crowd = crowd
        self.begun = 0.0
        self.data = b""
        self.timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.write(self.crowd.request)

    def begin(self) -> None:
        loop = self.crowd.loop
        self.begun = loop.time()
        self.timer = loop.call_later(self.crowd.deadline_s, self.leave)

    def leave(self) -> None:
        self.timer = None
        self.crowd.herd.late += 1
        if getattr(self, "transport", None) is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        if not end:
            return
        low = head.lower()
        size = int(low[low.find(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
        if len(body) < size or self.timer is None:
            return
        self.timer.cancel()
        self.timer, self.data = None, b""
        self.crowd.end(self, int(head[9:12]), b"retry-after:" in low, b"connection: close" in low)


class Crowd:
    """One run.

    Args:
        port: where to; each connection sends `request`, and callers leave after `deadline_s`.
    """

    def __init__(self, port: int, request: bytes, deadline_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.port, self.request, self.deadline_s = port, request, deadline_s
        self.herd = Herd()
        self.idle: deque[Caller] = deque()
        self.began = self.loop.time()
        self.tasks: set[asyncio.Task[None]] = set()

    def end(self, caller: Caller, status: int, has_retry: bool, ends: bool) -> None:
        now = self.loop.time()
        if status == 200:
            self.herd.good.append(now - self.began)
            self.herd.good_s.append(now - caller.begun)
        else:
            self.herd.refused_s.append(now - caller.begun)
            self.herd.without_retry += not has_retry
        if ends:
            caller.transport.close()
        else:
            self.idle.append(caller)

    def come(self) -> None:
        self.herd.came += 1
        while self.idle:
            caller = self.idle.pop()
            if not caller.transport.is_closing():
                caller.begin()
                caller.transport.write(self.request)
                return
        caller = Caller(self)
        caller.begin()
        task = self.loop.create_task(self._connect(caller))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _connect(self, caller: Caller) -> None:
        try:
            await self.loop.create_connection(lambda: caller, "127.0.0.1", self.port)
        except OSError:
            return  # it is late in the end
        if caller.timer is None:
            caller.transport.abort()

    async def run(self, rate: float, ramp_s: float, seconds: float) -> Herd:
        """From none to `rate` callers a second within `ramp_s`, and so on until `seconds` are over."""
        for at in plan_arrivals(rate, ramp_s, seconds):
            wait_s = self.began + at - self.loop.time()
            if wait_s > 0.001:
                await asyncio.sleep(wait_s)
            self.come()
        await asyncio.sleep(self.deadline_s + 0.2)
        for caller in self.idle:
            caller.transport.abort()
        return self.herd


def plan_arrivals(rate: float, ramp_s: float, seconds: float) -> Iterator[float]:
    """When each comes: evenly, and ever more of them in the ramp."""
    count, at = 0, 0.0
    in_ramp = rate * ramp_s / 2
    while at < seconds:
        yield at
        count += 1
        at = (2 * count * ramp_s / rate) ** 0.5 if count < in_ramp else ramp_s + (count - in_ramp) / rate
