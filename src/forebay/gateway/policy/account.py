"""Whose quota several places use up together, and what is known of it.  Pure.

A provider's refusal speaks of an account: of every model that is called with it, in every worker.  It absorbs
what was said and decides nothing; times are seconds of one clock, the same in all workers of a machine.
"""

from typing import Protocol

BUSY_S, BUSY_MAX_S = 1.0, 16.0  #: a refusal that names no time; twice as long each time without an answer
QUOTA_EASY = 0.8  #: used share of a quota up to which it is as full as that
QUOTA_NONE = 1.5  #: how full one is of which nothing is left: all of the flow goes elsewhere before that


class Word:
    """When somebody who refused wants to be asked again, by its newest word.

    Attributes:
        id: names to other workers whose word it is.
        said_at: when it was said; what was said earlier counts no more.
        retry_at: not asked before.
        pause_s: how long that is from when it was said.
    """

    __slots__ = ("id", "is_news", "pause_s", "retry_at", "said_at")

    def __init__(self, id: int) -> None:
        self.id = id
        self.said_at = self.retry_at = self.pause_s = 0.0
        self.is_news = False  #: nobody has told the other workers yet

    def say(self, now: float, retry_at: float) -> None:
        """It was said just now, to this worker."""
        self.said_at, self.retry_at, self.is_news = now, retry_at, True
        self.pause_s = max(0.0, retry_at - now)

    def guess_pause(self, now: float) -> float:
        """How long it is left alone after a refusal that names no time: twice as long as before, where it was
        asked again soon after that, and no answer has come since."""
        if now < self.retry_at:
            return max(BUSY_S, self.retry_at - now)
        if self.pause_s > 0.0 and now - self.retry_at <= max(self.pause_s, BUSY_S):
            return min(BUSY_MAX_S, max(BUSY_S, 2 * self.pause_s))
        return BUSY_S

    def outlive(self, now: float, began_at: float) -> None:
        """A request that began after it was answered well: the next refusal is the first again."""
        if self.pause_s > 0.0 and now >= self.retry_at and began_at > self.said_at:
            self.say(now, 0.0)

    def end(self, now: float, began_at: float) -> bool:
        """A request that began after it was answered well, so it holds no more; False if that changes
        nothing."""
        if now >= self.retry_at or began_at <= self.said_at:
            return False
        self.say(now, 0.0)
        return True

    def take(self, said_at: float, retry_at: float) -> bool:
        """What another worker heard; False if it is no news."""
        if said_at <= self.said_at:
            return False
        self.said_at, self.retry_at = said_at, retry_at
        self.pause_s = max(0.0, retry_at - said_at)
        return True


class _User(Protocol):
    def settle(self, now: float) -> None: ...


class Account:
    """One provider's account.

    Attributes:
        users: places that use up its quota.
        used: share of the quota that was used up when its provider spoke of it last; None if it never did.
        reset_at: when all of it is there again, by that word.
    """

    __slots__ = ("id", "is_news", "reset_at", "said_at", "used", "users", "word")

    def __init__(self, id: int) -> None:
        self.id = id
        self.word = Word(id)
        self.users: list[_User] = []
        self.used: float | None = None
        self.said_at = self.reset_at = 0.0
        self.is_news = False

    def settle(self, now: float) -> None:
        for user in self.users:
            user.settle(now)

    def say_used(self, used: float, now: float, reset_at: float) -> None:
        """Its provider said so just now, to this worker."""
        self.used, self.said_at, self.reset_at, self.is_news = used, now, reset_at, True

    def take_used(self, used: float, said_at: float, reset_at: float) -> bool:
        """What another worker heard; False if it is no news."""
        if said_at <= self.said_at:
            return False
        self.used, self.said_at, self.reset_at = used, said_at, reset_at
        return True

    def compute_used(self, now: float) -> float | None:
        """Share of its quota that is used up: less and less until its reset; None if nobody knows."""
        if self.used is None or now >= self.reset_at:
            return None
        return self.used * min(1.0, (self.reset_at - now) / (self.reset_at - self.said_at))

    def compute_use(self, now: float) -> float | None:
        """How full it is for choosing: the last of a quota counts more, so that it is hardly ever used up."""
        used = self.compute_used(now)
        if used is None or used <= QUOTA_EASY:
            return used
        return QUOTA_EASY + (used - QUOTA_EASY) * (QUOTA_NONE - QUOTA_EASY) / (1 - QUOTA_EASY)
