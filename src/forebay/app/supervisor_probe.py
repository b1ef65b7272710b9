"""How the supervisor learns that a child is ready: each probe is one cheap question with a deadline.

A probe answers yes or no; it never raises for a child that isn't up yet, and never restarts anything.
"""

import asyncio
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

ANSWER_MAX_BYTES = 64 * 1024
PROBE_TIMEOUT_S = 2.0


class Probe(Protocol):
    async def check(self, pid: int) -> bool:
        """Whether the child with that process id is ready."""
        ...


class AliveProbe:
    """Ready as soon as it runs."""

    async def check(self, pid: int) -> bool:
        return True


class FileProbe:
    """Ready when the child has written its own process id into a file.  One left by a predecessor says no."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def check(self, pid: int) -> bool:
        try:
            return self._path.read_bytes().strip() == str(pid).encode()
        except OSError:
            return False


class HttpProbe:
    """Ready when `GET url` is answered with 200."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._request = (
            f"GET {parts.path or '/'} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n".encode()
        )

    async def check(self, pid: int) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await self._fetch_status() == 200
        except (OSError, TimeoutError, ValueError):
            return False

    async def _fetch_status(self) -> int:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=ANSWER_MAX_BYTES)
        try:
            writer.write(self._request)
            line = await reader.readline()
            return int(line.split(b" ", 2)[1]) if line.startswith(b"HTTP/1.") else 0
        except IndexError:
            return 0
        finally:
            writer.close()
