"""What other workers have at a pool by now, where what they told is older than their requests last.  Pure.

News of the others are some tenths of a second old.  Where answers take longer than that, the count that was
told is still nearly true.  Where they take less, nearly all that was counted has ended since, and others have
come: what is left of the told count falls with the mean time that a request stays, and what has come is what
the others have there on average (by Little's law, their rate times that time).  So the shorter answers are,
the more the mean counts, and the less a tier follows what was true a moment ago: else all workers together
would fill and leave it in turns.

How long requests stay a worker sees by its own: its mean count by the rate at which it begins them.  Who
begins none knows nothing of it, and takes what was told as it is.
"""

from math import exp

NEWS_AGE_S = 0.5  #: of what others told, at the most, until it is told anew
MEAN_S = 1.5  #: in which a mean comes 63 % nearer to what is
RATE_MIN = 0.5  #: requests a second; of fewer nobody can tell how long they stay


class Flow:
    """What is known of the requests of a pool: those of this worker, and those of the others.

    Attributes:
        stay_s: how long its requests stay, on average; 0 if nobody knows.
    """

    __slots__ = ("_at", "_begun", "_own", "_rate", "others_requests", "others_tokens", "stay_s")

    def __init__(self, begun: int, now: float, others: tuple[int, int]) -> None:
        self._at, self._begun = now, begun
        self._own = self._rate = 0.0
        self.others_requests, self.others_tokens = map(float, others)  #: means
        self.stay_s = 0.0

    def update(self, own: int, begun: int, others: tuple[int, int], now: float) -> None:
        """To be called some times a second.

        Args:
            own: requests of this worker in flight.
            begun: how many it has begun there ever.
            others: what the other workers told last: requests and tokens.
        """
        passed_s = now - self._at
        if passed_s <= 0.0:
            return
        part = 1.0 - exp(-passed_s / MEAN_S)
        self._own += (own - self._own) * part
        self._rate += ((begun - self._begun) / passed_s - self._rate) * part
        self.others_requests += (others[0] - self.others_requests) * part
        self.others_tokens += (others[1] - self.others_tokens) * part
        self._at, self._begun = now, begun
        self.stay_s = self._own / self._rate if self._rate >= RATE_MIN else 0.0

    def estimate_others(self, others: tuple[int, int]) -> tuple[float, float]:
        """What the others have by now."""
        if not self.stay_s:
            return others
        left = exp(-NEWS_AGE_S / self.stay_s)
        return (
            others[0] * left + self.others_requests * (1.0 - left),
            others[1] * left + self.others_tokens * (1.0 - left),
        )
