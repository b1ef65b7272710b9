"""What is said on the board: numbers that changed, and no more.  Pure.

Places and accounts go by the numbers that `loads` gives them, the same in every worker.  Times are those of
the machine's one monotonic clock, which all its processes read.  Every part has a bound, so that a frame has.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

import msgspec

from forebay.core.engine_load import EngineLoad

PART_MAX = 2000  #: things of one kind in a message
ENGINES_MAX = 200  #: engines in a message, which may hold long lists of adapters
ADAPTERS_MAX = 64  #: of an engine, that are told; of 128 bytes each at most
WORD_MAX_S = 3600.0  #: that somebody else's word holds at most
TIME_MAX = 1e12  #: seconds that no clock will show

Id = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class PlaceCount(msgspec.Struct, frozen=True, array_like=True):
    """What somebody has in flight at a place."""

    place: Id
    requests: Count
    tokens: Count


class SaidWord(msgspec.Struct, frozen=True, array_like=True):
    """When a place or an account that refused wants to be asked again."""

    whose: Id
    said_at: float
    retry_at: float


class SaidUse(msgspec.Struct, frozen=True, array_like=True):
    """How much of an account's quota was used up, as its provider said."""

    account: Id
    said_at: float
    reset_at: float
    used: float


class SaidOut(msgspec.Struct, frozen=True, array_like=True):
    """Until when a place is out of service for its failures: of the worker that says so, or of many.

    Attributes:
        is_everywhere: so it is at all workers of the machine.
    """

    place: Id
    until: float
    workers: Count = 1
    is_everywhere: bool = False


class EngineNews(msgspec.Struct, frozen=True, array_like=True):
    """What an engine said of itself, and when."""

    load: EngineLoad
    at: float


class Need(msgspec.Struct, frozen=True, array_like=True):
    """Of a pool's capacity, in requests or in tokens: how much there is, and how much of it one worker has.

    Attributes:
        capacity: in service; 0 if nobody knows.
        used: by the worker's own requests in flight.
        waiting: for a place there.
        limit: that the worker's own requests fill at the most, as it goes by now.
    """

    capacity: float
    used: Count
    waiting: Count
    limit: Count


class PoolUse(msgspec.Struct, frozen=True, array_like=True):
    """What the workers of a machine have of a pool, and whether some wait for it."""

    pool: Id
    used: Count
    waits: bool


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a worker has and wants of a pool; without any capacity it has no such pool any more."""

    pool: Id
    requests: Need
    tokens: Need


class Allotment(msgspec.Struct, frozen=True, array_like=True):
    """What a worker's own requests may fill of a pool at the most, from now on."""

    pool: Id
    requests: Count
    tokens: Count


class News(msgspec.Struct, frozen=True, tag="news"):
    """What changed; of a worker its own counts, of the board the sums of all others.

    Attributes:
        workers: whose counts are in the sums, with those of whoever reads this; 0 from a worker.
        claims: from a worker.
        allotments: from the board.
        expected: workers that fill the same places on all machines, though they may not be heard; 0 where
            the board knows of no other machine.
        outs: from a worker, for people alone.
    """

    counts: tuple[PlaceCount, ...] = ()
    words: tuple[SaidWord, ...] = ()
    uses: tuple[SaidUse, ...] = ()
    engines: tuple[EngineNews, ...] = ()
    workers: Count = 0
    claims: tuple[Claim, ...] = ()
    allotments: tuple[Allotment, ...] = ()
    expected: Count = 0
    outs: tuple[SaidOut, ...] = ()


_Item = TypeVar("_Item")


def _cut(items: Sequence[_Item], at: int, most: int) -> tuple[_Item, ...]:
    return tuple(items[at * most : (at + 1) * most])


def cut(news: News) -> Iterator[News]:
    """The same in messages of which each fits into a frame; one at least."""
    at = 0
    while True:
        part = News(
            counts=_cut(news.counts, at, PART_MAX),
            words=_cut(news.words, at, PART_MAX),
            uses=_cut(news.uses, at, PART_MAX),
            engines=_cut(news.engines, at, ENGINES_MAX),
            workers=news.workers,
            claims=_cut(news.claims, at, PART_MAX),
            allotments=_cut(news.allotments, at, PART_MAX),
            expected=news.expected,
            outs=_cut(news.outs, at, PART_MAX),
        )
        kinds = part.counts, part.words, part.uses, part.engines, part.claims, part.allotments, part.outs
        if at and not any(kinds):
            return
        yield part
        at += 1


def shorten(load: EngineLoad) -> EngineLoad:
    """What fits: of an engine with very many adapters some are told."""
    adapters = tuple(name for name in load.adapters if len(name) <= 128)[:ADAPTERS_MAX]
    return load if len(adapters) == len(load.adapters) else msgspec.structs.replace(load, adapters=adapters)


def is_time(seconds: float) -> bool:
    """Whether a clock can show it; False for what is no number."""
    return 0.0 <= seconds < TIME_MAX
