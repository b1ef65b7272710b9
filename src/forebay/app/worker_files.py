"""What a worker reads from disk while it runs: the snapshot, and the files that its targets' secrets are in.

It tells by a look at size and times whether one of them has changed.  It decides nothing of what follows.
"""

import os
from pathlib import Path

from forebay.core.routes import Snapshot, decode_snapshot

Look = tuple[int, int, int]


def look_at(path: Path | str) -> Look | None:
    """What tells two contents of a file apart without reading it; None when it can't be seen."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class SnapshotFile:
    """The snapshot as the control plane last wrote it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Look | None = None

    def read(self) -> Snapshot:
        """Raises OSError, or msgspec.MsgspecError for a file that is no snapshot."""
        seen = look_at(self._path)
        data = self._path.read_bytes()
        self._seen = seen
        return decode_snapshot(data)

    def has_changed(self) -> bool:
        look = look_at(self._path)
        return look is not None and look != self._seen

    def forget(self) -> None:
        """What was read could not be used, but may be later: it counts as changed."""
        self._seen = None


class SecretFiles:
    """The files that a snapshot's targets name: secrets, and authorities to trust."""

    def __init__(self) -> None:
        self._seen: dict[str, Look | None] = {}

    def follow(self, snapshot: Snapshot) -> None:
        """From now on tells of changes to the files of this snapshot; to be called before they are read."""
        names = set()
        for route in snapshot.table.routes:
            for target in route.targets:
                for reference in (target.api_key, target.proxy_credentials):
                    kind, _, name = (reference or "").partition(":")
                    names |= {name} if kind == "file" else set()
                names |= set(filter(None, (target.tls_ca, target.tls_cert, target.tls_key)))
        self._seen = {name: look_at(name) for name in names}

    def have_changed(self) -> bool:
        return any(look_at(name) != seen for name, seen in self._seen.items())
