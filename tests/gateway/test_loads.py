"""What a worker knows of each place: counts that close, failures, refusals, and old news."""

import msgspec
import pytest
from routing_fleets import build_fleet, follow, make_pool, make_route

from forebay.core.routes import Choosing, Order, RouteTable, Target
from forebay.gateway.deciding import FULL_S
from forebay.gateway.loads import Loads
from forebay.gateway.policy.account import BUSY_MAX_S, BUSY_S, Account
from forebay.gateway.policy.load import (
    EJECT_AFTER,
    EJECT_MAX_S,
    EJECT_S,
    STALE_S,
    PoolLoad,
    ReplicaLoad,
)
from forebay.gateway.policy.pick import find_ill
from forebay.gateway.policy.want import Reason


def test_counts_close_also_over_a_change_of_the_table() -> None:
    loads = Loads()
    (before,) = follow(loads, make_route(make_pool("p", 2, requests_max=4))).groups["m"]
    replica = before.members[0].load
    for _ in range(3):
        replica.begin(100, 1.0)
    replica.tell_first(0.5, 1.0)
    (same,) = follow(loads, make_route(make_pool("p", 2, requests_max=4))).groups["m"]
    assert same.load is before.load
    (larger,) = follow(loads, make_route(make_pool("p", 3, requests_max=4))).groups["m"]
    assert larger.members[0].load is replica
    assert (larger.load.requests, larger.load.tokens) == (3, 300)
    assert larger.load.used == pytest.approx(0.25)
    assert larger.load.estimate(0, 1.0) == 0.5
    for _ in range(3):
        replica.end(100, 2.0)
    assert (replica.requests, replica.tokens) == (0, 0)
    assert (larger.load.requests, larger.load.tokens, larger.load.used) == (0, 0, 0)


def make_pair(api_keys: tuple[str | None, str | None], requests_max: int) -> list[Target]:
    """Two targets at one address."""
    (one,) = make_pool("p", 1, requests_max=requests_max)
    return [
        msgspec.structs.replace(one, id=f"m@p#{number}", api_key=api_key)
        for number, api_key in enumerate(api_keys)
    ]


def test_two_targets_at_one_address_are_one_place_for_each_account() -> None:
    loads = Loads()
    (group, _) = follow(loads, make_route(make_pair(("env:A", "env:B"), 8), make_pool("q", 1))).groups["m"]
    first, second = (member.load for member in group.members)
    assert first is not second
    first.begin(10, 1.0)
    assert (second.requests, group.load.size, group.load.used) == (0, 2, pytest.approx(1 / 16))


@pytest.mark.parametrize("api_keys", [("env:A", "env:B"), (None, None)])
def test_counts_close_where_two_targets_are_at_one_address(api_keys: tuple[str | None, str | None]) -> None:
    loads = Loads()
    (before, _) = follow(loads, make_route(make_pair(api_keys, 8), make_pool("q", 1))).groups["m"]
    for member in before.members:
        for _ in range(5):
            member.load.begin(300, 1.0)
    (after, _) = follow(loads, make_route(make_pair(api_keys, 9), make_pool("q", 1))).groups["m"]
    assert (after.load.requests, after.load.tokens) == (10, 3000)
    assert after.load.size == len({member.load for member in after.members})
    assert after.load.used == pytest.approx(10 / 9 / after.load.size)
    for member in after.members:
        for _ in range(5):
            member.load.end(300, 2.0)
    assert (after.load.requests, after.load.tokens, after.load.used) == (0, 0, 0)


def test_a_table_that_is_not_taken_leaves_the_counts_in_force_alone() -> None:
    loads = Loads()
    (served, _) = follow(loads, make_route(make_pool("p", 1, requests_max=8), make_pool("q", 1))).groups["m"]
    replica = served.members[0].load
    for _ in range(12):
        replica.begin(300, 1.0)
    refused = make_route(make_pool("p", 1, requests_max=16), make_pool("q", 1))
    (other, _) = loads.follow(RouteTable(routes=(refused,)), 1).groups["m"]
    assert other.members[0].load is replica
    for _ in range(12):
        replica.end(300, 2.0)
    assert (served.load.requests, served.load.used) == (0, 0)
    taken = follow(loads, refused).groups["m"][0].load
    assert (taken.requests, taken.used) == (0, 0)


def test_models_that_share_a_place_share_its_counts_and_one_with_no_other_place_is_not_counted() -> None:
    fleet = make_route(make_pool("p", 2))
    alias = msgspec.structs.replace(
        make_route([msgspec.structs.replace(fleet.targets[0], id="alias")], choosing=Choosing()),
        model="alias",
    )
    other = msgspec.structs.replace(
        make_route(make_pool("q", 2), choosing=Choosing(order=Order.LISTED)), model="other"
    )
    lone, named = (
        msgspec.structs.replace(make_route(make_pool(pool, 1), choosing=Choosing()), model=pool)
        for pool in ("lone", "named")
    )
    other = msgspec.structs.replace(other, fallbacks=("named",))
    parts = follow(Loads(), fleet, alias, other, lone, named)
    assert set(parts.groups) == {"m"}
    assert parts.replicas["alias"] is parts.replicas["m@p#0"]
    assert all(target.id in parts.replicas for target in (*other.targets, *named.targets))
    assert not any(target.id in parts.replicas for target in lone.targets)
    assert not any(parts.replicas[target.id].pools for target in (*other.targets, *named.targets))


def test_a_worker_has_its_share_of_the_capacity() -> None:
    for workers, used in ((1, 0.25), (4, 1.0)):
        fleet = build_fleet(make_pool("p", 2, requests_max=8), make_pool("q", 1), workers=workers)
        group = fleet.groups[0]
        for member in group.members:
            member.load.begin(10, 1.0)
            member.load.begin(10, 1.0)
        assert group.load.used == pytest.approx(used)


def test_the_fuller_of_requests_and_tokens_counts() -> None:
    pool = PoolLoad(1, 10, 1000)
    pool.change(1, 900, 1.0)
    assert pool.used == pytest.approx(0.9)
    pool.change(9, 0, 1.0)
    assert pool.used == pytest.approx(1.0)


def test_a_peak_counts_at_once_and_fades_and_what_is_old_is_unknown() -> None:
    load = ReplicaLoad()
    assert load.estimate(100, 5.0) is None
    load.tell_first(0.1, 10.0)
    load.tell_first(2.0, 11.0)
    assert load.estimate(0, 11.0) == 2.0
    seen = []
    for second in range(12, 40):
        load.tell_first(0.1, float(second))
        seen.append(load.estimate(0, float(second)))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] is not None
    assert seen[0] > 1.7
    assert seen[-1] == pytest.approx(0.1, abs=0.2)
    load.tell_token(0.02, 39.0)
    assert load.estimate(100, 39.0) == pytest.approx(load.first_s + 2.0)
    assert load.estimate(100, 39.1 + STALE_S) is None


def test_failures_in_a_row_put_a_replica_out_of_service_for_longer_each_time() -> None:
    load, now, lengths = ReplicaLoad(), 10.0, []
    load.pools.append(PoolLoad(2))
    for _ in range(8):
        while find_ill(load, now) is None:
            load.fail(now)
        assert find_ill(load, now) is Reason.EJECTED
        assert load.pools[0].unfit_until == load.ejected_until
        lengths.append(load.ejected_until - now)
        now = load.ejected_until
    assert load.failures >= EJECT_AFTER
    assert lengths[:3] == [EJECT_S, 2 * EJECT_S, 4 * EJECT_S]
    assert lengths[-1] == EJECT_MAX_S
    load.succeed(now, now - 1)
    for _ in range(EJECT_AFTER - 1):
        load.fail(now)
    assert find_ill(load, now) is None


def test_a_refusal_leaves_a_replica_alone_as_long_as_it_says() -> None:
    load = ReplicaLoad()
    pool = PoolLoad(4)
    load.pools.append(pool)
    load.refuse(10.0, 7)
    load.refuse(10.0)
    assert find_ill(load, 16.9) is Reason.BUSY
    assert find_ill(load, 17.0) is None
    assert pool.compute_pressure(10.0) == pytest.approx(0.5)


def test_a_refusal_without_a_time_holds_for_longer_each_time_until_one_is_answered_well() -> None:
    load, now, pauses = ReplicaLoad(), 10.0, []
    for _ in range(7):
        load.refuse(now)
        pauses.append(load.unfit_until - now)
        load.refuse(now + 0.1)  # what was under way is no further word
        assert load.unfit_until == max(now + 1.1, now + pauses[-1])
        now = load.unfit_until + 0.1
    assert pauses == [pytest.approx(each) for each in (1, 2, 3.8, 7.4, 14.6, BUSY_MAX_S, BUSY_MAX_S)]
    load.succeed(now, now - 20)
    assert load.word.guess_pause(now) == BUSY_MAX_S, "that began before the refusal"
    load.succeed(now, now - 0.05)
    load.refuse(now)
    assert load.unfit_until == now + BUSY_S
    load.refuse(load.unfit_until + 5)
    assert load.unfit_until == now + 2 * BUSY_S + 5, "long after its pause it is the first again"


def test_a_refusal_without_a_time_that_goes_on_holds_for_all_of_the_account_in_every_worker() -> None:
    account, (one, other) = Account(9), (ReplicaLoad(1), ReplicaLoad(2))
    account.users = [one, other]
    one.account = other.account = account
    one.refuse(10.0, of_account=True)
    assert find_ill(other, 10.5) is None, "a first one may be of the model alone"
    one.refuse(11.2, of_account=True)
    assert find_ill(other, 12.9) is Reason.BUSY
    assert find_ill(other, 13.3) is None
    elsewhere = Account(9)
    elsewhere.word.take(account.word.said_at, account.word.retry_at)
    assert elsewhere.word.guess_pause(13.3) == pytest.approx(4.0), "who was told of it goes on from there"
    other.succeed(13.4, 13.3)
    assert account.word.guess_pause(13.5) == BUSY_S


def test_our_own_limit_of_connections_is_no_refusal() -> None:
    load, pool = ReplicaLoad(), PoolLoad(2)
    load.pools.append(pool)
    load.leave_alone(10.0, FULL_S)
    assert find_ill(load, 10.0 + FULL_S / 2) is Reason.BUSY
    assert find_ill(load, 10.0 + FULL_S) is None
    assert pool.compute_pressure(10.0) == 0
    load.refuse(20.0, 0)
    assert pool.compute_pressure(20.0) == pytest.approx(0.5)


def test_what_is_forgiven_puts_nothing_out_of_service() -> None:
    load, pool = ReplicaLoad(), PoolLoad(2)
    load.pools.append(pool)
    for _ in range(3):
        for _ in range(EJECT_AFTER):
            load.fail(10.0)
        assert find_ill(load, 10.0) is Reason.EJECTED
        assert load.ejected_until == 10.0 + EJECT_S, "no longer than the first time"
        for _ in range(EJECT_AFTER):
            load.forgive()
        assert find_ill(load, 10.0) is None
    load.forgive()
    assert load.failures == 0
