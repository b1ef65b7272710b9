"""The places that may answer a model, as choosing needs them: tiers of groups of like replicas.  Pure.

Built once for a snapshot and a set of rights; each choice only reads it.  It knows what a place is and holds
how loaded it is, and it never chooses.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import inf, log

from forebay.core.keys import TIERS
from forebay.core.routes import CAPABILITIES, Choosing, Target
from forebay.gateway.policy.load import PoolLoad, ReplicaLoad, Trouble

RING_POINTS = 32  #: of each replica on its pool's ring
NOMINAL_REQUESTS = 16  #: that a replica of unknown capacity is taken to serve at once, in scores
MIX = 0x9E3779B1  #: an odd number that mixes bits when they are multiplied with it
UNBOUNDED = 1 << 62  #: tokens of a context window that nobody named
ALL_CAPABILITIES = (1 << len(CAPABILITIES)) - 1
GroupKey = tuple[object, ...]
ENDLESS = Trouble(inf)


@dataclass(frozen=True, slots=True)
class Member:
    """One replica.

    Attributes:
        index: its place among the targets of the route.
        easy_requests: half of what it serves well: up to so many in flight, of a worker that does not see
            all of them its part, it keeps what is its own.
    """

    index: int
    target: Target
    load: ReplicaLoad
    easy_requests: float = 0.0


class Ring:
    """Consistent hashing: each replica owns the stretches before its points."""

    def __init__(self, members: Sequence[Member]) -> None:
        points = sorted(
            (_hash(f"{member.target.url} {member.target.model} {number}"), at)
            for at, member in enumerate(members)
            for number in range(RING_POINTS)
        )
        self._points = [point for point, _ in points]
        self.owners = [members[at] for _, at in points]

    def find(self, key: int) -> int:
        """Where in `owners` the walk for a key of 32 bits begins."""
        at = bisect_left(self._points, key)
        return at if at < len(self._points) else 0


class Group:
    """Replicas that differ in nothing but their address."""

    def __init__(self, members: Sequence[Member], load: PoolLoad) -> None:
        first = members[0].target
        self.members = tuple(members)
        self.load = load
        self.size = len(members)
        self.pool, self.tier, self.region = first.pool, first.tier, first.region
        self.capabilities = compute_mask(first.capabilities)
        self.window = UNBOUNDED if first.context_window is None else first.context_window
        self.distance_s = first.distance_s
        self.price = first.price_usd_per_mtok or 0.0
        weights = [member.target.weight for member in members if member.target.weight is not None]
        self.weight = sum(weights) if weights else None
        self.seed = _hash(f"{self.pool} {self.tier} {self.region}")
        #: Of the sessions of its tier: by its weight, else by its capacity.
        self.session_share = self.weight or load.requests_max or self.size * NOMINAL_REQUESTS

    @cached_property
    def ring(self) -> Ring:
        return Ring(self.members)

    def rank_for(self, session: int) -> float:
        """Where it stands among groups for a session of 32 bits; the least is its own.

        Rendezvous hashing by shares (Schindelhauer and Schomaker 2005): where groups come, go or get another
        share, no more sessions move than must.
        """
        return -log((_scatter(session ^ self.seed) + 1) / 0x100000001) / self.session_share


@dataclass(frozen=True, slots=True)
class Tier:
    """Groups of one kind of capacity."""

    name: str
    groups: tuple[Group, ...]
    loads: tuple[PoolLoad, ...]
    is_weighted: bool  #: its groups have shares
    is_reserve: bool  #: all of these are nothing: it comes after all others


def make_tier(name: str, groups: Sequence[Group]) -> Tier:
    """Of some groups."""
    is_weighted = any(group.weight is not None for group in groups)
    is_reserve = all(group.weight == 0.0 for group in groups)
    return Tier(name, tuple(groups), tuple(group.load for group in groups), is_weighted, is_reserve)


def order_tiers(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    """Those with groups that are to get nothing come last."""
    return tuple(sorted(tiers, key=lambda tier: tier.is_reserve))


class Fleet:
    """See the module.

    Attributes:
        lacking: capabilities that some group does not have; no other needs to be looked for in a request.
        window_min: tokens that fit everywhere.
        trouble: of all its pools; while there is none, all of its places are in service.
        adapter_key: 32 bits that stand for the model's name at the first place, for `Affinity.ADAPTER`.
    """

    def __init__(self, groups: Iterable[Group], choosing: Choosing) -> None:
        by_tier: dict[str, list[Group]] = {}
        for group in groups:
            by_tier.setdefault(group.tier, []).append(group)
        names = sorted(by_tier, key=lambda name: (TIERS.index(name) if name in TIERS else len(TIERS), name))
        self.tiers = order_tiers(make_tier(name, by_tier[name]) for name in names)
        self.groups = tuple(group for tier in self.tiers for group in tier.groups)
        self.loads = tuple(group.load for group in self.groups)
        self.trouble = find_trouble(self.loads)
        self.choosing = choosing
        self.size = sum(group.size for group in self.groups)
        self.lacking = 0
        self.window_min = UNBOUNDED
        self.adapter_key = _hash(self.groups[0].members[0].target.model) if self.groups else 0
        for group in self.groups:
            self.lacking |= ALL_CAPABILITIES & ~group.capabilities
            self.window_min = min(self.window_min, group.window)

    @cached_property
    def seats(self) -> dict[int, tuple[Group, Member]]:
        """By their place among the targets of the route."""
        return {member.index: (group, member) for group in self.groups for member in group.members}


def find_trouble(loads: Iterable[PoolLoad]) -> Trouble:
    """What these pools share; one that never ends where they share none, so that each is looked at."""
    found = {load.trouble for load in loads}
    return found.pop() if len(found) == 1 else ENDLESS


def compute_mask(capabilities: Iterable[str] | None) -> int:
    """A bit for each of `CAPABILITIES`; all of them where nobody said."""
    if capabilities is None:
        return ALL_CAPABILITIES
    return sum(1 << CAPABILITIES.index(each) for each in set(capabilities) if each in CAPABILITIES)


def make_group_key(target: Target) -> GroupKey:
    """The same for those that one group may hold."""
    return (
        target.pool,
        target.tier,
        target.region,
        target.weight,
        target.capabilities,
        target.context_window,
        target.distance_s,
        target.price_usd_per_mtok,
    )


def _scatter(bits: int) -> int:
    """32 bits whose order says nothing of that of others (the end of MurmurHash3)."""
    bits = (bits ^ bits >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    bits = (bits ^ bits >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return bits ^ bits >> 16


def _hash(text: str) -> int:
    """32 bits, the same in every worker."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest())
