"""What runs, as the launchers tell it: each is asked, one that is silent is not waited for again.

Owns what was listed last, why a launcher could not be asked, and how often replicas ended.  Decides nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from forebay.engines.deployment import ExitReason, Launcher, LauncherKind, ReplicaState, ReplicaStatus
from forebay.engines.model import LauncherError

LIST_S: Final = 10.0  #: that a look waits for a launcher to tell what runs

logger = logging.getLogger("forebay.deployer")


class Sightings:
    """See the module.

    Args:
        launchers: by their kind.

    Attributes:
        errors: of launchers that could not be asked, by kind.
        exits: how often replicas ended by themselves since this process began, by deployment and reason.
    """

    def __init__(self, launchers: Mapping[LauncherKind, Launcher]) -> None:
        self._launchers = launchers
        self._listed: dict[LauncherKind, tuple[ReplicaStatus, ...]] = {}
        self._asked: dict[LauncherKind, asyncio.Task[Sequence[ReplicaStatus]]] = {}  # at most one of each
        self._ends: dict[str, int] = {}  # of each replica, how often it ended by itself
        self.errors: dict[LauncherKind, str] = {}
        self.exits: Counter[tuple[str, ExitReason]] = Counter()

    async def list_replicas(self, kinds: frozenset[LauncherKind]) -> None:
        """Of each launcher; one that can't be asked is left out, and nothing is done with its replicas."""
        self._listed = {kind: listed for kind, listed in self._listed.items() if kind in kinds}
        await asyncio.gather(
            *(self._ask(kind, each) for kind, each in self._launchers.items() if kind in kinds)
        )
        self._count_exits()

    async def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    @property
    def seen(self) -> frozenset[LauncherKind]:
        """Launchers that have told what runs."""
        return frozenset(self._listed)

    @property
    def all(self) -> Sequence[ReplicaStatus]:
        return [status for listed in self._listed.values() for status in listed]

    def list_of(self, name: str) -> tuple[ReplicaStatus, ...]:
        """Of one deployment."""
        return tuple(each for each in self.all if each.deployment == name)

    def has(self, kind: LauncherKind, name: str) -> bool:
        """Whether a launcher runs something of a deployment; where it can't be asked, it may."""
        return kind not in self._listed or any(each.deployment == name for each in self._listed[kind])

    def find_kinds(self, replica_id: str) -> list[LauncherKind]:
        """Launchers that run a replica."""
        return [
            kind for kind, listed in self._listed.items() if any(each.id == replica_id for each in listed)
        ]

    def explain(self, kinds: frozenset[LauncherKind]) -> str:
        """Why it is not known what runs."""
        kind = min(kinds - self._listed.keys())
        if kind not in self._launchers:
            return f"there is no launcher {kind.value} here: see `launchers` in forebay.yaml"
        return f"{kind.value} can't be asked what runs: {self.errors.get(kind, 'it was not asked yet')}"

    def forget(self, name: str) -> None:
        """A deployment that is gone: names that come and go must not add up."""
        for key in [key for key in self.exits if key[0] == name]:
            del self.exits[key]

    async def _ask(self, kind: LauncherKind, launcher: Launcher) -> None:
        """One that was silent the last time is not waited for again: its answer is taken when it comes."""
        task = self._asked.get(kind)
        patience_s = LIST_S if task is None else 0.0
        if task is None:
            task = self._asked[kind] = asyncio.ensure_future(launcher.list())
        await asyncio.wait({task}, timeout=patience_s)
        if not task.done():
            self._note_error(kind, f"no answer within {LIST_S:g} s")
            return
        del self._asked[kind]
        try:
            self._listed[kind] = tuple(task.result())
        except LauncherError as error:
            self._note_error(kind, error.message)
        else:
            self.errors.pop(kind, None)

    def _count_exits(self) -> None:
        ends: dict[str, int] = {}
        for status in self.all:
            is_down = status.state in (ReplicaState.BACKOFF, ReplicaState.REFUSED)
            ends[status.id] = status.restarts + is_down
            # What ended before this process began was counted by the one before.
            new = ends[status.id] - self._ends.get(status.id, status.restarts)
            if new > 0:
                self.exits[status.deployment, status.reason] += new
                logger.warning("%s ended by itself (%s): %s", status.id, status.reason.value, status.message)
        self._ends = ends

    def _note_error(self, kind: LauncherKind, words: str) -> None:
        if self.errors.get(kind) != words:
            logger.warning("replicas of %s can't be listed: %s", kind.value, words)
        self.errors[kind] = words
        self._listed.pop(kind, None)
