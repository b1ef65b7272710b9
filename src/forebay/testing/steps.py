"""The steps of a script: what a scripted upstream does to one request, byte by byte.

A script is any iterable of steps, so a list (served as often as asked), or a generator (lazy, even endless).
When a script is used up and has not closed the connection, the upstream waits for the next request on it.

    [Send(b"HTTP/1.1 200 OK\\r\\ncontent-length: 5\\r\\n\\r\\nhe"), Sleep(0.2), Send(b"llo")]

This module holds no behaviour but the gate's: `connection` carries the steps out.
"""

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self


class Gate:
    """A door that a test opens once; may be opened from any thread.

    gate = Gate()
    upstream.enqueue([Send(first_half), Wait(gate), Send(second_half)])
    ...
    gate.open()

    As a context manager it opens at the end, so that a test that fails leaves nobody waiting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while `is_open` and the list of waiters change together
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.is_open = False

    def open(self) -> None:
        """Let all pass, now and later.  Opening an open gate does nothing."""
        with self._lock:
            self.is_open = True
            waiters, self._waiters = self._waiters, []
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()

    async def wait(self) -> None:
        """Return once the gate is open."""
        event = asyncio.Event()
        with self._lock:
            if self.is_open:
                return
            self._waiters.append((asyncio.get_running_loop(), event))
        await event.wait()


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes at once.  Ends when the loop has turned and the transport has room for more."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing for a time; `Sleep(0)` lets the event loop turn once."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until the test opens the gate."""

    gate: Gate


@dataclass(frozen=True, slots=True)
class Close:
    """Send what is still buffered, then a FIN (over TLS a close_notify before it).  Ends the script."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Let what was sent reach the peer's kernel, then send a RST (SO_LINGER 0).  Ends the script."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Keep the connection open and say nothing more until the peer leaves.  Ends the script."""


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Read no more from the peer, so that its writes fill up.  Its leaving is not seen meanwhile."""


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read from the peer again."""


@dataclass(frozen=True, slots=True)
class AwaitBody:
    """Go on when the whole request has arrived; for scripts that start at the request's head."""


Step = Send | Sleep | Wait | Close | Reset | Stall | PauseReading | ResumeReading | AwaitBody
Script = Iterable[Step]
