"""Adds up what workers have in flight, and keeps for each what it has not been told yet.  Pure.

It holds numbers of places and never what they stand for.  Whatever order news come in, and whoever leaves,
what a worker has been told in the end is the sum of all the others.  Other machines, of which `machines`
knows, count as workers do, but are told nothing here; what is this machine's own is kept apart for them.
"""

from collections.abc import Callable, Iterable, Mapping
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


class _Machine:
    """Another one: what all of its workers have together."""

    def __init__(self) -> None:
        self.counts: dict[int, tuple[int, int]] = {}
        self.workers = 0


class _Own:
    """What other machines were not told yet of this one's."""

    def __init__(self) -> None:
        self.places: set[int] = set()
        self.words: set[int] = set()
        self.uses: set[int] = set()


class Merging:
    """See the module."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._machines: dict[str, _Machine] = {}
        self._sums: dict[int, tuple[int, int]] = {}
        self._words: dict[int, SaidWord] = {}
        self._uses: dict[int, SaidUse] = {}
        self._changed = _Own()
        self._own_words: set[int] = set()  # of which a worker of this machine has the newest
        self._own_uses: set[int] = set()
        self.keeps_own = False  #: somebody takes what is this machine's own

    @property
    def size(self) -> int:
        """How many workers there are, on all machines that are known here."""
        return len(self._workers) + sum(machine.workers for machine in self._machines.values())

    @property
    def own_size(self) -> int:
        """How many of them are this machine's."""
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
            self._note_changed(worker.counts)

    def join_machine(self, name: str, workers: int) -> None:
        """Another machine is there with so many workers; what is known of it stays."""
        self._machines.setdefault(name, _Machine()).workers = workers

    def leave_machine(self, name: str) -> None:
        """What its workers have is unknown."""
        machine = self._machines.pop(name, None)
        if machine is not None:
            for place in machine.counts:
                self._add(place, machine.counts[place], (0, 0))

    def note(self, name: str, news: News, now: float) -> None:
        """What a worker says, or another machine of all of its own.

        Raises:
            BoardFull: it says too much; nothing more is to be heard of it.
        """
        worker = self._workers.get(name) or self._machines[name]
        for count in news.counts:
            now_there = count.requests, count.tokens
            before = worker.counts.pop(count.place, (0, 0))
            if now_there != (0, 0):
                worker.counts[count.place] = now_there
            self._add(count.place, before, now_there)
        if len(worker.counts) > PLACES_MAX:
            raise BoardFull(f"somebody names more than {PLACES_MAX} places")
        if name in self._workers:
            self._note_changed(count.place for count in news.counts)
        self._note_words(name, news, now)
        self._note_uses(name, news, now)

    def _note_changed(self, places: Iterable[int]) -> None:
        if self.keeps_own:
            self._changed.places.update(places)

    def _note_words(self, name: str, news: News, now: float) -> None:
        for word in news.words:
            known = self._words.get(word.whose)
            if not is_time(word.said_at) or not is_time(word.retry_at):
                continue
            said_at, retry_at = min(word.said_at, now), min(word.retry_at, now + WORD_MAX_S)
            if known is None or known.said_at < said_at:
                self._words[word.whose] = SaidWord(word.whose, said_at, retry_at)
                self._note_own(name, word.whose, self._own_words, self._changed.words)
                for other, worker in self._workers.items():
                    if other != name:
                        worker.untold_words.add(word.whose)
        if len(self._words) > SAID_MAX:
            self._words = _thin(self._words, lambda word: word.retry_at > now)
            self._own_words &= self._words.keys()

    def _note_uses(self, name: str, news: News, now: float) -> None:
        for use in news.uses:
            known = self._uses.get(use.account)
            if not is_time(use.said_at) or not is_time(use.reset_at) or not is_time(use.used):
                continue
            said_at, reset_at = min(use.said_at, now), min(use.reset_at, now + RESET_MAX_S)
            if known is None or known.said_at < said_at:
                self._uses[use.account] = SaidUse(use.account, said_at, reset_at, min(use.used, 1.0))
                self._note_own(name, use.account, self._own_uses, self._changed.uses)
                for other, worker in self._workers.items():
                    if other != name:
                        worker.untold_uses.add(use.account)
        if len(self._uses) > SAID_MAX:
            self._uses = _thin(self._uses, lambda use: use.reset_at > now)
            self._own_uses &= self._uses.keys()

    def _note_own(self, name: str, id: int, own: set[int], changed: set[int]) -> None:
        """Whoever said it last; of another machine it is that machine's to tell."""
        if not self.keeps_own:
            return
        if name in self._workers:
            own.add(id)
            changed.add(id)
        else:
            own.discard(id)

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

    # --- for other machines ---------------------------------------------------------------------------------

    def take_own(self) -> News:
        """What has changed of this machine's own since this was called last."""
        changed, self._changed = self._changed, _Own()
        return self._read_own(changed.places, changed.words & self._own_words, changed.uses & self._own_uses)

    def read_own(self) -> News:
        """All that is this machine's own."""
        places = {place for worker in self._workers.values() for place in worker.counts}
        return self._read_own(places, self._own_words, self._own_uses)

    def _read_own(self, places: Iterable[int], words: Iterable[int], uses: Iterable[int]) -> News:
        return News(
            counts=tuple(PlaceCount(place, *self.count_own(place)) for place in places),
            words=tuple(self._words[whose] for whose in words if whose in self._words),
            uses=tuple(self._uses[account] for account in uses if account in self._uses),
        )

    def count_own(self, place: int) -> tuple[int, int]:
        """Requests and tokens that this machine's workers have there."""
        requests, tokens = self._sums.get(place, (0, 0))
        for machine in self._machines.values():
            theirs, their_tokens = machine.counts.get(place, (0, 0))
            requests, tokens = requests - theirs, tokens - their_tokens
        return requests, tokens

    def count_elsewhere(self, place: int) -> int:
        """Requests that the workers of other machines have there."""
        return self._sums.get(place, (0, 0))[0] - self.count_own(place)[0]

    def count_at(self, machine: str) -> int:
        """Requests that the workers of another machine have anywhere."""
        found = self._machines.get(machine)
        return 0 if found is None else sum(requests for requests, _ in found.counts.values())


def _thin(said: Mapping[int, Said], holds: Callable[[Said], bool]) -> dict[int, Said]:
    """What still holds; where that is too much, the newest half of what there is room for.

    Nobody is blamed for it: whoever said too much must not cost the others their lines.
    """
    left = {id: each for id, each in said.items() if holds(each)}
    if len(left) > SAID_MAX:
        newest = sorted(left.items(), key=lambda item: item[1].said_at)
        left = dict(newest[-SAID_MAX // 2 :])
    return left
