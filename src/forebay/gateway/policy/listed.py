"""The order of places that are tried as the file lists them: those that are out of service come last.  Pure.

A place that was put out of service for its failures is asked first again after its time, but by one request a
second until one is answered well: where the order alone decides, all requests would go there at once, and
each would wait for what may be silent still.  What a place is and why it is out of service, others count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from forebay.core.errors import TargetError
from forebay.core.routes import Target
from forebay.gateway.policy.load import PROBE_S, ReplicaLoad
from forebay.gateway.policy.pick import find_ill
from forebay.gateway.policy.want import Reason

PROBES_DOUBLED_MAX = 5  #: times that the pause between two looks is doubled


class Place(Protocol):
    """What counts of a target here."""

    @property
    def target(self) -> Target: ...

    @property
    def load(self) -> ReplicaLoad | None: ...

    @property
    def problem(self) -> TargetError | None: ...


@dataclass(frozen=True, slots=True)
class ListedPlace:
    """One of which no worker has a state."""

    target: Target
    load: ReplicaLoad | None
    problem: TargetError | None = None


PlaceT = TypeVar("PlaceT", bound=Place)


def is_in_service(place: Place, now: float) -> bool:
    """Whether it can be sent to, as far as anybody knows."""
    load = place.load
    return place.problem is None and (load is None or load.is_fit(now))


def order_listed(places: Sequence[PlaceT], now: float) -> list[PlaceT]:
    """All of them, those that are out of service last; in each part as they stand."""
    fit = [place for place in places if is_in_service(place, now)]
    if len(fit) == len(places):
        return fit
    return [*fit, *(place for place in places if not any(place is each for each in fit))]


def find_listed_ill(load: ReplicaLoad, now: float) -> Reason | None:
    """Why such a place comes last."""
    return find_ill(load, now) or (None if load.is_fit(now) else Reason.EJECTED)


def note_probe(place: Place, now: float) -> None:
    """A request begins there: the next that looks whether the place is well again comes later, and twice as
    late for each that has not ended yet: what is silent is not to hold one more caller each second."""
    load = place.load
    if load is not None and load.is_on_trial:
        waiting = min(PROBES_DOUBLED_MAX, max(0, load.requests - load.others_requests))
        load.probe_at = now + PROBE_S * 2.0**waiting
