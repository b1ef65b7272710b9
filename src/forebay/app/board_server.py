"""The board: what the workers of this machine, whoever asks engines, and the boards of other machines
(`board_fleet`) let all workers know of loads.

It carries news and decides nothing.  What it does not have is unknown to the workers, who then go by what
they see themselves; no request ever waits for it.  A worker that is silent, says what nobody understands, or
does not read what it is told, is let go: it comes again by itself.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from forebay.app.worker_lines import WorkerLine, WorkerLines
from forebay.core.engine_load import ENGINE_STALE_S, EngineLoad
from forebay.gateway.board_wire import FromWorker, Hello, decode_from_worker, encode_frame
from forebay.gateway.policy.dealing import Dealing
from forebay.gateway.policy.ejections import Ejections
from forebay.gateway.policy.machines import Machine
from forebay.gateway.policy.merging import Merging
from forebay.gateway.policy.news import EngineNews, News, cut, shorten

__all__ = ["BoardServer"]

logger = logging.getLogger("forebay.control")

TELL_S = 0.1  #: between two looks at who is to be told what
DEAL_S = 0.002  #: after which what a worker wants is dealt, with what others want by then
BEAT_S = 0.5  #: between two words to a worker, though there is no news
SILENCE_MAX_S = 2.0  #: after which a worker's numbers are dropped
WORKERS_MAX = 1024
ENGINES_MAX = 100_000  #: targets of which something is kept

Line = WorkerLine[FromWorker]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """How the line to the boards of other machines stands, for people.

    Attributes:
        trouble: why there is none; empty where there is one.
        machines: the others that are known of.
        expected: workers on all machines, as far as is known; 0 where nobody knows of others.
        told, heard: messages to all others, and of others.
    """

    trouble: str
    expected: int
    machines: Sequence[Machine]
    told: int
    heard: int


class Fleet(Protocol):
    """The boards of other machines, as `board_fleet` knows them."""

    @property
    def state(self) -> FleetState: ...

    def start(self) -> None:
        """To be called in the loop, once."""

    def close(self) -> None:
        """Nothing is told or heard any more."""

    async def say_goodbye(self) -> None:
        """Nothing of this machine counts any more for the others."""

    def count_expected(self) -> int:
        """Workers on all machines, as far as is known; 0 where nobody knows of others."""

    def sweep(self) -> None:
        """To be called some times a second: what is silent is unknown."""


JoinFleet = Callable[[Merging, Dealing], Fleet]


class BoardServer:
    """See the module.

    Args:
        path: of the socket.
        join_fleet: makes the line to the boards of other machines; None for a machine alone.
    """

    def __init__(self, path: Path, join_fleet: JoinFleet | None = None) -> None:
        self._engines: dict[str, EngineNews] = {}
        self._fresh: dict[str, EngineNews] = {}  # published since the workers were told
        self._merging = Merging()
        self._dealing = Dealing()
        self._ejections = Ejections()
        self._fleet = None if join_fleet is None else join_fleet(self._merging, self._dealing)
        self._deal_timer: asyncio.TimerHandle | None = None
        self._lines = WorkerLines(path, "loads", decode_from_worker, self)
        self._told: dict[str, tuple[float, int, int]] = {}  # when a worker was told last, and of how many
        self._telling: asyncio.TimerHandle | None = None
        self._now = time.monotonic  # the clock of the workers' loops

    async def start(self) -> None:
        """Raises OSError."""
        await self._lines.start()
        if self._fleet is not None:
            self._fleet.start()
        self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell_all)

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        if self._deal_timer is not None:
            self._deal_timer.cancel()
        self._lines.close()
        if self._fleet is not None:
            self._fleet.close()

    async def say_goodbye(self) -> None:
        """To other machines, at an end that was wanted."""
        if self._fleet is not None:
            await self._fleet.say_goodbye()

    @property
    def fleet(self) -> FleetState | None:
        """Of other machines; None where this one is alone."""
        return None if self._fleet is None else self._fleet.state

    def count_requests(self, place: int) -> tuple[int, int]:
        """Of this machine's workers in progress at a place, and of the workers of others."""
        return self._merging.count_own(place)[0], self._merging.count_elsewhere(place)

    def count_ejecting(self, place: int) -> int:
        """This machine's workers that have put a place out of service for its failures."""
        return self._ejections.count(place, self._now())

    def count_at(self, instance: str) -> int:
        """Requests of another machine's workers in progress anywhere."""
        return self._merging.count_at(instance)

    def publish(self, loads: Iterable[EngineLoad], *, at_once: bool = False) -> None:
        """All workers are told these, each in place of what was published of its target before.

        To be called again and again, at least every half `ENGINE_STALE_S`, for what is older than that is
        unknown to the workers.

        Args:
            at_once: before this returns, for what must be known before a snapshot is.
        """
        now = self._now()
        for load in loads:
            self._engines[load.target_id] = self._fresh[load.target_id] = EngineNews(shorten(load), now)
        if len(self._engines) > ENGINES_MAX:
            self._engines = {id: news for id, news in self._engines.items() if news.at > now - ENGINE_STALE_S}
        if at_once:
            self._tell_workers()

    def read(self) -> News:
        """All that is known here, of all workers together."""
        outs = self._ejections.read(self._merging.own_size, self._now())
        return msgspec.structs.replace(self._merging.read(), engines=self._list_engines(), outs=outs)

    def _list_engines(self) -> tuple[EngineNews, ...]:
        old = self._now() - ENGINE_STALE_S
        return tuple(news for news in self._engines.values() if news.at > old)

    def list_workers(self) -> tuple[str, ...]:
        return tuple(self._lines.by_worker)

    # --- workers --------------------------------------------------------------------------------------------

    def hear(self, line: Line, message: FromWorker) -> None:
        """Raises ValueError where a worker says too much, or what can't be."""
        match message:
            case Hello():
                self._join(line, message.worker)
            case News():
                self._note(line, message)

    def _join(self, line: Line, worker: str) -> None:
        if line.worker and line.worker != worker:
            raise ValueError("a worker changes its name")
        if len(self._lines.by_worker) >= WORKERS_MAX:
            line.close()
            return
        self._lines.take(line, worker)
        self._dealing.leave(worker)
        self._ejections.leave(worker)
        self._merging.join(worker)
        self._tell(line, msgspec.structs.replace(self._take(worker), engines=self._list_engines()))

    def _note(self, line: Line, news: News) -> None:
        if self._lines.is_current(line):
            self._merging.note(line.worker, news, self._now())
            if news.outs:
                self._ejections.note(line.worker, news.outs, self._now())
            if news.claims:
                self._dealing.note(line.worker, news.claims)
                self._deal_soon()

    def leave(self, worker: str) -> None:
        self._told.pop(worker, None)
        self._merging.leave(worker)
        self._dealing.leave(worker)
        self._ejections.leave(worker)
        self._deal_soon()

    def _deal_soon(self) -> None:
        if self._deal_timer is None and self._telling is not None:
            self._deal_timer = asyncio.get_running_loop().call_later(DEAL_S, self._deal)

    def _deal(self) -> None:
        """Tells those at once to whom something was dealt."""
        self._deal_timer = None
        for name in self._dealing.deal(self._now()):
            line = self._lines.by_worker.get(name)
            if line is not None:
                self._tell(line, self._take(name))

    def _take(self, name: str) -> News:
        expected = 0 if self._fleet is None else self._fleet.count_expected()
        return msgspec.structs.replace(
            self._merging.take(name), allotments=self._dealing.take(name), expected=expected
        )

    def _tell_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._telling = loop.call_later(TELL_S, self._tell_all)
        self._tell_workers()

    def _tell_workers(self) -> None:
        now = self._now()
        engines, self._fresh = tuple(self._fresh.values()), {}
        if self._fleet is not None:
            self._fleet.sweep()
        self._dealing.deal(now)
        for name, line in tuple(self._lines.by_worker.items()):
            if now > line.heard_at + SILENCE_MAX_S or line.is_behind:
                logger.warning("a gateway worker is silent or does not read; its loads are unknown now")
                line.close()
                self._lines.forget(line)
                continue
            news = msgspec.structs.replace(self._take(name), engines=engines)
            told_at, *workers = self._told.get(name, (0.0, 0, 0))
            is_news = bool(news.counts or news.words or news.uses or engines)
            is_news |= [news.workers, news.expected] != workers
            if is_news or news.allotments or now >= told_at + BEAT_S:
                self._tell(line, news)

    def _tell(self, line: Line, news: News) -> None:
        self._told[line.worker] = self._now(), news.workers, news.expected
        for part in cut(news):
            line.send(encode_frame(part))
