"""The page that Prometheus reads, at a price that its readers can't raise: one is rendered at a time.

Rendering holds Python's one lock again and again, so requests wait for it even though it has a thread.  It
gets a tenth of the time at most: whoever asks in between waits, and all of them get the same page, as it is
after they asked.
"""

import asyncio
import os
import time
from pathlib import Path

from forebay.gateway.metrics import render_metrics

PAUSE_FACTOR = 9  #: so many times as long as a page took to render, no other is begun
PAUSE_MAX_S = 2.0
BATCH_PAGE = "batch.prom"  #: what the process of batches tells, as text
BATCH_PAGE_S = 30.0  #: so old it may be
BATCH_PAGE_MAX_BYTES = 64 * 1024


def _render(folder: Path) -> bytes:
    """The workers' page, and behind it what the process of batches told last."""
    return render_metrics(folder) + _read_batch_page(folder / BATCH_PAGE)


def _read_batch_page(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > BATCH_PAGE_S:
                return b""
            return file.read(BATCH_PAGE_MAX_BYTES)
    except OSError:
        return b""  # batches have never been wanted


class MetricsPage:
    """See the module.

    Args:
        folder: where all workers keep their counters.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._rendering = asyncio.Lock()  # one at a time
        self._next: asyncio.Task[bytes] | None = None  # not begun yet, so still to be joined
        self._free_at = 0.0

    async def read(self) -> bytes:
        """The page as of now or later.  Raises OSError where the folder can't be read."""
        following = self._next
        if following is None:
            following = self._next = self._loop.create_task(self._render())
        return await asyncio.shield(following)

    async def _render(self) -> bytes:
        async with self._rendering:
            await asyncio.sleep(self._free_at - self._loop.time())
            self._next = None
            begun = self._loop.time()
            try:
                return await self._loop.run_in_executor(None, _render, self._folder)
            finally:
                ended = self._loop.time()
                self._free_at = ended + min(PAUSE_FACTOR * (ended - begun), PAUSE_MAX_S)
