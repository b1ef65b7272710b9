"""Which places the workers of this machine have put out of service for their failures.  Pure.

Each worker finds that out by its own requests, and chooses by nothing else: what is kept here is told to
people, and to no worker.  Times are those of the machine's one monotonic clock.
"""

from collections.abc import Iterable, Iterator, Mapping

from forebay.gateway.policy.load import EJECT_MAX_S, ReplicaLoad
from forebay.gateway.policy.news import SaidOut, is_time

PLACES_MAX = 20_000  #: of one worker


class Ejections:
    """What all workers said of it."""

    def __init__(self) -> None:
        self._workers: dict[str, dict[int, float]] = {}  # until when, of each place

    def note(self, name: str, outs: Iterable[SaidOut], now: float) -> None:
        """What a worker says; a time that is over says that a place is back.

        Raises:
            ValueError: it says too much.
        """
        own = self._workers.setdefault(name, {})
        for out in outs:
            own.pop(out.place, None)
            if is_time(out.until) and out.until > now:
                own[out.place] = min(out.until, now + EJECT_MAX_S)
        if len(own) > PLACES_MAX:
            raise ValueError(f"a worker names more than {PLACES_MAX} places")

    def leave(self, name: str) -> None:
        self._workers.pop(name, None)

    def count(self, place: int, now: float) -> int:
        """Workers that have it out of service."""
        return sum(own.get(place, 0.0) > now for own in self._workers.values())

    def read(self, workers: int, now: float) -> tuple[SaidOut, ...]:
        """All that is out of service, until the first of those that say so asks it again.

        Args:
            workers: that there are.
        """
        found: dict[int, list[float]] = {}
        for own in self._workers.values():
            for place, until in own.items():
                if until > now:
                    found.setdefault(place, []).append(until)
        return tuple(
            SaidOut(place, min(untils), len(untils), len(untils) >= workers)
            for place, untils in found.items()
        )


def take_outs(by_id: Mapping[int, ReplicaLoad], told: dict[int, float], now: float) -> Iterator[SaidOut]:
    """What a worker has to tell of its places.

    Args:
        told: what was told of each so far, which is brought up to date.
    """
    for place, load in by_id.items():
        if not load.ejected_until:
            continue
        until = load.ejected_until if load.ejected_until > now else 0.0
        known = told.get(place, 0.0)
        if until != known and (until or known > now):
            yield SaidOut(place, until)
        told[place] = until
    for place in [place for place in told if place not in by_id]:
        del told[place]
