"""Rolling restarts of the workers that somebody asked for: one at a time, one more for who asks meanwhile.

It says when each had begun and what became of it, so that everybody hears of one that began after the asking.
It never rolls by itself.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from forebay.app.supervisor_state import ROLL_DONE, ROLL_RUNS, ChildStatus
from forebay.app.up_children import is_worker

logger = logging.getLogger(__name__)


class Rolling(Protocol):
    """Whoever has the workers: a supervisor."""

    @property
    def statuses(self) -> tuple[ChildStatus, ...]: ...

    @property
    def stopping(self) -> bool: ...

    async def roll(self, names: Sequence[str]) -> str: ...


class Rolls:
    """See the module.

    Args:
        get_time: seconds of the wall clock.
        on_change: called when one begins or ends; must not raise or block.
        say: tells whoever sits in front.

    Attributes:
        count: that have ended.
        now: what becomes of the present or last one: `running`, `done`, or why it was given up.
        began_s: when the last one that has ended had begun; 0 if none has.
        ended: what became of that one.
    """

    def __init__(
        self,
        supervisor: Rolling,
        get_time: Callable[[], float],
        on_change: Callable[[], None],
        say: Callable[[str, str], None],
    ) -> None:
        self._supervisor = supervisor
        self._get_time = get_time
        self._on_change = on_change
        self._say = say
        self._asked = asyncio.Event()
        self.count, self.now, self.began_s, self.ended = 0, "", 0.0, ""

    def ask(self) -> None:
        """To be called for each who asks, and once all is being stopped."""
        self._asked.set()

    async def run(self) -> None:
        """Returns when all is being stopped and `ask` is called."""
        while True:
            await self._asked.wait()
            if self._supervisor.stopping:
                return
            await self._roll()

    async def _roll(self) -> None:
        self._asked.clear()  # who asks from now on gets another one
        names = [each.name for each in self._supervisor.statuses if is_worker(each.name)]
        logger.info("rolling restart of %d workers", len(names))
        began_s, self.now = self._get_time(), ROLL_RUNS
        self._on_change()
        failure = await self._supervisor.roll(names)
        self.count, self.began_s, self.ended = self.count + 1, began_s, failure or ROLL_DONE
        self.now = ROLL_RUNS if self._asked.is_set() and not self._supervisor.stopping else self.ended
        self._on_change()
        if failure:
            logger.error("the rolling restart was given up: %s", failure)
            self._say(f"The rolling restart was given up: {failure}", "red")
        elif not self._supervisor.stopping:
            self._say("The workers were started anew, one after the other.", "")
