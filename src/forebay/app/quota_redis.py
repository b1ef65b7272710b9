"""The authority of several machines: a script in Redis or Valkey, which all their control planes call.

What it decides and keeps is in `quota.lua`; this calls it for the workers of this machine, tells it each
second that they are still there, and hears what other machines need.  While it is away all lines are closed:
workers go on with their share, and say what they hold and owe when it is back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from forebay.app.quota_authority import AbsorbFound, AuthorityAway, Lines
from forebay.app.quota_script import (
    SCRIPT,
    SCRIPT_SHA,
    Answer,
    Book,
    Done,
    Early,
    Holders,
    Lent,
    OtherPeriods,
    Short,
    Shown,
    Stranger,
    Ticked,
    decode_news,
    make_prefix,
)
from forebay.app.redis_link import CALL_MAX_S, RedisLink
from forebay.core.clock import Clock
from forebay.core.limits import Limit
from forebay.gateway.policy.lending import Standing, Want
from forebay.gateway.policy.meter import Now
from forebay.gateway.quota_wire import Held

logger = logging.getLogger("forebay.quota")

TICK_S = 1.0  #: between two words that the workers are still there
RECALL_MAX_S = 0.15  #: for workers, here and elsewhere, to return what others need
LIMITS_MAX = 200  #: in one call
SHOWN_PER_S = 1000  #: limits about which is asked in a second, for whoever wants to know at once
PERIODS_TRIES = 3  #: of a call after the clocks have turned out to differ

AbsorbAnswer = Callable[[Answer], None]
Result = TypeVar("Result")


class RedisAuthority:
    """See the module.

    Args:
        find_url: the server's address; see `RedisLink`.
        fleet: the name that all machines with these limits use.
        name: of this control plane, unique over all that there ever were.
    """

    def __init__(self, find_url: Callable[[], str], fleet: str, name: str, clock: Clock) -> None:
        self.grace_s = 0.0  # who holds what lies there
        self.recall_max_s = RECALL_MAX_S
        prefix = make_prefix(fleet)
        self._link = RedisLink(find_url, SCRIPT, SCRIPT_SHA, prefix, f"{prefix}:news")
        self._book = Book(name)
        self._clock = clock
        self._lines: Lines | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._members: int | None = None
        self._standings: dict[str, Standing] = {}  # as of the last look
        self._trouble = "it has not been asked yet"

    @property
    def is_there(self) -> bool:
        return self._link.is_up

    @property
    def trouble(self) -> str:
        return "" if self._link.is_up else self._trouble

    @property
    def members(self) -> int | None:
        return self._members

    @property
    def limits(self) -> Mapping[str, Limit]:
        return self._book.limits

    def start(self, lines: Lines) -> None:
        self._lines = lines
        loop = asyncio.get_running_loop()
        keeping = self._link.keep_up(self._make_probe, self._begin, self._end, self._hear)
        self._tasks = [loop.create_task(work) for work in (keeping, self._tick(), self._look())]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _make_probe(self) -> bytes:
        return self._book.tick((), self._now())

    def _begin(self) -> None:
        if self._trouble:
            logger.info("the authority over the limits of all machines is there")
        self._trouble = ""
        self._book.rename()
        self._say_who_is_there()
        self._tell_known(_cut(self._book.list_known()))

    def _tell_known(self, parts: Sequence[Sequence[str]]) -> None:
        """What the server has lost it learns at once, part by part: it has others to answer as well."""
        if parts:
            self._call(partial(self._make_touch, parts[0]), lambda _: self._tell_known(parts[1:]))

    def _end(self, reason: str) -> None:
        if reason != self._trouble:
            logger.error(
                "the authority over the limits of all machines (limits.authority) can't be used: %s; "
                "workers go on with their share until it can",
                reason,
            )
        self._trouble = reason
        if self._lines is not None:
            self._lines.close_lines()

    # --- what goes on by itself -----------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._say_who_is_there()

    def _say_who_is_there(self) -> None:
        if self._lines is not None:
            workers = self._lines.list_workers()
            self._call(lambda: self._book.tick(workers, self._now()), self._absorb_tick)

    def _absorb_tick(self, answer: Answer) -> None:
        if isinstance(answer, Ticked):
            self._members = answer.members
            if answer.strangers and self._lines is not None:
                self._lines.close_lines(answer.strangers)

    async def _look(self) -> None:
        """Keeps in mind how limits stand, for whoever can't wait."""
        while True:
            parts = _cut(sorted(self._book.limits))
            for part in parts:
                await asyncio.sleep(max(TICK_S / len(parts), LIMITS_MAX / SHOWN_PER_S))
                self._call(partial(self._make_show, part), self._keep_shown)
            if not parts:
                await asyncio.sleep(TICK_S)

    def _keep_shown(self, answer: Answer) -> None:
        if isinstance(answer, Shown):
            self._standings.update((each.limit.id, each) for each in answer.standings)

    def _show(self, then: AbsorbAnswer) -> int:
        """How many answers there will be."""
        parts = _cut(sorted(self._book.limits))
        for part in parts:
            self._call(partial(self._make_show, part), then)
        return len(parts)

    def _make_show(self, limit_ids: Sequence[str]) -> bytes:
        return self._book.show(limit_ids, self._now())

    def _hear(self, news: bytes) -> None:
        try:
            kind, limit_id, *workers = decode_news(news)
        except (ValueError, msgspec.MsgspecError):
            return  # not ours
        if self._lines is None:
            return
        if kind == "recall":
            self._lines.recall(limit_id, workers)
        elif kind == "returned":
            for worker in workers:
                self._lines.note_answer(worker, limit_id)

    # --- what it is asked -----------------------------------------------------------------------------------

    def set_limits(self, limits: tuple[Limit, ...]) -> None:
        self._touch(self._book.set_limits(limits, self._now()))
        self._standings = {key: value for key, value in self._standings.items() if key in self._book.limits}

    def set_amounts(self, amounts: Mapping[str, int]) -> None:
        limits = [
            msgspec.structs.replace(limit, amount=amounts.get(limit.id, limit.amount))
            for limit in self._book.limits.values()
        ]
        self._touch(self._book.set_limits(limits, self._now()))

    def _touch(self, limit_ids: Sequence[str]) -> None:
        """Another amount holds from now on, not from the next loan on."""
        for part in _cut(limit_ids):
            self._call(partial(self._make_touch, part), _ignore)

    def _make_touch(self, limit_ids: Sequence[str]) -> bytes:
        return self._book.touch(limit_ids, self._now())

    def list_standings(self, limit_ids: Iterable[str] | None = None) -> list[Standing]:
        known = self._standings.keys()
        wanted = known if limit_ids is None else known & set(limit_ids)
        return [self._standings[limit_id] for limit_id in sorted(wanted)]

    async def fetch_standings(self) -> list[Standing]:
        found: list[Standing] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = 0

        def absorb(answer: Answer) -> None:
            nonlocal left
            if isinstance(answer, Shown):
                found.extend(answer.standings)
            left -= 1
            if left == 0 and not done.done():
                done.set_result(None)

        self._check_there()
        left = self._show(absorb)
        if left:
            await self._wait(done)
        return sorted(found, key=lambda standing: standing.limit.id)

    async def fetch_holders(self, limit_ids: Iterable[str]) -> Mapping[str, Sequence[str]]:
        limit_ids = list(limit_ids)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self.is_there:
            return {}
        self._call(
            lambda: self._book.list_holders(limit_ids),
            lambda answer: None if done.done() else done.set_result(answer),
        )
        try:
            answer = await self._wait(done)
        except AuthorityAway:
            return {}
        return dict(zip(limit_ids, answer.names, strict=True)) if isinstance(answer, Holders) else {}

    def _check_there(self) -> None:
        if self.trouble:
            raise AuthorityAway(
                f"nobody can tell how the limits stand: their authority (limits.authority) can't be used: "
                f"{self.trouble}. Workers go on with their share meanwhile."
            )

    async def _wait(self, done: "asyncio.Future[Result]") -> "Result":
        try:
            return await asyncio.wait_for(done, 2 * CALL_MAX_S)
        except TimeoutError:
            self._check_there()
            raise AuthorityAway("the authority over the limits does not answer; try again") from None

    def join(self, worker: str, held: Sequence[Held], *, is_first: bool, then: Callable[[], None]) -> None:
        make = partial(self._book.join, worker, held, is_first=is_first)
        self._call(lambda: make(now=self._now()), partial(_absorb_done, then))

    def leave(self, worker: str) -> None:
        self._call(lambda: self._book.leave(worker), _ignore)

    def ask(self, worker: str, wants: Sequence[Want], *, final: bool, then: AbsorbFound) -> None:
        again = partial(self.ask, worker, wants, final=final, then=then)
        self._call(
            lambda: self._book.ask(worker, wants, self._now(), final=final),
            lambda answer: self._absorb_found(worker, answer, then, again),
        )

    def _absorb_found(
        self, worker: str, answer: Answer, then: AbsorbFound, again: Callable[[], None]
    ) -> None:
        match answer:
            case Lent():
                then(answer.loans, ())
            case Short():
                then(answer.shortage, answer.holders)
            case Early():
                asyncio.get_running_loop().call_later(answer.wait_ns * 1e-9, again)
            case Stranger() if self._lines is not None:
                self._lines.close_lines([worker])

    def give_back(
        self, worker: str, returned: Sequence[Held], recalled: str, number: int, then: Callable[[], None]
    ) -> None:
        make = partial(self._book.give_back, worker, returned, recalled=recalled, number=number)
        self._call(lambda: make(now=self._now()), partial(_absorb_done, then))

    def recall_elsewhere(self, limit_id: str, workers: Sequence[str]) -> bool:
        self._call(lambda: self._book.recall(limit_id, workers), _ignore)
        return self.is_there

    def _call(self, make: Callable[[], bytes], then: AbsorbAnswer, tries: int = PERIODS_TRIES) -> None:
        def absorb(reply: object) -> None:
            answer = self._book.read(reply)
            if not isinstance(answer, OtherPeriods):
                then(answer)
            elif tries:
                self._call(make, then, tries - 1)

        if self._link.is_up:
            self._link.call(make(), absorb)

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ns(), self._clock.wall_ns())


def _cut(limit_ids: Sequence[str]) -> list[Sequence[str]]:
    return [limit_ids[at : at + LIMITS_MAX] for at in range(0, len(limit_ids), LIMITS_MAX)]


def _absorb_done(then: Callable[[], None], answer: Answer) -> None:
    if isinstance(answer, Done):
        then()


def _ignore(answer: Answer) -> None:
    pass
