"""What a worker says to the board and hears of it, over its line (`control_line`).

A board that is silent counts as away: nobody waits for it, and what it said before is dropped.
"""

import asyncio
from pathlib import Path
from typing import Protocol

from forebay.gateway.board_wire import Hello, decode_from_board, encode_frame
from forebay.gateway.control_line import ControlLine, LineFacts
from forebay.gateway.policy.news import News, cut

RETRY_S = 0.5  #: between two tries to connect
SILENCE_MAX_S = 2.0  #: after which a board that says nothing is away
UNSENT_MAX_BYTES = 1024 * 1024  #: that a board does not read; then the line is given up


class Listener(Protocol):
    """Whoever tells and hears."""

    def begin_line(self) -> None:
        """The board knows nothing of this worker yet."""

    def hear(self, news: News) -> None:
        """What the board says."""

    def lose_line(self) -> None:
        """It says nothing any more."""


class BoardClient:
    """See the module.

    Args:
        path: the board's socket.
        worker: this worker's name, unique over all processes there ever were.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, worker: str, listener: Listener) -> None:
        self._now = loop.time
        self._worker = worker
        self._listener = listener
        facts = LineFacts(path=path, name="the board of loads", decode=decode_from_board, retry_s=RETRY_S)
        self._line = ControlLine(loop, facts, self)
        self.hear = listener.hear
        self.end = listener.lose_line

    @property
    def is_connected(self) -> bool:
        return self._line.is_open

    def keep_connected(self) -> None:
        """To be called all the time: connects where there is no line, and ends one that is silent."""
        now, line = self._now(), self._line
        is_silent = line.is_open and now > line.heard_at + SILENCE_MAX_S
        if is_silent or line.unsent_bytes > UNSENT_MAX_BYTES:
            line.drop()
        line.keep_open(now)

    def tell(self, news: News) -> None:
        if self._line.is_open:
            for part in cut(news):
                self._line.send(encode_frame(part))

    def close(self) -> None:
        self._line.close()

    def begin(self) -> None:
        self._line.send(encode_frame(Hello(self._worker)))
        self._listener.begin_line()
