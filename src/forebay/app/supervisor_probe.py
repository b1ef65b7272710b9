"""How the supervisor learns that a child is ready: each probe is one cheap question with a deadline.

A probe answers yes or no; it never raises for a child that isn't up yet, and never restarts anything.
"""

from typing import Protocol

from forebay.net.probe import Healthy, probe


class Probe(Protocol):
    async def check(self, pid: int) -> bool:
        """Whether the child with that process id is ready."""
        ...


class AliveProbe:
    """Ready as soon as it runs."""

    async def check(self, pid: int) -> bool:
        return True


class HttpProbe:
    """Ready when `GET url` is answered with 200."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def check(self, pid: int) -> bool:
        return isinstance(await probe(self._url), Healthy)
