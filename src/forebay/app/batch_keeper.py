"""Keeps files and batches no longer than `batch` says: removes what has expired, and contents of no file.

Works in portions, and goes on after any failure.
"""

import asyncio
import logging
from typing import Final

from forebay.batch.disk import Disk
from forebay.batch.repo_batches import BatchRepo
from forebay.batch.repo_files import FileRepo
from forebay.batch.settings import BatchSettings
from forebay.core.errors import ForebayError

INTERVAL_S: Final = 60.0
PORTION: Final = 100  #: files that go in one transaction

logger = logging.getLogger("forebay.batch")


class BatchKeeper:
    """See the module."""

    def __init__(
        self,
        files: FileRepo,
        batches: BatchRepo,
        disk: Disk,
        settings: BatchSettings,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._files = files
        self._batches = batches
        self._keep_s = settings.keep_batches_s
        self._disk = disk
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.keep_once)
            except (ForebayError, OSError) as error:
                logger.error("what has expired can't be removed: %s", error)
            await asyncio.sleep(self._interval_s)

    def keep_once(self) -> None:
        """Raises StoreError, OSError."""
        while ids := self._files.remove_expired(self._disk.store, PORTION):
            self._disk.remove(ids)
        while self._batches.remove_old(self._disk.store, self._keep_s, PORTION):
            pass
        self._disk.remove_orphans(self._files.list_known(self._disk.store))
