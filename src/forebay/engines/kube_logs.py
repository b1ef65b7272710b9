"""Keeps what replicas on Kubernetes say until their end: a cluster drops the log of a pod with the pod.

Follows a log from the moment its replica is asked to end.  Each has a file of bounded size, and old ones go.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

KEPT_BYTES: Final = 1 << 20  #: of each log, its end
KEPT_FILES: Final = 200
FOLLOWED_MAX: Final = 64  #: at once; beyond it a replica's log ends with its pod

logger = logging.getLogger(__name__)


class Source(Protocol):
    def follow_log(self, pod: str) -> Iterator[bytes]:
        """What a pod says, until it ends."""


class LogKeeper:
    """
    Args:
        folder: made when it is needed.
    """

    def __init__(self, source: Source, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def follow(self, replica_id: str, pod: str) -> None:
        """Keeps its log from now on; once for each replica at a time."""
        with self._lock:
            if replica_id in self._threads or len(self._threads) >= FOLLOWED_MAX:
                return
            thread = threading.Thread(
                target=self._follow, args=(replica_id, pod), name=f"log {replica_id}", daemon=True
            )
            self._threads[replica_id] = thread
            thread.start()

    @property
    def followed(self) -> frozenset[str]:
        """The replicas whose logs have not ended yet."""
        with self._lock:
            return frozenset(self._threads)

    def read(self, replica_id: str, lines: int) -> Sequence[str]:
        """The last lines of a replica that is gone; empty where none were kept."""
        try:
            text = self._path(replica_id).read_text(errors="replace")
        except OSError:
            return ()
        return text.splitlines()[-lines:]

    def close(self, timeout_s: float = 1.0) -> None:
        """Waits a moment for logs that are nearly at their end."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(timeout_s)

    def _follow(self, replica_id: str, pod: str) -> None:
        kept = bytearray()
        try:
            for part in self._source.follow_log(pod):
                kept += part
                del kept[: max(0, len(kept) - KEPT_BYTES)]
        except Exception as error:  # noqa: BLE001  the edge of a thread; what was said so far is kept
            logger.warning("the log of %s can't be followed to its end: %s", replica_id, error)
        finally:
            with suppress(OSError):
                self._keep(replica_id, bytes(kept))
            with self._lock:
                del self._threads[replica_id]

    def _keep(self, replica_id: str, data: bytes) -> None:
        if not data:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(replica_id)
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_bytes(data)
        os.replace(new, path)
        files = sorted(self._folder.glob("*.log"), key=lambda each: each.stat().st_mtime)
        for old in files[:-KEPT_FILES]:
            old.unlink(missing_ok=True)

    def _path(self, replica_id: str) -> Path:
        return self._folder / f"{replica_id}.log"
