"""Decides what becomes of a request that meets a full fleet: a place elsewhere, a wait, or an early refusal.
Pure: `now` and the draw are arguments.

Full is a place that serves what it serves well at once (`requests_max`, `tokens_max`): beyond that an engine
makes all of its requests slower and serves none sooner.  So whoever finds no room waits in front of it, where
the order can still be chosen and where a caller that leaves costs nothing.

Who waits is told beforehand whether it is worth it.  The places of a line get free at a rate that is
measured; what stands before a request and that rate say how long it would wait, and if that is longer than it
may, it is refused at once.  Under a load that stays too high a line would always be as long as its deadline
allows, and serve nobody in less.  So a line that stands longer than a whole wait is no burst any more: those
whose callers named no time are then let in for a quarter of it, which keeps the places as busy and the
answers young.  That is what controlled delay does for packets (Nichols and Jacobson 2012), at the way in.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, inf

from forebay.core.keys import PRIORITIES
from forebay.core.limits import QueueRules
from forebay.gateway.policy.fairness import FACTORS
from forebay.gateway.policy.fleet import Fleet, Group, Member, Tier, make_tier
from forebay.gateway.policy.load import TINY, PoolLoad
from forebay.gateway.policy.route import NOMINAL_S, Reason, Want, choose, find_lack, find_unfit
from forebay.gateway.policy.spill import CURVES

SAMPLES_MIN, SAMPLES_MAX = 64, 2048  #: places that got free, by which the rate goes: of two rounds at least
GUESSED = 0.25  #: of a line's places: so many are as good as seen at the rate that was guessed
STANDING = (0.25, 0.25, 1.0)  #: by class, of a wait that nobody named, in a line that stands; batch may wait
WAIT_TOLD_MAX_S = 600.0  #: that a caller is told to come again after
BATCH = PRIORITIES[-1]


# --- where there is room ------------------------------------------------------------------------------------


def find_seat(fleet: Fleet, tiers: Sequence[Tier], want: Want, now: float, draw: float) -> int | None:
    """A place with room, of the first tier that has any; None where all are full.

    Args:
        tiers: of the fleet, with those of their groups that can answer the request.
    """
    for tier in tiers:
        free = [group for group in tier.groups if group.load.has_room(now) and not _is_out(group, now)]
        if free:
            return _pick(fleet, free, want, now, draw)
    if any(not _is_out(group, now) for tier in tiers for group in tier.groups):
        return None
    for tier in tiers:  # all are out of service, so all are tried rather than none
        free = [group for group in tier.groups if group.load.has_room(now)]
        if free:
            return _pick(fleet, free, want, now, draw)
    return None


def _pick(fleet: Fleet, groups: Sequence[Group], want: Want, now: float, draw: float) -> int:
    """Of groups of one tier that all have room: as any request is sent, but to no replica that is full."""
    index = choose(Fleet(groups, fleet.choosing), want, now, draw, 1).order[0]
    group, member = fleet.seats[index]
    if has_place(group, member) or (want.is_sticky and want.affinity is not None):
        return index
    ill = find_unfit(group, now)
    free = [each for each in group.members if each.load not in ill and has_place(group, each)]
    return min(free, key=lambda each: each.load.tokens).index if free else index


def _is_out(group: Group, now: float) -> bool:
    return len(find_unfit(group, now)) >= group.size


def has_place(group: Group, member: Member) -> bool:
    """Whether one more request may begin at a replica of a group that has room."""
    most, load = member.target.requests_max, group.load
    if load.saturated and member.load in load.saturated and len(load.saturated) < group.size:
        return False
    if most is None or group.size == 1 or not load.requests_max:
        return True
    return member.load.requests < ceil(most * load.growth * load.requests_share / load.requests_max - TINY)


def list_eligible(fleet: Fleet, want: Want) -> tuple[Tier, ...]:
    """The tiers with those of their groups that can answer a request, whatever their state."""
    lacks = {group: find_lack(group, want) for group in fleet.groups}
    able = [group for group, lack in lacks.items() if lack is None]
    if not able:  # its length is an estimate: the widest are tried
        narrow = [group for group, lack in lacks.items() if lack is Reason.WINDOW]
        widest = max((group.window for group in narrow), default=0)
        able = [group for group in narrow if group.window == widest]
    able = [group for group in able if group.weight != 0.0] or able
    if len(able) == len(fleet.groups):
        return fleet.tiers
    tiers = []
    for tier in fleet.tiers:
        groups = [group for group in tier.groups if group in able]
        if groups:
            tiers.append(make_tier(tier.name, groups))
    return tuple(tiers)


def limit_tiers(
    tiers: tuple[Tier, ...],
    priority: str,
    spill_at: float,
    draw: float,
    count_waiting: Callable[[PoolLoad], int],
) -> tuple[Tier, ...]:
    """The tiers in which a request that finds its own full may look for room, or wait.

    All, but for batch requests: those wait where it is cheap, and as what waits there grows, an ever larger
    share of them goes on, by the same curve as if all of it was in progress.
    """
    if priority != BATCH:
        return tiers
    offset, width, _ = CURVES[BATCH]
    for at, tier in enumerate(tiers[:-1]):
        places = sum(map(count_places, tier.loads))
        used = sum(load.used * count_places(load) for load in tier.loads)
        waiting = max(map(count_waiting, tier.loads))
        share = ((used + waiting) / places - spill_at - offset) / width
        if draw >= share:
            return tiers[: at + 1]
        draw /= min(1.0, share)
    return tiers


def count_places(load: PoolLoad) -> float:
    """How many requests a pool serves at once; where only tokens bound that, of the size of those there."""
    if load.requests_share:
        return load.requests_share
    return max(1.0, load.requests / load.used) if load.requests and load.used else 1.0


def count_free(tiers: Sequence[Tier], now: float) -> int:
    """Requests for which there is room that this worker may not fill yet."""
    return sum(
        load.count_free(now)
        for tier in tiers
        for load in tier.loads
        if load.allowed_requests < inf or load.allowed_tokens < inf
    )


# --- how long a wait would be -------------------------------------------------------------------------------


class Drain:
    """How fast the places of one line get free, from when it began to stand on.

    A guess counts until there is enough to see: all places, once in the time of an answer.  What is seen must
    be two rounds of all places, for those that were taken together get free together.
    """

    __slots__ = ("_guess_s", "_guessed", "_most", "_seen", "_since")

    def __init__(self, places: float, answer_s: float, now: float) -> None:
        self._guessed = max(1.0, places * GUESSED)
        self._guess_s = self._guessed * max(answer_s, TINY) / max(places, TINY)
        self._most = min(SAMPLES_MAX, max(SAMPLES_MIN, ceil(2 * places)))
        self._seen: deque[float] = deque()
        self._since = now

    def guess_anew(self, other: "Drain") -> None:
        """Another guess is better, if it still goes by one."""
        if self._guess_s:
            self._guessed, self._guess_s = other._guessed, other._guess_s

    def note(self, now: float) -> None:
        """A place has got free."""
        self._seen.append(now)
        if len(self._seen) > self._most:
            self._since = self._seen.popleft()
            self._guessed = self._guess_s = 0.0

    def compute_rate(self, now: float) -> float:
        """Places in a second.  It falls while none gets free."""
        return (len(self._seen) + self._guessed) / max(TINY, now - self._since + self._guess_s)

    def estimate_wait_s(self, before: int, now: float) -> float:
        """Of a request that has so many before it."""
        return (before + 1) / self.compute_rate(now)


def guess_drain(tiers: Sequence[Tier], want: Want, now: float) -> Drain:
    """Of places that have just become full for this worker, by how long answers took there."""
    places = rate = 0.0
    for tier in tiers:
        for load in tier.loads:
            count = max(1.0, min(count_places(load), load.allowed_requests))
            places += count
            rate += count / max(load.estimate(want.output_tokens, now) or NOMINAL_S, TINY)
    return Drain(places, places / rate, now)


def compute_allowed_s(rules: QueueRules, rank: int, named_s: float | None, stood_s: float) -> float:
    """How long a request may wait.

    Args:
        named_s: what its caller named; None if nothing.
        stood_s: how long the line has not been empty.
    """
    if named_s is not None:
        return min(named_s, rules.wait_max_s)
    allowed_s = min(rules.default_wait_s[rank], rules.wait_max_s)
    return allowed_s * STANDING[rank] if stood_s > allowed_s else allowed_s


def round_retry_s(wait_s: float) -> int:
    """What a caller is told: whole seconds, at least one."""
    return max(1, ceil(min(wait_s, WAIT_TOLD_MAX_S)))


# --- between lines ------------------------------------------------------------------------------------------


class Share:
    """The part that one of several lines has in places that all of them wait for.

    Lines differ in where their requests may go: by rights, by what they need.  Within a line
    `fairness.FairQueue` says who is next; between them go finish tags as between its classes, each place
    weighing what it weighs for the class of whom stands first.
    """

    __slots__ = ("start",)

    def __init__(self, clock: int) -> None:
        self.start = clock

    def find_end(self, rank: int) -> int:
        """Where its next request ends; the line with the least is next."""
        return self.start + FACTORS[rank]

    def take(self, rank: int) -> int:
        """A place went to it; returns where the clock of all lines stands then, at the least."""
        self.start += FACTORS[rank]
        return self.start
