"""What is known of each place, over snapshots: who serves how much, and how fast.

It owns the counts that choosing reads.  A place is an address, a model's name there and whose account pays:
models that share one share its counts.  Its own requests it sees at once; what the other workers have there,
what was said to them, and what engines say of themselves it is told over the board (`board`), and while
nobody tells it anything each worker takes its share of every capacity for the whole.  It never chooses, and
it never asks a place anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from forebay.core.engine_load import ENGINE_STALE_S, EngineLoad
from forebay.core.routes import Order, Route, RouteTable, Target
from forebay.gateway.place_names import AccountKey, Place, PlaceNames, find_account, find_place
from forebay.gateway.policy.account import Account
from forebay.gateway.policy.fleet import Group, GroupKey, Member, make_group_key
from forebay.gateway.policy.load import PoolLoad, ReplicaLoad, Trouble
from forebay.gateway.policy.told import tell_pool

PoolKey = tuple[object, ...]
EARLY_MAX = 4096  #: targets that no table has yet, of which what engines said is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Everything that is counted under one table, and what feeds it."""

    replicas: dict[Place, ReplicaLoad]
    pools: dict[PoolKey, PoolLoad]
    members: dict[PoolKey, tuple[ReplicaLoad, ...]]  #: of each pool, each once
    targets: Mapping[str, ReplicaLoad]  #: by a target's id
    accounts: dict[AccountKey, Account]
    users: dict[Place, AccountKey]  #: places that use up an account's quota
    slow_s: dict[Place, float]  #: of places that are chosen by load; the order of a file knows no slow start
    dealt: Mapping[int, tuple[PoolLoad, ...]]  #: that workers share out, by the name that they have for each
    has_pools: bool  #: the table describes some, of which more may come
    workers: int  #: between whom capacity is shared while each sees its own requests alone


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetParts:
    """What is counted under one table."""

    replicas: Mapping[str, ReplicaLoad]  #: by a target's id; the others are not counted
    groups: Mapping[str, tuple[Group, ...]]  #: by public name, of routes that are chosen by load
    counts: Counts  #: for `Loads.commit`


class Loads:
    """See the module.

    Args:
        names: by which other workers know places.
    """

    def __init__(self, names: PlaceNames | None = None) -> None:
        self._names = names or PlaceNames()
        self._counts = Counts(
            replicas={}, pools={}, members={}, targets={}, accounts={}, users={}, slow_s={}, dealt={},
            has_pools=False, workers=1,
        )  # fmt: skip
        self._seen_workers = 1  #: whose requests it sees, itself among them
        self._expected = 0  # workers on all machines, as the board believes; 0 where it knows of one
        self._allotted: dict[int, tuple[int, int]] = {}  # what it may fill of pools, where that is dealt
        self.by_id: dict[int, ReplicaLoad] = {}  #: places, by the names that workers have for them
        self.accounts: dict[int, Account] = {}  #: likewise
        self.trouble = Trouble()
        self._early: dict[str, tuple[EngineLoad, float]] = {}  # of targets that no table had yet

    def follow(self, table: RouteTable, workers: int) -> FleetParts:
        """What will be counted under a table, with what is known of places that stay.

        It changes nothing: until `commit`, the counts of the table before are fed.

        Args:
            workers: between whom a place's capacity is shared while each sees its own requests alone.
        """
        chosen = [route for route in table.routes if is_chosen(route)]
        watched = list_counted(table)
        known = self._counts
        targets = {find_place(target): target for route in watched for target in route.targets}
        replicas = {
            place: known.replicas.get(place) or ReplicaLoad(self._names.name_place(place), place[1])
            for place in targets
        }
        pools: dict[PoolKey, PoolLoad] = {}
        members: dict[PoolKey, tuple[ReplicaLoad, ...]] = {}
        groups = {}
        dealt: dict[int, dict[PoolKey, PoolLoad]] = {}
        share = max(1.0, (self._expected or workers) / self._seen_workers)
        for route in chosen:
            found: dict[GroupKey, list[Member]] = {}
            for index, target in enumerate(route.targets):
                easy = (target.requests_max or 0) / 2
                member = Member(index, target, replicas[find_place(target)], easy)
                found.setdefault(make_group_key(target), []).append(member)
            made = []
            for key, group in found.items():
                where = tuple(find_place(member.target) for member in group)
                capacity = compute_capacity(member.target for member in group)
                pool_key: PoolKey = (key, where, capacity)
                if pool_key not in pools:
                    loads = tuple(dict.fromkeys(member.load for member in group))
                    members[pool_key] = loads
                    pools[pool_key] = known.pools.get(pool_key) or PoolLoad(
                        len(loads), *capacity, share, self.trouble
                    )
                made.append(Group(group, pools[pool_key]))
                if route.choosing.queue is not None and any(capacity):
                    dealt.setdefault(self._names.name_pool(where, capacity), {})[pool_key] = pools[pool_key]
            groups[route.model] = tuple(made)
        counted = {
            target.id: replicas[find_place(target)]
            for route in table.routes
            for target in route.targets
            if find_place(target) in replicas
        }
        users, accounts = self._find_accounts(watched)
        slow_s: dict[Place, float] = {}
        for target in (target for route in chosen for target in route.targets):
            place = find_place(target)
            slow_s[place] = max(slow_s.get(place, 0.0), target.slow_start_s)
        counts = Counts(
            replicas=replicas,
            pools=pools,
            members=members,
            targets=counted,
            accounts=accounts,
            users=users,
            slow_s=slow_s,
            dealt={id: tuple(same.values()) for id, same in dealt.items()},
            has_pools=bool(table.pools),
            workers=workers,
        )
        return FleetParts(replicas=counted, groups=groups, counts=counts)

    def commit(self, parts: FleetParts, now: float | None = None) -> None:
        """From now on these are counted.  To be called once nothing can fail any more: what is in flight ends
        under the counts that are fed.

        Args:
            now: the loop's time, from which on places start slowly that no table before had; None for none.
        """
        counts, before = parts.counts, self._counts
        new = [load for place, load in counts.replicas.items() if place not in before.replicas]
        for place, replica in counts.replicas.items():
            replica.pools = []
            replica.slow_s = counts.slow_s.get(place, 0.0)
            replica.account = counts.accounts[counts.users[place]] if place in counts.users else None
        for account in counts.accounts.values():
            account.users = [load for load in counts.replicas.values() if load.account is account]
        for pool_key, pool in counts.pools.items():
            members = counts.members[pool_key]
            if pool_key not in before.pools:
                _fill(pool, members)
            for replica in members:
                replica.pools.append(pool)
        self._counts = counts
        self.by_id = {replica.id: replica for replica in counts.replicas.values()}
        self.accounts = {account.id: account for account in counts.accounts.values()}
        self._allotted = {id: parts for id, parts in self._allotted.items() if id in counts.dealt}
        self._share()
        for pool_key, pool in before.pools.items():
            if pool_key not in counts.pools:  # requests may wait for it still, and nobody deals it any more
                self._allow(pool, None)
        if now is not None and before.replicas:
            for replica in new:
                replica.start_slowly(now, now)
        early, self._early = self._early, {}
        for load, at in early.values():
            if now is not None and now <= at + ENGINE_STALE_S:
                self.hear_engine(load, at, now)

    def _find_accounts(
        self, routes: Iterable[Route]
    ) -> tuple[dict[Place, AccountKey], dict[AccountKey, Account]]:
        users = {
            find_place(target): find_account(target)
            for route in routes
            for target in route.targets
            if target.shares_quota
        }
        known, name = self._counts.accounts, self._names.name_account
        return users, {key: known.get(key) or Account(name(key)) for key in dict.fromkeys(users.values())}

    @property
    def is_of_interest(self) -> bool:
        """Whether anybody need tell it anything: there is something to choose, or soon may be."""
        return self._counts.has_pools or bool(self.by_id)

    # --- what is told ---------------------------------------------------------------------------------------

    def see_workers(self, count: int, expected: int = 0) -> None:
        """The requests of so many workers are known, this one among them; 1 while it knows its own alone.

        Args:
            expected: workers of all machines, known or not, that fill the same places; 0 where nobody knows
                of any but those of the snapshot.
        """
        if (count, expected) != (self._seen_workers, self._expected):
            self._seen_workers, self._expected = count, expected
            self._share()

    def _share(self) -> None:
        if self._seen_workers == 1:
            self._allotted.clear()
        workers = max(1.0, (self._expected or self._counts.workers) / self._seen_workers)
        for pool in self._counts.pools.values():
            pool.set_workers(workers)
            pool.set_counts(pool.requests, pool.tokens)
        for id, pools in self._counts.dealt.items():
            for pool in pools:
                self._allow(pool, self._allotted.get(id))

    def _allow(self, pool: PoolLoad, allotted: tuple[int, int] | None) -> bool:
        """What was dealt to it, or else its share while it knows that others fill the rest."""
        if allotted is None and self._seen_workers == 1:
            return pool.allow(inf, inf)  # what it takes for the whole is its share
        if allotted is None:
            workers = max(self._seen_workers, self._expected or self._counts.workers)
            allotted = max(1, int(pool.requests_max / workers)), max(1, int(pool.tokens_max / workers))
        requests, tokens = allotted
        return pool.allow(requests if pool.requests_max else inf, tokens if pool.tokens_max else inf)

    @property
    def dealt(self) -> Mapping[int, tuple[PoolLoad, ...]]:
        """Pools of which workers that know of each other fill only what was dealt to them; none while it
        knows of nobody."""
        return self._counts.dealt if self._seen_workers > 1 else {}

    def allot(self, id: int, requests: int, tokens: int) -> tuple[PoolLoad, ...]:
        """This worker may fill so much of a pool; returns what it may fill more of than before."""
        pools = self.dealt.get(id)
        if pools is None:
            return ()
        allotted = self._allotted[id] = requests, tokens
        return tuple([pool for pool in pools if self._allow(pool, allotted)])

    def forget_others(self, now: float) -> None:
        """Nobody tells any more what the other workers have."""
        self._allotted.clear()
        for pool in self._counts.pools.values():
            pool.flow, pool.drift = None, 0.0
        self.see_workers(1)
        for replica in self.by_id.values():
            replica.set_others(0, 0, now)

    def set_others(self, place: int, requests: int, tokens: int, now: float) -> None:
        """The other workers have so many in flight at a place together."""
        replica = self.by_id.get(place)
        if replica is not None:
            replica.set_others(requests, tokens, now)

    def relax(self, now: float) -> None:
        """Looks what other workers have by now.  To be called some times a second, and when they told."""
        for pool in self._counts.pools.values():
            if pool.others_requests or pool.flow is not None:
                pool.relax(now)

    def hear_engine(self, load: EngineLoad, at: float, now: float) -> None:
        """What an engine said of itself at a moment.

        It may come before the table with its target does: a replica that is new is told to be cold first.
        """
        replica = self._counts.targets.get(load.target_id)
        if replica is None:
            if len(self._early) >= EARLY_MAX:
                self._early.clear()
            self._early[load.target_id] = load, at
        elif at >= replica.engine_at:
            replica.hear_engine(load, at, at + ENGINE_STALE_S, now)

    def sweep(self, now: float) -> None:
        """Lets what is too old be unknown.  To be called some times a second."""
        counts = self._counts
        for replica in counts.replicas.values():
            if replica.engine is not None and now > replica.engine_at + ENGINE_STALE_S:
                replica.hear_engine(None, replica.engine_at, 0.0, now)
        for pool_key, pool in counts.pools.items():
            members = counts.members[pool_key]
            if pool.has_told or pool.holders or any(each.engine or each.account for each in members):
                tell_pool(pool, members, now)


def is_chosen(route: Route) -> bool:
    """Whether there is anything to choose by load, or to wait for."""
    if route.choosing.order is not Order.LOAD:
        return False
    is_queued = route.choosing.queue is not None and any(
        target.requests_max or target.tokens_max for target in route.targets
    )
    return len(route.targets) > 1 or is_queued


def list_counted(table: RouteTable) -> list[Route]:
    """Routes whose targets are counted: there is another place, here or in another model, for a request that
    meets one out of service."""
    named = {name for route in table.routes for name in route.fallbacks}
    return [
        route
        for route in table.routes
        if len(route.targets) > 1 or route.fallbacks or route.model in named or is_chosen(route)
    ]


def compute_capacity(targets: Iterable[Target]) -> tuple[float, float]:
    """What a group serves well at once; 0 for what is not known of all of it."""
    places = {find_place(target): target for target in targets}  # each counts once
    requests = [target.requests_max for target in places.values()]
    tokens = [target.tokens_max for target in places.values()]
    return (
        float(sum(filter(None, requests))) if all(requests) else 0.0,
        float(sum(filter(None, tokens))) if all(tokens) else 0.0,
    )


def _fill(pool: PoolLoad, loads: Sequence[ReplicaLoad]) -> None:
    """Tells a new pool what is known of its replicas already."""
    pool.count_anew(loads)
    for load in loads:
        if load.unfit_until:
            pool.note_unfit(load, 0.0)
        if load.slow_until:
            pool.note_slow(load, 0.0)
    for load in loads:
        if load.first_at > pool.first_at:
            pool.first_s, pool.first_at = load.first_s, load.first_at
        if load.token_at > pool.token_at:
            pool.token_s, pool.token_at = load.token_s, load.token_at
