"""How full and how fast a replica is, and whether it is in service: counts, and means with peaks.  Pure.

Counts are this worker's own requests at once, and those of the other workers as they were told last.  It
absorbs what happened and decides nothing.  Times are seconds of one clock, handed in.
"""

from collections.abc import Callable

from forebay.core.engine_load import EngineLoad, EngineState
from forebay.gateway.policy.account import BUSY_S as BUSY_S
from forebay.gateway.policy.account import Account, Word
from forebay.gateway.policy.pace import STALE_S as STALE_S
from forebay.gateway.policy.pace import Pace
from forebay.gateway.policy.pool_load import PRESSURE_DECAY_S as PRESSURE_DECAY_S
from forebay.gateway.policy.pool_load import TINY as TINY
from forebay.gateway.policy.pool_load import PoolLoad as PoolLoad
from forebay.gateway.policy.pool_load import Trouble as Trouble

EJECT_AFTER = 5  #: failures in a row
EJECT_S, EJECT_MAX_S = 10.0, 300.0  #: twice as long each time
PROBE_S = 1.0  #: between two requests that look whether one is well again, where the order alone decides
TRIAL_S = 0.25  #: between two requests to a pool out of service, where all others are far slower
BYTES_PER_TOKEN = 4  #: of a request's body
OUTPUT_MIN = 16  #: tokens of an answer that say how long each takes; of fewer, the ends take most of it
OUTPUT_GUESS = 256  #: tokens of an answer, where nobody has estimated it
SLOW_START = 0.1  #: the share of its requests that a replica gets when it is new or has come back


def estimate_tokens(body_bytes: int, output: int = OUTPUT_GUESS) -> int:
    """Of a request, prompt and answer."""
    return body_bytes // BYTES_PER_TOKEN + output


class ReplicaLoad(Pace):
    """Of one replica.

    Attributes:
        on_end: told that requests have ended there, once all counts say so.
        id: names its place to other workers.
        requests, tokens: in flight, of all workers as far as is known.
        others_requests, others_tokens: of these, what the other workers were told to have there.
        unfit_until: until when it is out of service, for whatever reason; 0 if it never was.
        probe_at: from when on it may be looked at again, while it has not shown that it is well.
        slow_s: how long it takes from its return until it gets all that is its own.
        engine: what its engine said last, while that is fresh.
        model: its name there.
        holds: whether its engine said so of a LoRA adapter, which the model is then.
    """

    __slots__ = (
        "account", "ejected_for_s", "ejected_until", "ejections", "engine", "engine_at", "failures",
        "has_lapsed", "holds", "id", "model", "on_end", "others_requests", "others_tokens", "out_until",
        "pools", "probe_at", "requests", "slow_s", "slow_until", "tokens", "unfit_until", "word",
    )  # fmt: skip

    def __init__(self, id: int = 0, model: str = "") -> None:
        super().__init__()
        self.id = id
        self.model = model
        self.holds = False
        self.requests = self.tokens = 0
        self.others_requests = self.others_tokens = 0
        self.failures = 0  #: in a row
        self.has_lapsed = False  #: it failed or refused, and its next good answer is to be told of that
        self.ejections = 0
        self.ejected_until = self.ejected_for_s = 0.0
        self.unfit_until = self.probe_at = 0.0
        self.word = Word(id)  #: its own last word on when it wants to be asked again
        self.account: Account | None = None  #: whose quota it uses up, where others use up the same
        self.slow_s = self.slow_until = 0.0
        self.engine: EngineLoad | None = None
        self.engine_at = 0.0
        self.out_until = 0.0  #: its engine says that it is not to be sent to
        self.pools: list[PoolLoad] = []  #: that count it
        self.on_end: Callable[[ReplicaLoad, float], None] | None = None

    def begin(self, tokens: int, now: float) -> None:
        """A request has been sent to it.  Each is ended once."""
        self.requests += 1
        self.tokens += tokens
        for pool in self.pools:
            pool.asked_at = now
            pool.begun += 1
            pool.change(1, tokens, now)

    def end(self, tokens: int, now: float) -> None:
        self.requests -= 1
        self.tokens -= tokens
        for pool in self.pools:
            pool.change(-1, -tokens, now)
        if self.on_end is not None:
            self.on_end(self, now)

    def end_well(self, tokens: int, now: float, began_at: float, first_s: float) -> None:
        """A request that was sent to it at `began_at` has ended well, and its first token came after so long:
        `end`, `succeed` and `tell_first` in one, for this is in each request's way."""
        self.requests -= 1
        self.tokens -= tokens
        for pool in self.pools:
            pool.end_well(tokens, first_s, now)
        if self.on_end is not None:
            self.on_end(self, now)
        if self.failures or self.has_lapsed or self.ejections or now < self.unfit_until:
            self.succeed(now, began_at)
        self.see_first(first_s, now)

    def set_others(self, requests: int, tokens: int, now: float) -> None:
        """The other workers have so many there together."""
        more, more_tokens = requests - self.others_requests, tokens - self.others_tokens
        if not more and not more_tokens:
            return
        self.others_requests, self.others_tokens = requests, tokens
        self.requests += more
        self.tokens += more_tokens
        for pool in self.pools:
            pool.change_others(more, more_tokens, now)
        if self.on_end is not None and (more < 0 or more_tokens < 0):
            self.on_end(self, now)

    def tell_first(self, seconds: float, now: float) -> None:
        """The first token of an answer has come."""
        self.see_first(seconds, now)
        for pool in self.pools:
            pool.see_first(seconds, now)

    def tell_token(self, seconds: float, now: float) -> None:
        """An answer is whole: so long each of its tokens took after the first."""
        self.see_token(seconds, now)
        for pool in self.pools:
            pool.see_token(seconds, now)

    # --- out of service -------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Something has changed of why and how long it is out of service."""
        account = self.account
        shared = 0.0 if account is None else account.word.retry_at
        until = max(self.ejected_until, self.word.retry_at, shared, self.out_until)
        if until == self.unfit_until:
            return
        self.unfit_until = until
        self.has_lapsed = True
        for pool in self.pools:
            pool.note_unfit(self, now)

    @property
    def is_on_trial(self) -> bool:
        """It was put out of service for its failures, and nothing has gone well since."""
        return self.failures >= EJECT_AFTER

    def is_fit(self, now: float) -> bool:
        """Whether it is in service, or may be looked at again."""
        return now >= self.unfit_until and (now >= self.probe_at or self.failures < EJECT_AFTER)

    def may_be_tried(self, now: float) -> bool:
        """Whether its failures alone keep it out of service, and it has nothing of this worker's to do."""
        account = self.account
        return (
            now < self.ejected_until
            and now >= self.word.retry_at
            and now >= self.out_until
            and (account is None or now >= account.word.retry_at)
            and self.requests <= self.others_requests
        )

    def note_trial(self, now: float) -> None:
        """A request begins there, though it may be out of service: the next such one comes later."""
        if now < self.ejected_until:
            for pool in self.pools:
                pool.trial_at = now + TRIAL_S

    def succeed(self, now: float = 0.0, began_at: float = 0.0) -> None:
        """It has answered well what was sent to it at `began_at`.

        A place that was put out of service is only taken for well again, so that the next time is as short as
        the first, when it has been well for as long as it was out.
        """
        if self.failures < EJECT_AFTER or began_at > self.ejected_until - self.ejected_for_s:
            self.failures = 0  # what began before it was put out of service says nothing of how it is since
        if self.has_lapsed:
            self._outlive_lapse(now, began_at)
        if now < self.ejected_until and began_at > self.ejected_until - self.ejected_for_s:
            self._come_back(now)
        if self.ejections and now >= self.ejected_until + self.ejected_for_s:
            self.ejections = 0
        if now < self.unfit_until:
            self._end_words(now, began_at)

    def _outlive_lapse(self, now: float, began_at: float) -> None:
        words = [self.word] if self.account is None else [self.word, self.account.word]
        for word in words:
            word.outlive(now, began_at)
        for pool in self.pools:
            pool.note_answer(now)
        self.has_lapsed = any(word.pause_s for word in words) or any(pool.has_faults for pool in self.pools)

    def _come_back(self, now: float) -> None:
        """What was sent to it while it was out of service it has answered well: it is back, and begins as
        slowly as it was away for long."""
        away_s = now - (self.ejected_until - self.ejected_for_s)
        self.ejected_until = now
        if self.slow_until > now:
            self.slow_until = now + min(self.slow_s, away_s)
            for pool in self.pools:
                pool.note_slow(self, now)
        self.settle(now)

    def _end_words(self, now: float, began_at: float) -> None:
        """A request that began after a refusal and was answered well is the newer word."""
        if self.word.end(now, began_at):
            self.settle(now)
        if self.account is not None and self.account.word.end(now, began_at):
            self.account.settle(now)

    def refuse(self, now: float, retry_after_s: float | None = None, *, of_account: bool = False) -> None:
        """It said that it has no room (429, 503): it is left alone for a while, and its pool is fuller.

        The newest word on how long counts, also where it is shorter.  A refusal that names no time is none;
        one after the other without an answer between them make the pause longer, for all who share the quota.

        Args:
            of_account: it spoke of a quota; where that is shared, all who use it up are left alone.
        """
        account = self.account if of_account else None
        if retry_after_s is None:
            pause_s = self.word.guess_pause(now)
            if account is not None and pause_s > BUSY_S:  # it goes on, so it is the account's
                account.word.say(now, now + max(pause_s, account.word.guess_pause(now)))
                account.settle(now)
            self.word.say(now, now + pause_s)
        elif account is not None:
            account.word.say(now, now + retry_after_s)
            account.settle(now)
        else:
            self.word.say(now, now + retry_after_s)
        for pool in self.pools:
            pool.note_refusal(now)
        self.settle(now)

    def hear(self, now: float) -> None:
        """Another worker has news of its word, which has been taken over."""
        is_news = now < self.word.retry_at and now >= self.unfit_until
        for pool in self.pools if is_news else ():
            pool.note_refusal(now)
        self.settle(now)

    def leave_alone(self, now: float, seconds: float) -> None:
        """It is left alone at least so long, and nothing is said of how full its pool is."""
        self.word.retry_at = max(self.word.retry_at, now + seconds)
        self.settle(now)

    def fail(self, now: float, lost_s: float = 0.0, *, has_begun: bool = False) -> None:
        """An attempt failed by its fault, after so long; so many in a row put it out of service.

        After its return the first failure does, until something has gone well.

        Args:
            has_begun: its caller had seen a part of the answer.
        """
        self.failures += 1
        self.has_lapsed = True
        for pool in self.pools:
            pool.note_failure(lost_s, now)
            if has_begun:
                pool.note_break(now)
        if self.failures < EJECT_AFTER or now < self.ejected_until:
            return
        self.ejected_for_s = min(EJECT_MAX_S, EJECT_S * 2.0**self.ejections)
        self.ejected_until = now + self.ejected_for_s
        self.ejections = min(self.ejections + 1, 10)
        self.start_slowly(self.ejected_until, now)
        self.settle(now)

    def forgive(self, now: float = 0.0) -> None:
        """The last failure was not its fault, but the request's, which failed elsewhere too."""
        self.failures = max(0, self.failures - 1)
        for pool in self.pools:
            pool.take_back_failure()
        if self.failures == EJECT_AFTER - 1 and self.ejected_until:
            self.ejected_until = self.slow_until = 0.0  # that failure put it out of service
            self.ejections = max(0, self.ejections - 1)
            self.settle(now)

    # --- slow start -----------------------------------------------------------------------------------------

    def start_slowly(self, at: float, now: float) -> None:
        """From `at` on it gets little, and then more and more."""
        if self.slow_s <= 0.0:
            return
        self.slow_until = at + self.slow_s
        for pool in self.pools:
            pool.note_slow(self, now)

    def compute_share(self, now: float) -> float:
        """Of what would be its own: less than 1 in its slow start."""
        left_s = self.slow_until - now
        if left_s <= 0.0:
            return 1.0
        return max(SLOW_START, 1 - (1 - SLOW_START) * left_s / self.slow_s)

    # --- what its engine says -------------------------------------------------------------------------------

    def hear_engine(self, engine: EngineLoad | None, at: float, until: float, now: float) -> None:
        """What its engine said at a moment, which counts until another; None where that is too long ago."""
        was_out = now < self.out_until
        self.engine, self.engine_at = engine, at
        self.holds = engine is not None and self.model in engine.adapters
        is_out = engine is not None and engine.state in (EngineState.COLD, EngineState.DOWN)
        self.out_until = until if is_out else 0.0
        if was_out and not is_out and engine is not None and engine.state is EngineState.READY:
            self.start_slowly(now, now)
        self.settle(now)
