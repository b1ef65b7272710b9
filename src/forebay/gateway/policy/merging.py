"""Adds up what workers have in flight, and keeps for each what it has not been told yet.  Pure.

It holds numbers of places and never what they stand for.  Whatever order news come in, and whoever leaves,
what a worker has been told in the end is the sum of all the others.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from forebay.core.retry_after import MAX_S as RESET_MAX_S
from forebay.gateway.policy.news import WORD_MAX_S, News, PlaceCount, SaidUse, SaidWord, is_time

PLACES_MAX = 20_000  #: of one worker
SAID_MAX = 20_000  #: words of places and accounts, and again uses of accounts


Said = TypeVar("Said", SaidWord, SaidUse)


class BoardFull(ValueError):
    """Somebody says more than the board holds."""


class _Worker:
    def __init__(self) -> None:
        self.counts: dict[int, tuple[int, int]] = {}  # that it has
        self.told: dict[int, tuple[int, int]] = {}  # that the others have, by what it was told
        self.untold: set[int] = set()  # places of which the sum may be another
        self.untold_words: set[int] = set()
        self.untold_uses: set[int] = set()


class Merging:
    """See the module."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._sums: dict[int, tuple[int, int]] = {}
        self._words: dict[int, SaidWord] = {}
        self._uses: dict[int, SaidUse] = {}

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    def join(self, name: str) -> None:
        """A worker begins anew, with nothing, and is told everything."""
        self.leave(name)
        worker = self._workers[name] = _Worker()
        worker.untold.update(self._sums)
        worker.untold_words.update(self._words)
        worker.untold_uses.update(self._uses)

    def leave(self, name: str) -> None:
        """Nothing of it counts any more; of somebody who is not there nothing happens."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            for place in worker.counts:
                self._add(place, worker.counts[place], (0, 0))

    def note(self, name: str, news: News, now: float) -> None:
        """What a worker says.

        Raises:
            BoardFull: it says too much; nothing more is to be heard of it.
        """
        worker = self._workers[name]
        for count in news.counts:
            now_there = count.requests, count.tokens
            before = worker.counts.pop(count.place, (0, 0))
            if now_there != (0, 0):
                worker.counts[count.place] = now_there
            self._add(count.place, before, now_there)
        if len(worker.counts) > PLACES_MAX:
            raise BoardFull(f"a worker names more than {PLACES_MAX} places")
        self._note_words(name, news, now)
        self._note_uses(name, news, now)

    def _note_words(self, name: str, news: News, now: float) -> None:
        for word in news.words:
            known = self._words.get(word.whose)
            if not is_time(word.said_at) or not is_time(word.retry_at):
                continue
            said_at, retry_at = min(word.said_at, now), min(word.retry_at, now + WORD_MAX_S)
            if known is None or known.said_at < said_at:
                self._words[word.whose] = SaidWord(word.whose, said_at, retry_at)
                for other, worker in self._workers.items():
                    if other != name:
                        worker.untold_words.add(word.whose)
        if len(self._words) > SAID_MAX:
            self._words = _thin(self._words, lambda word: word.retry_at > now)

    def _note_uses(self, name: str, news: News, now: float) -> None:
        for use in news.uses:
            known = self._uses.get(use.account)
            if not is_time(use.said_at) or not is_time(use.reset_at) or not is_time(use.used):
                continue
            said_at, reset_at = min(use.said_at, now), min(use.reset_at, now + RESET_MAX_S)
            if known is None or known.said_at < said_at:
                self._uses[use.account] = SaidUse(use.account, said_at, reset_at, min(use.used, 1.0))
                for other, worker in self._workers.items():
                    if other != name:
                        worker.untold_uses.add(use.account)
        if len(self._uses) > SAID_MAX:
            self._uses = _thin(self._uses, lambda use: use.reset_at > now)

    def _add(self, place: int, before: tuple[int, int], after: tuple[int, int]) -> None:
        if before == after:
            return
        requests, tokens = self._sums.pop(place, (0, 0))
        total = requests - before[0] + after[0], tokens - before[1] + after[1]
        if total != (0, 0):
            self._sums[place] = total
        for worker in self._workers.values():
            worker.untold.add(place)

    def take(self, name: str) -> News:
        """What a worker is to be told now, and counts as told."""
        worker = self._workers[name]
        counts = []
        for place in worker.untold:
            requests, tokens = self._sums.get(place, (0, 0))
            own, own_tokens = worker.counts.get(place, (0, 0))
            others = requests - own, tokens - own_tokens
            if others != worker.told.get(place, (0, 0)):
                counts.append(PlaceCount(place, *others))
                if others == (0, 0):
                    del worker.told[place]
                else:
                    worker.told[place] = others
        words = [self._words[whose] for whose in worker.untold_words if whose in self._words]
        uses = [self._uses[account] for account in worker.untold_uses if account in self._uses]
        for untold in (worker.untold, worker.untold_words, worker.untold_uses):
            untold.clear()
        return News(tuple(counts), tuple(words), tuple(uses), workers=self.size)

    def read(self) -> News:
        """All that is known, of all workers together."""
        counts = tuple(PlaceCount(place, *total) for place, total in self._sums.items())
        words, uses = tuple(self._words.values()), tuple(self._uses.values())
        return News(counts, words, uses, workers=self.size)


def _thin(said: Mapping[int, Said], holds: Callable[[Said], bool]) -> dict[int, Said]:
    """What still holds; where that is too much, the newest half of what there is room for.

    Nobody is blamed for it: whoever said too much must not cost the others their lines.
    """
    left = {id: each for id, each in said.items() if holds(each)}
    if len(left) > SAID_MAX:
        newest = sorted(left.items(), key=lambda item: item[1].said_at)
        left = dict(newest[-SAID_MAX // 2 :])
    return left
