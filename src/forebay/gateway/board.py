"""What a worker tells the board of its loads, and what it makes of the news there.

It moves numbers between `loads` and the line.  Without a board each worker goes by its own requests, and by
its share of every capacity; no request ever waits for it.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from forebay.core.engine_load import EngineState
from forebay.gateway.board_client import BoardClient
from forebay.gateway.claims import Claims
from forebay.gateway.crowd import Crowd
from forebay.gateway.loads import Loads
from forebay.gateway.metrics import Cells
from forebay.gateway.policy.account import Word
from forebay.gateway.policy.ejections import take_outs
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.policy.news import WORD_MAX_S, News, PlaceCount, SaidUse, SaidWord, is_time

TELL_EVERY = 2  #: sweeps between two times that it tells: 0.2 s
HURRY_S, HURRIES_S = 0.005, 0.03  #: what can't wait is told after the first, and not again within the second


class Board:
    """See the module.

    Args:
        path: of the board's socket.
        worker: this worker's name, unique over all processes there ever were.
        crowd: where requests wait for places.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, path: Path, worker: str, loads: Loads, crowd: Crowd
    ) -> None:
        self._loop = loop
        self._now = loop.time
        self._loads = loads
        self._claims = Claims(loads, crowd)
        crowd.on_want = self._hurry
        self._hurrying: asyncio.TimerHandle | None = None
        self._hurried_at = 0.0
        self._client = BoardClient(loop, path, worker, self)
        self._told: dict[int, tuple[int, int]] = {}
        self._told_outs: dict[int, float] = {}
        self._rounds = 0
        self._is_heard = False

    def begin(self) -> None:
        """To be called before requests come, so that it soon knows who else there is."""
        if self._loads.is_of_interest:
            self._client.keep_connected()

    def sweep(self, cells: Cells) -> None:
        """To be called every tenth of a second: keeps the line, tells what is new, forgets what is old."""
        self._rounds += 1
        if not self._loads.is_of_interest and not self._client.is_connected:
            return  # nothing is chosen by loads
        self._client.keep_connected()
        if self._rounds % TELL_EVERY == 0:
            if self._client.is_connected:  # else it stays news
                self._client.tell(self._take_news())
            self._loads.sweep(self._now())
            self._loads.relax(self._now())
            cells.tell_board(self._is_heard, self._count_engines())

    def close(self) -> None:
        self._client.close()
        if self._hurrying is not None:
            self._hurrying.cancel()

    # --- telling --------------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        """There is something that nobody should wait for until it is told."""
        if self._hurrying is None and self._claims.are_of_use and self._client.is_connected:
            at = max(self._now() + HURRY_S, self._hurried_at + HURRIES_S)
            self._hurrying = self._loop.call_at(at, self._tell_now)

    def _tell_now(self) -> None:
        self._hurrying, self._hurried_at = None, self._now()
        self._client.tell(self._take_news())

    def _take_news(self) -> News:
        return News(
            counts=tuple(self._take_counts()),
            words=tuple(self._take_words()),
            uses=tuple(self._take_uses()),
            claims=tuple(self._claims.take(self._now())),
            outs=tuple(take_outs(self._loads.by_id, self._told_outs, self._now())),
        )

    def _take_counts(self) -> Iterator[PlaceCount]:
        told, by_id = self._told, self._loads.by_id
        for place, load in by_id.items():
            own = load.requests - load.others_requests, load.tokens - load.others_tokens
            if told.get(place, (0, 0)) != own:
                told[place] = own
                yield PlaceCount(place, *own)
        if len(told) > len(by_id):
            for place in [place for place in told if place not in by_id]:
                del told[place]
                yield PlaceCount(place, 0, 0)

    def _take_words(self) -> Iterator[SaidWord]:
        for word in self._list_words():
            if word.is_news:
                word.is_news = False
                yield SaidWord(word.id, word.said_at, word.retry_at)

    def _list_words(self) -> list[Word]:
        words = [load.word for load in self._loads.by_id.values()]
        words += [account.word for account in self._loads.accounts.values()]
        return words

    def _take_uses(self) -> Iterator[SaidUse]:
        for account in self._loads.accounts.values():
            if account.is_news and account.used is not None:
                account.is_news = False
                yield SaidUse(account.id, account.said_at, account.reset_at, account.used)

    # --- hearing --------------------------------------------------------------------------------------------

    def begin_line(self) -> None:
        """The board may be a new one, which knows nothing: all that holds is news for it."""
        now = self._now()
        self._told.clear()
        self._told_outs.clear()
        for word in self._list_words():
            word.is_news |= now < word.retry_at
        for account in self._loads.accounts.values():
            account.is_news |= now < account.reset_at
        self._claims.forget()

    def lose_line(self) -> None:
        self._is_heard = False
        self._loads.forget_others(self._now())

    def hear(self, news: News) -> None:
        hear_news(self._loads, news, self._now())
        if news.counts:
            self._loads.relax(self._now())
        if not self._is_heard:
            self._is_heard = True
            self._hurry()
        if news.allotments:
            self._claims.hear(news.allotments, self._now())
            self._client.tell(self._take_news())  # so that what it gave up is another's

    # --- showing --------------------------------------------------------------------------------------------

    def _count_engines(self) -> dict[EngineState, int]:
        """Places by what their engines say; those that say nothing, or long ago, are unknown."""
        counts = dict.fromkeys(EngineState, 0)
        for replica in self._loads.by_id.values():
            counts[_find_state(replica)] += 1
        return counts


def _find_state(replica: ReplicaLoad) -> EngineState:
    return EngineState.UNKNOWN if replica.engine is None else replica.engine.state


def hear_news(loads: Loads, news: News, now: float) -> None:
    """What the board says counts from now on."""
    for count in news.counts:
        loads.set_others(count.place, count.requests, count.tokens, now)
    for word in news.words:
        _hear_word(loads, word, now)
    for use in news.uses:
        account = loads.accounts.get(use.account)
        if account is not None and is_time(use.said_at) and is_time(use.reset_at) and is_time(use.used):
            account.take_used(use.used, min(use.said_at, now), use.reset_at)
    for engine in news.engines:
        if is_time(engine.at):
            loads.hear_engine(engine.load, min(engine.at, now), now)
    loads.see_workers(max(1, news.workers), news.expected)
    if news.engines:
        loads.sweep(now)


def _hear_word(loads: Loads, said: SaidWord, now: float) -> None:
    if not is_time(said.said_at) or not is_time(said.retry_at):
        return
    said_at, retry_at = min(said.said_at, now), min(said.retry_at, now + WORD_MAX_S)
    replica = loads.by_id.get(said.whose)
    account = loads.accounts.get(said.whose)
    if replica is not None and replica.word.take(said_at, retry_at):
        replica.hear(now)
    elif account is not None and account.word.take(said_at, retry_at):
        account.settle(now)
