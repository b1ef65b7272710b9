"""An engine with continuous batching, as arithmetic.  Pure: it acts only when its timeline calls it.

A request takes one of the slots, else it waits in the engine's line, first come first served.  Its prompt is
read, one prompt after the other; then the first token comes; then it decodes with all others that do.  With
`n` streams each token takes `step_s + step_per_stream_s * n`; while a prompt is being read the streams go on
at `overlap` of that speed.  Where `waits_for_step`, a request that comes while others decode is looked at
when their step ends.  Between events all streams move at one speed, so what is left of each is a number
on a common scale (as in processor sharing) and an event costs no look at all of them.

What is not here: the key-value cache and its end, prefix caches, speculative decoding, and what steps of
whole tokens make of gaps: a stream's mean is right, not each of its gaps.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

import msgspec

from forebay.sim.timeline import Timeline

WAIT_LOOK_S = 10.0  #: over which an engine's mean wait in its line is told
TINY = 1e-12  #: of a token, which rounding may leave


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one replica is.

    Attributes:
        first_s: from when a prompt has been read to the first token, whoever else is there.
        prefill_s_per_token: for reading a prompt, one after the other.
        step_s, step_per_stream_s: of a token with n streams: `step_s + step_per_stream_s * n`.
        overlap: the share of their speed that streams keep while a prompt is being read, from 0 to 1.
        waits_for_step: a prompt that comes while streams decode is read once their token is out.
        slots: requests in progress at once; None where no bound was seen.
        first_sigma, token_sigma: by which requests differ that are alike: the standard deviation of the
            logarithm of the time to the first token, and of the time of a token.
        streams_measured: at once on a replica, at most, when it was measured; above that it is extrapolated.
    """

    first_s: float = 0.0
    prefill_s_per_token: float = 0.0
    step_s: float
    step_per_stream_s: float = 0.0
    overlap: float = 0.0
    waits_for_step: bool = False
    slots: int | None = None
    first_sigma: float = 0.0
    token_sigma: float = 0.0
    streams_measured: int = 0


class Job:
    """One request at an engine.

    Args:
        first_factor, token_factor: by which it differs from the mean: 1 is the mean.
        on_first, on_end: called with the first token and with the last.
    """

    __slots__ = (
        "first_factor",
        "input_tokens",
        "on_end",
        "on_first",
        "output_tokens",
        "since",
        "token_factor",
    )

    def __init__(
        self,
        input_tokens: int,
        output_tokens: int,
        on_first: Callable[[], None],
        on_end: Callable[[], None],
        first_factor: float = 1.0,
        token_factor: float = 1.0,
    ) -> None:
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        self.on_first, self.on_end = on_first, on_end
        self.first_factor, self.token_factor = first_factor, token_factor
        self.since = 0.0


class Engine:
    """See the module.

    Attributes:
        running: requests that have a slot.
        running_max: most of them at any moment.
    """

    def __init__(self, profile: EngineProfile, time: Timeline) -> None:
        self.profile = profile
        self.running = self.running_max = 0
        self._time = time
        self._slots = inf if profile.slots is None else profile.slots
        self._waiting: deque[Job] = deque()
        self._prompts: deque[Job] = deque()
        self._is_reading = self._is_due = False  # a prompt is being read, or as soon as a step ends
        self._decoding: list[tuple[float, int, Job]] = []  # by how far all have to come until it ends
        self._numbers = count()
        self._done = 0.0  # tokens that each stream has had, since the engine stands
        self._at = 0.0  # when that was so
        self._step_from = 0.0  # where on that scale steps began to follow each other
        self._plan = 0  # the newest, older ones are void
        self._waits: deque[tuple[float, float]] = deque()

    @property
    def waiting(self) -> int:
        """Requests in the engine's own line."""
        return len(self._waiting)

    def compute_wait_s(self) -> float:
        """The mean in the engine's line, of those that left it of late."""
        while self._waits and self._waits[0][0] < self._time.now - WAIT_LOOK_S:
            self._waits.popleft()
        return sum(wait_s for _, wait_s in self._waits) / len(self._waits) if self._waits else 0.0

    def submit(self, job: Job) -> None:
        """A request comes."""
        job.since = self._time.now
        self._waiting.append(job)
        self._admit(self._compute_step_left_s())

    def _admit(self, wait_s: float = 0.0) -> None:
        while self._waiting and self.running < self._slots:
            job = self._waiting.popleft()
            self._waits.append((self._time.now, self._time.now - job.since))
            self.running += 1
            self.running_max = max(self.running_max, self.running)
            self._prompts.append(job)
        if self._is_reading or self._is_due or not self._prompts:
            return
        if wait_s > 0.0:
            self._is_due = True
            self._time.call_at(self._time.now + wait_s, self._read)
        else:
            self._read()

    def _compute_step_left_s(self) -> float:
        """Until the tokens that are being computed are out.  Who asks when a token has just come is too late
        for the next one."""
        if not self.profile.waits_for_step or not self._decoding or self._is_reading:
            return 0.0
        self._move()
        return (1.0 - (self._done - self._step_from) % 1.0) / self._compute_speed()

    def _read(self) -> None:
        self._is_due = False
        job = self._prompts.popleft()
        self._move()
        self._is_reading = True
        taken_s = job.input_tokens * self.profile.prefill_s_per_token * job.first_factor
        self._time.call_at(self._time.now + taken_s, lambda: self._end_reading(job))
        self._replan()

    def _end_reading(self, job: Job) -> None:
        self._move()
        self._is_reading = False
        self._time.call_at(
            self._time.now + self.profile.first_s * job.first_factor, lambda: self._begin_decoding(job)
        )
        if self._prompts:
            self._read()
        else:
            self._step_from = self._done
            self._replan()

    def _begin_decoding(self, job: Job) -> None:
        job.on_first()
        if job.output_tokens < 2:
            self._leave(job)
            return
        self._move()
        end = self._done + (job.output_tokens - 1) * job.token_factor
        heappush(self._decoding, (end, next(self._numbers), job))
        self._replan()

    def _leave(self, job: Job) -> None:
        self.running -= 1
        job.on_end()
        self._admit()

    # --- the common scale -----------------------------------------------------------------------------------

    def _compute_speed(self) -> float:
        """Tokens a second of each stream."""
        profile, streams = self.profile, len(self._decoding)
        speed = 1.0 / max(profile.step_s + profile.step_per_stream_s * streams, 1e-9)
        return speed * profile.overlap if self._is_reading else speed

    def _move(self) -> None:
        """To this moment.  To be called before anything changes that the speed follows from."""
        now = self._time.now
        if now > self._at:
            if self._decoding:
                self._done += (now - self._at) * self._compute_speed()
            self._at = now

    def _replan(self) -> None:
        """Something has changed that the speed follows from."""
        self._plan += 1
        speed = self._compute_speed()
        if not self._decoding or speed <= 0.0:
            return
        plan = self._plan
        left = max(0.0, self._decoding[0][0] - self._done)
        self._time.call_at(self._time.now + left / speed, lambda: self._end_first(plan))

    def _end_first(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._move()
        self._done = max(self._done, self._decoding[0][0])
        ended = []
        while self._decoding and self._decoding[0][0] <= self._done + TINY:
            ended.append(heappop(self._decoding)[2])
        self._replan()
        for job in ended:
            self._leave(job)
