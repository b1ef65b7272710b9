"""What keys may do, for batches: as the snapshot says that the workers have.

A key that is not in it opens nothing any more.  While the snapshot can't be read, what was read last holds.
"""

import logging
from pathlib import Path

import msgspec

from forebay.app.worker_files import SnapshotFile
from forebay.batch.lines import Explain
from forebay.core.clock import Clock
from forebay.core.keys import KeyEntry
from forebay.core.routes import Endpoint, Route, Snapshot
from forebay.gateway.policy.admit import explain_refusal

logger = logging.getLogger("forebay.batch")


class SnapshotRights:
    """See the module."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._file = SnapshotFile(path)
        self._clock = clock
        self._keys: dict[str, KeyEntry] = {}
        self._routes: dict[str, Route] = {}
        self._is_known = False

    def is_live(self, key: str) -> bool:
        """True as well while nothing is known of any key."""
        self._look()
        entry = self._keys.get(key)
        if entry is None:
            return not self._is_known
        return entry.expires_ns is None or self._clock.wall_ns() < entry.expires_ns

    def explain(self, key: str, endpoint: str) -> Explain:
        """Says of a model's name why the key can't call it at the endpoint (`/v1/…`)."""
        self._look()
        entry, what = self._keys.get(key), Endpoint(endpoint.removeprefix("/v1/"))
        routes = dict(self._routes)
        if entry is None:
            return lambda model: None  # the gateway says it
        allowed = [name for name, route in routes.items() if _may(entry, what, route)]

        def explain(model: str) -> tuple[str, str] | None:
            if model in allowed:
                return None
            error = explain_refusal(model, what, routes.get(model), entry, allowed)
            return error.code, error.message

        return explain

    def _look(self) -> None:
        if self._is_known and not self._file.has_changed():
            return
        try:
            self._take(self._file.read())
        except (OSError, msgspec.MsgspecError) as error:
            logger.error("the snapshot can't be read: %s", error)

    def _take(self, snapshot: Snapshot) -> None:
        self._keys = {entry.id: entry for entry in snapshot.keys}
        self._routes = {route.model: route for route in snapshot.table.routes}
        self._is_known = True


def _may(entry: KeyEntry, endpoint: Endpoint, route: Route) -> bool:
    if not entry.allows(route.model) or endpoint not in route.endpoints:
        return False
    if not entry.allows_endpoint(endpoint):
        return False
    targets = route.targets
    return not targets or any(entry.allows_target(each.tier, each.region) for each in targets)
