"""What fails at a pool, and what that costs a request, in seconds.

Attempts that fail before content cost time and a retry; answers that break off cost their callers more.
Pure: it absorbs what happened and decides nothing.  Times are seconds of one clock, handed in.
"""

from math import exp

from forebay.gateway.policy.pace import Pace

LAPSE_DECAY_S = 3.0  #: in which the share of failures falls to 37 % where nothing new is seen
LAPSE_STEP = 0.1  #: the weight of the newest answer or failure in their share
LAPSE_MIN = 0.05  #: less says nothing
LAPSE_MAX = 0.99  #: more would say that nothing ever comes from there
RETRY_S = 0.1  #: what an attempt that fails costs besides its time, while hardly any was made
RETRY_ROOM_MIN = 0.01  #: of the budget of retries: less makes none dearer
BREAK_S = 10.0  #: what an answer that breaks off costs its caller, whom nobody can give another
BREAK_DECAY_S = 30.0  #: in which what is known of answers that broke off falls to 37 %
BREAK_MIN = 0.05  #: of one: less says nothing
BREAK_PRIOR = 20.0  #: whole answers that are taken for granted


class Trouble:
    """Of many pools together: until when one of them may have a replica that is out of service.

    For all who choose, so that most requests make one comparison in place of one for each pool.

    Attributes:
        retry_s: seconds of an answer that a retry is worth at this moment, as there are only so many.
    """

    __slots__ = ("retry_s", "until")

    def __init__(self, until: float = 0.0) -> None:
        self.until = until
        self.retry_s = RETRY_S


def compute_retry_s(strain: float) -> float:
    """The price of a retry, the higher the less is left of their budget.

    Args:
        strain: the share of it that is spent.
    """
    return RETRY_S / max(RETRY_ROOM_MIN, 1 - strain)


class Faults(Pace):
    """Of all replicas of a pool together.

    Attributes:
        has_faults: whether anything is known that failed.
        lost_s: until the latest failures were seen.
        trial_at: from when on it may be tried while it is out of service.
    """

    __slots__ = (
        "_breaks", "_broke_at", "_lapsed_at", "_lapses", "_wholes", "has_faults", "lost_s", "trial_at",
        "trouble",
    )  # fmt: skip

    def __init__(self, trouble: Trouble | None = None) -> None:
        super().__init__()
        self.trouble = Trouble() if trouble is None else trouble
        self.has_faults = False
        self._lapses = self._lapsed_at = 0.0  # share of the latest attempts that failed
        self._breaks = self._wholes = self._broke_at = (
            0.0  # answers that broke off, and those since that did not
        )
        self.lost_s = self.trial_at = 0.0

    def note_failure(self, lost_s: float, now: float) -> None:
        """An attempt at one of its replicas failed, after so long."""
        lapses = self.compute_lapses(now)
        self.lost_s = max(lost_s, self.lost_s + (lost_s - self.lost_s) * LAPSE_STEP) if lapses else lost_s
        self._lapses, self._lapsed_at = lapses + (1 - lapses) * LAPSE_STEP, now
        self.has_faults = True

    def note_break(self, now: float) -> None:
        """An answer of one broke off after its caller had seen a part."""
        self._breaks, self._wholes = self._fade(now)
        self._breaks += 1.0
        self._broke_at = now
        self.has_faults = True

    def note_answer(self, now: float) -> None:
        """One was answered well."""
        lapses = self.compute_lapses(now) * (1 - LAPSE_STEP)
        self._lapses, self._lapsed_at = (lapses if lapses >= LAPSE_MIN else 0.0), now
        breaks, wholes = self._fade(now)
        self._breaks, self._wholes, self._broke_at = (
            (breaks if breaks >= BREAK_MIN else 0.0),
            wholes + 1.0,
            now,
        )
        self.has_faults = self._lapses > 0.0 or self._breaks > 0.0

    def take_back_failure(self) -> None:
        """The last failure was not its fault."""
        self._lapses = max(0.0, (self._lapses - LAPSE_STEP) / (1 - LAPSE_STEP))

    def _fade(self, now: float) -> tuple[float, float]:
        if self._breaks == 0.0:
            return 0.0, 0.0
        left = exp(min(0.0, self._broke_at - now) / BREAK_DECAY_S)
        return self._breaks * left, self._wholes * left

    def compute_lapses(self, now: float) -> float:
        """The share of the latest attempts that failed."""
        if self._lapses == 0.0:
            return 0.0
        lapses = self._lapses * exp(min(0.0, self._lapsed_at - now) / LAPSE_DECAY_S)
        return lapses if lapses >= LAPSE_MIN else 0.0

    def compute_break_s(self, now: float) -> float:
        """What it costs a request that answers break off there, in seconds."""
        breaks, wholes = self._fade(now)
        return BREAK_S * breaks / (breaks + wholes + BREAK_PRIOR) if breaks >= BREAK_MIN else 0.0

    def add_faults(self, answer_s: float, now: float) -> float:
        """Seconds until an answer, with the attempts that fail before one is well, and what breaks off."""
        lapses = min(LAPSE_MAX, self.compute_lapses(now))
        answer_s += self.compute_break_s(now)
        return answer_s + lapses / (1 - lapses) * (answer_s + self.lost_s + self.trouble.retry_s)
