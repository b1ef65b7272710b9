"""The board: what the workers of this machine, and whoever asks engines, let all workers know of loads.

It carries news and decides nothing.  What it does not have is unknown to the workers, who then go by what
they see themselves; no request ever waits for it.
"""

from collections.abc import Iterable
from pathlib import Path

from forebay.core.engine_load import EngineLoad

__all__ = ["BoardServer"]


class BoardServer:
    """See the module.

    Args:
        path: of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engines: dict[str, EngineLoad] = {}

    def publish(self, loads: Iterable[EngineLoad]) -> None:
        """All workers are told these, each in place of what was published of its target before.

        To be called again and again, at least every half `ENGINE_STALE_S`, for what is older than that is
        unknown to the workers.
        """
        self._engines.update((load.target_id, load) for load in loads)
