"""What boards of several machines say to each other, and what each makes of it.  Pure.

Each tells what its own workers have together, and only what changed.  Messages may come late, twice, in any
order or not at all: each has a number, what is said is absolute, and of two that speak of the same thing the
one with the larger number counts.  Who lacks one asks for all, and is told all in messages that say where
they begin and end.  So whatever happens on the way, in the end each has what the others have; who is silent
for `SILENCE_MAX_S` is unknown.

Clocks of machines differ, so nothing here is an instant: messages hold ages, and the time that is left.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from forebay.core.retry_after import MAX_S as RESET_MAX_S
from forebay.gateway.policy.merging import PLACES_MAX, SAID_MAX, BoardFull, Merging
from forebay.gateway.policy.news import (
    PART_MAX,
    WORD_MAX_S,
    Count,
    Id,
    News,
    PlaceCount,
    PoolUse,
    SaidUse,
    SaidWord,
    cut,
    is_time,
)

FORMAT = 1  #: of the messages; versions of Forebay that write others do not understand each other
BEAT_S = 0.5  #: between two messages of a machine, though there is no news
SILENCE_MAX_S = 2.0  #: after which what a machine has is unknown
ASK_AGAIN_S = 0.5  #: for all, where something is still lacking
WHOLE_S = 1.0  #: between two times that all is told, however many ask
MACHINES_MAX = 256  #: that are listened to
AHEAD_MAX = 1000  #: messages behind one that is lacking; with more of them all that is known is dropped
BELIEVED_MAX = 1 << 31  #: of any one count of a machine: the sums of all are still what workers can be told
GONE_MAX = 1000  #: machines that said goodbye, of which a late message is none

Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Name = Annotated[str, msgspec.Meta(max_length=128)]


class SharedWord(msgspec.Struct, frozen=True, array_like=True):
    """When a place or an account that refused wants to be asked again.

    Attributes:
        number: of the message that told it first.
    """

    whose: Id
    number: Number
    said_ago_s: float
    retry_in_s: float


class SharedUse(msgspec.Struct, frozen=True, array_like=True):
    """How much of an account's quota was used up, as its provider said."""

    account: Id
    number: Number
    said_ago_s: float
    reset_in_s: float
    used: float


class Message(msgspec.Struct, frozen=True, array_like=True):
    """What one machine tells all others.

    Attributes:
        instance: of its control plane, another one after each start.
        name: of the machine, for people.
        number: its own where it `is_news`, else that of the last that was.
        whole: the numbers of the first and the last message of those that tell all, this one among them;
            zeros where this one tells what changed.
        workers: of that machine.
        asks: instances that are to tell all.
        is_gone: nothing of it counts any more.
        pools: what its workers have of each pool at the moment; no more than a message may hold.
    """

    format: int
    instance: Name
    name: Name
    number: Number
    is_news: bool
    whole: tuple[Number, Number] = (0, 0)
    workers: Count = 0
    counts: tuple[PlaceCount, ...] = ()
    words: tuple[SharedWord, ...] = ()
    uses: tuple[SharedUse, ...] = ()
    asks: tuple[Name, ...] = ()
    is_gone: bool = False
    pools: tuple[PoolUse, ...] = ()


class Machine:
    """Another one, as far as it was heard."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.name = ""
        self.workers = 0
        self.pools: tuple[PoolUse, ...] = ()
        self.heard_at = 0.0
        self.asked_at = 0.0
        self.last = 0  # the largest number that is known of
        self._complete = 0  # all messages up to it count, or what took their place
        self._ahead: set[int] = set()  # those that came, behind one that lacks
        self._whole = (0, 0)
        self._places: dict[int, int] = {}  # the number of the message that spoke of it last
        self._words: dict[int, int] = {}
        self._uses: dict[int, int] = {}

    @property
    def lacks(self) -> bool:
        """Whether it said something that did not come."""
        return self._complete < self.last

    def receive(self, message: Message) -> bool:
        """Whether it is news, and none that came before."""
        self.last = max(self.last, message.number)
        if not message.is_news or message.number <= self._complete or message.number in self._ahead:
            return False
        self._ahead.add(message.number)
        first, last = message.whole
        if first <= message.number <= last and self._whole[1] < last < first + AHEAD_MAX:
            self._whole = message.whole
        return True

    def read(self, message: Message, now: float) -> News:
        """What it says that nothing newer was said of."""
        number = message.number
        return News(
            counts=tuple(
                _bound(each) for each in message.counts if _is_newer(self._places, each.place, number)
            ),
            words=tuple(
                SaidWord(each.whose, max(0.0, now - each.said_ago_s), now + each.retry_in_s)
                for each in message.words
                if _is_word(each) and _is_newer(self._words, each.whose, each.number)
            ),
            uses=tuple(
                SaidUse(each.account, max(0.0, now - each.said_ago_s), now + each.reset_in_s, each.used)
                for each in message.uses
                if _is_use(each) and _is_newer(self._uses, each.account, each.number)
            ),
        )

    def settle(self) -> tuple[int, ...]:
        """Looks what is complete now; returns places of which is known now that nothing is there."""
        first, last = self._whole
        lost: tuple[int, ...] = ()
        if self._complete < last and all(
            number in self._ahead for number in range(max(first, self._complete + 1), last + 1)
        ):
            self._complete = last
            lost = tuple(place for place, number in self._places.items() if number < first)
        while self._complete + 1 in self._ahead:
            self._complete += 1
        self._ahead = {number for number in self._ahead if number > self._complete}
        for place in lost:
            del self._places[place]
        return lost

    @property
    def is_beyond_hope(self) -> bool:
        """More is kept of it than it can say that holds."""
        kept = len(self._places) > 2 * PLACES_MAX or len(self._words) + len(self._uses) > 4 * SAID_MAX
        return kept or len(self._ahead) > AHEAD_MAX


def _find_wanted(pools: Iterable[PoolUse]) -> set[int]:
    """Those for which somebody waits."""
    return {use.pool for use in pools if use.waits}


def _is_newer(known: dict[int, int], id: int, number: int) -> bool:
    if known.get(id, 0) >= number:
        return False
    known[id] = number
    return True


def _bound(count: PlaceCount) -> PlaceCount:
    if count.requests <= BELIEVED_MAX and count.tokens <= BELIEVED_MAX:
        return count
    return PlaceCount(count.place, min(count.requests, BELIEVED_MAX), min(count.tokens, BELIEVED_MAX))


def _is_word(word: SharedWord) -> bool:
    return is_time(word.said_ago_s) and 0.0 <= word.retry_in_s <= WORD_MAX_S


def _is_use(use: SharedUse) -> bool:
    return is_time(use.said_ago_s) and 0.0 <= use.reset_in_s <= RESET_MAX_S and is_time(use.used)


class Machines:
    """See the module.

    Args:
        instance: names this control plane, unlike any other that there ever was.
        name: of this machine.
        merging: holds what all workers have.
    """

    def __init__(self, instance: str, name: str, merging: Merging) -> None:
        self.instance = instance
        self._name = name
        self._merging = merging
        merging.keeps_own = True
        self._machines: dict[str, Machine] = {}
        self._gone: dict[str, None] = {}
        self._number = 0
        self._word_numbers: dict[int, int] = {}
        self._use_numbers: dict[int, int] = {}
        self._pools: tuple[PoolUse, ...] = ()
        self._is_asked = True  # to tell all
        self._whole_at = self._told_at = -WHOLE_S

    def list_machines(self) -> Sequence[Machine]:
        """The others that are known of."""
        return tuple(self._machines.values())

    # --- hearing --------------------------------------------------------------------------------------------

    def hear(self, message: Message, now: float) -> None:
        """What another machine says."""
        instance = message.instance
        if message.format != FORMAT or instance == self.instance or instance in self._gone:
            return
        if message.is_gone:
            self._forget(instance)
            self._gone[instance] = None
            if len(self._gone) > GONE_MAX:
                del self._gone[next(iter(self._gone))]
            return
        machine = self._machines.get(instance)
        if machine is None:
            if len(self._machines) >= MACHINES_MAX:
                return
            machine = self._machines[instance] = Machine(instance)
        machine.name, machine.heard_at = message.name, now
        machine.workers = min(message.workers, BELIEVED_MAX)
        if message.number >= machine.last:
            machine.pools = message.pools
        self._merging.join_machine(instance, machine.workers)
        self._is_asked |= self.instance in message.asks
        if machine.receive(message):
            self._take_over(machine, message, now)

    def _take_over(self, machine: Machine, message: Message, now: float) -> None:
        try:
            self._merging.note(machine.instance, machine.read(message, now), now)
            lost = tuple(PlaceCount(place, 0, 0) for place in machine.settle())
            self._merging.note(machine.instance, News(counts=lost), now)
        except BoardFull:
            self._forget(machine.instance)
        else:
            if machine.is_beyond_hope:
                self._forget(machine.instance)  # it comes again with its next word, and is asked for all

    def sweep(self, now: float) -> tuple[str, ...]:
        """Lets those be unknown that are silent; returns their names."""
        silent = [each for each in self._machines.values() if now > each.heard_at + SILENCE_MAX_S]
        for machine in silent:
            self._forget(machine.instance)
        return tuple(machine.name for machine in silent)

    def _forget(self, instance: str) -> None:
        self._machines.pop(instance, None)
        self._merging.leave_machine(instance)

    # --- telling --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """There may be others who have heard nothing yet."""
        self._is_asked = True
        self._told_at = self._whole_at = -WHOLE_S

    def take(self, now: float, pools: tuple[PoolUse, ...] = ()) -> list[Message]:
        """What the others are to be told now, and count as told; none where there is no news yet.

        Args:
            pools: what workers here have of each.
        """
        is_other = _find_wanted(pools) != _find_wanted(self._pools)
        self._pools = pools[:PART_MAX]
        news = self._merging.take_own()
        self._forget_numbers(news)
        is_whole = self._is_asked and now >= self._whole_at + WHOLE_S
        asks = self._take_asks(now)
        if is_whole:
            self._is_asked, self._whole_at = False, now
            news = self._merging.read_own()
        if not is_whole and news == News():
            if not asks and not is_other and now < self._told_at + BEAT_S:
                return []
            messages = [self._make(is_news=False, asks=asks)]
        else:
            messages = self._tell(news, now, is_whole=is_whole, asks=asks)
        self._told_at = now
        return messages

    def _tell(self, news: News, now: float, *, is_whole: bool, asks: tuple[str, ...]) -> list[Message]:
        parts = list(cut(news))
        whole = (self._number + 1, self._number + len(parts)) if is_whole else (0, 0)
        messages = []
        for part in parts:
            self._number += 1
            message = msgspec.structs.replace(
                self._make(is_news=True, asks=asks),
                whole=whole,
                counts=part.counts,
                words=self._share_words(part.words, now),
                uses=self._share_uses(part.uses, now),
            )
            messages.append(message)
            asks = ()
        return messages

    def make_beat(self) -> Message:
        """It is there."""
        return self._make(is_news=False)

    def say_goodbye(self) -> Message:
        """Nothing of this machine counts any more."""
        return msgspec.structs.replace(self._make(is_news=False), is_gone=True)

    def _make(self, *, is_news: bool, asks: tuple[str, ...] = ()) -> Message:
        workers = self._merging.own_size
        return Message(
            FORMAT,
            self.instance,
            self._name,
            self._number,
            is_news,
            workers=workers,
            asks=asks,
            pools=self._pools,
        )

    def _take_asks(self, now: float) -> tuple[str, ...]:
        lacking = [
            each for each in self._machines.values() if each.lacks and now >= each.asked_at + ASK_AGAIN_S
        ]
        for machine in lacking:
            machine.asked_at = now
        return tuple(machine.instance for machine in lacking)

    def _forget_numbers(self, news: News) -> None:
        """What is said anew is told under a new number; what is told again, under that of the first time."""
        for word in news.words:
            self._word_numbers.pop(word.whose, None)
        for use in news.uses:
            self._use_numbers.pop(use.account, None)
        for numbers in (self._word_numbers, self._use_numbers):
            if len(numbers) > 2 * SAID_MAX:
                numbers.clear()

    def _share_words(self, words: Iterable[SaidWord], now: float) -> tuple[SharedWord, ...]:
        return tuple(
            SharedWord(
                word.whose,
                self._word_numbers.setdefault(word.whose, self._number),
                max(0.0, now - word.said_at),
                max(0.0, word.retry_at - now),
            )
            for word in words
        )

    def _share_uses(self, uses: Iterable[SaidUse], now: float) -> tuple[SharedUse, ...]:
        return tuple(
            SharedUse(
                use.account,
                self._use_numbers.setdefault(use.account, self._number),
                max(0.0, now - use.said_at),
                max(0.0, use.reset_at - now),
                use.used,
            )
            for use in uses
        )
