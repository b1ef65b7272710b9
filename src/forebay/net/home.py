"""What a connection asks of the pool that it comes from and returns to."""

import asyncio
from typing import Any, Protocol

from forebay.net.turn import Turn


class Clock(Protocol):
    """The event loop's time in seconds, as exact as deadlines need it."""

    time: float


class Home(Protocol):
    """Where a connection comes from and returns to."""

    loop: asyncio.AbstractEventLoop  # asking asyncio for the running loop costs a system call
    turn: Turn

    @property
    def clock(self) -> Clock: ...
    def take_back(self, connection: Any) -> None: ...
    def forget(self, connection: Any) -> None: ...
