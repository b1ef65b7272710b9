"""What one mirror of one model has in hand in a worker, and whether it may have more.  Pure.

Caps are those of `core.routes.Mirror`, of which a worker has its share, and one copy at least.
"""

from collections import deque
from hashlib import blake2b
from typing import Generic, TypeVar

from forebay.core.routes import Mirror

Waiting = TypeVar("Waiting")
_RANGE = 1 << 64


def is_sampled(request_id: str, mirror: Mirror) -> bool:
    """Whether a request is one of the mirror's share: the same for whoever asks, and at any time."""
    drawn = blake2b(request_id.encode(), digest_size=8, key=mirror.model.encode()[:64]).digest()
    return int.from_bytes(drawn) < mirror.share * _RANGE


class Lane(Generic[Waiting]):
    """See the module.  Times are seconds of one clock.

    Args:
        model, mirror: public names.

    Attributes:
        running: copies in flight.
        waiting: others, each with the time from which on it is too late.
        dropped: copies that were not sent since the last that was.
    """

    __slots__ = ("_filled_at", "_room", "dropped", "mirror", "model", "running", "waiting")

    def __init__(self, model: str, mirror: str) -> None:
        self.model = model
        self.mirror = mirror
        self.running = 0
        self.waiting: deque[tuple[Waiting, float]] = deque()
        self.dropped = 0
        self._room = 1.0  # copies by rate
        self._filled_at = 0.0

    def find_refusal(self, mirror: Mirror, size: int, workers: int, now: float) -> str:
        """Why a copy of so many bytes is not taken; empty where it is, which then counts against the rate."""
        if size > mirror.bytes_max:
            return "too_large"
        if len(self.waiting) >= share(mirror.queue_max, workers):
            return "queue_full"
        if mirror.per_s is not None:
            rate = mirror.per_s / workers
            self._room = min(max(1.0, rate), self._room + (now - self._filled_at) * rate)
            self._filled_at = now
            if self._room < 1.0:
                return "too_many"
            self._room -= 1.0
        return ""

    def may_start(self, mirror: Mirror, workers: int) -> bool:
        return self.running < share(mirror.requests_max, workers)


def share(most: int, workers: int) -> int:
    """A worker's part of a cap."""
    return -(-most // workers)
