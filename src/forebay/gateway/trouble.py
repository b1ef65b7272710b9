"""Says in the log what is wrong with targets, once in a while: callers are not told where they are."""

import asyncio
import logging

from forebay.core.errors import TargetError

EVERY_S = 10.0  #: for each target

logger = logging.getLogger("forebay.gateway")


class TroubleLog:
    """What was told of each target, and when."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._quiet_until: dict[str, float] = {}  # as many as the configuration names

    def tell(self, target: str, error: TargetError) -> None:
        now = self._loop.time()
        if now >= self._quiet_until.get(target, 0.0):
            self._quiet_until[target] = now + EVERY_S
            logger.warning("target %s: %s: %s", target, error.code, error.message)
