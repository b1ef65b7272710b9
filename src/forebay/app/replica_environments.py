"""The engine environments that replicas of this machine run from: how one is entered, and who is in it.

Each process that runs from one is written down, so that `forebay env gc` takes none of those for unused, also
those of a revision that no deployment asks for any more.  Builds and removes nothing.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from forebay.engines.environment import EnvironmentInvalid
from forebay.engines.environment_launch import compose_launch
from forebay.engines.environment_store import EnvironmentBusy, EnvironmentStore

NOTE_WAIT_S: Final = 5.0  #: for whoever holds an environment
#: Variables of this Python, which that of an environment must not go by.
FOREIGN_PYTHON: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})

logger = logging.getLogger("forebay.up")


class ReplicaEnvironments:
    """See the module.

    Args:
        root: one folder for each digest.
    """

    def __init__(self, root: Path) -> None:
        self._store = EnvironmentStore(root.parent)
        self._store.root = root  # a folder of any name, where a node has its own
        self._noted: dict[str, int] = {}  # the process of each replica that is written down

    def enter(self, digest: str) -> tuple[Path, Mapping[str, str]]:
        """The interpreter of an environment, and variables for what it runs.

        Raises EnvironmentInvalid, OSError: it is not there, or of no use.
        """
        python = self._store.locate_python(digest)
        if not python.exists():
            raise FileNotFoundError(
                f"the engine's environment {digest} is not there: {python} is missing. "
                "Build it with `forebay env build`; the replica is started as soon as it is there."
            )
        built = self._store.find(digest)
        return python, {} if built is None else compose_launch(self._store, built)

    async def note(self, running: Iterable[tuple[str, str, int]]) -> None:
        """Writes down all that run now: replica, digest and process of each."""
        now = {name: (digest, pid) for name, digest, pid in running}
        for name in self._noted.keys() - now.keys():
            del self._noted[name]
        for name, (digest, pid) in now.items():
            if self._noted.get(name) == pid:
                continue
            note = partial(self._store.acquire, digest, name, pid=pid, timeout_s=NOTE_WAIT_S)
            try:
                await asyncio.to_thread(note)
            except EnvironmentBusy:
                continue  # at the next look
            except (EnvironmentInvalid, OSError) as error:
                logger.warning("%s is not noted as a user of the environment %s: %s", name, digest, error)
            self._noted[name] = pid
