"""What lies in Redis or Valkey of limits: who is gone, what was lost, whose edit and whose clock counts."""

import pytest
import redis
from shared_lending import S, Shared, make, make_amount

from forebay.app.quota_script import (
    Early,
    Lent,
    OtherPeriods,
    Short,
    Shown,
    Stranger,
    Ticked,
    make_prefix,
)
from forebay.core.limits import Kind, Limit, Period
from forebay.gateway.policy.lending import Want
from forebay.gateway.quota_wire import Held
from redis_server import RedisServer


@pytest.fixture
def client(redis_server: RedisServer) -> "redis.Redis":
    client = redis_server.connect()
    client.flushall()
    return client


# --- single decisions ---------------------------------------------------------------------------------------

MONTH = make("month", 100, Period.MONTH, Kind.CALENDAR)
BUCKET = make("bucket", 100, Period.HOUR)
PLACES = make("places", 5, None)


def pair(client: "redis.Redis", *limits: Limit) -> tuple[Shared, Shared]:
    """Two control planes, with a worker each."""
    one = Shared(client)
    other = Shared(client, one.fleet, "b")
    one.begin("w1", limits=limits)
    other.book.set_limits(limits, one.now)
    other.join("w2")
    one.set_clock(one.now.wall_ns + 600 * S)
    other.now = one.now
    return one, other


def lend(shared: Shared, worker: str, limit_id: str, units: int) -> int:
    answer = shared.ask(worker, Want(limit_id, units, units))
    return answer.loans[0].units if isinstance(answer, Lent) else 0


def forget(shared: Shared) -> None:
    """The server starts anew, with nothing; its clients have said again who is there."""
    shared.client.delete(*shared.client.keys(f"{make_prefix(shared.fleet)}*"))


@pytest.mark.parametrize("limit", [MONTH, BUCKET])
def test_what_a_server_has_lost_each_control_plane_tells(client: "redis.Redis", limit: Limit) -> None:
    one, other = pair(client, limit)
    assert lend(one, "w1", limit.id, 30) == 30
    assert lend(other, "w2", limit.id, 20) == 20
    assert one.left() == {limit.id: 50}
    forget(one)
    one.join("w1")
    other.join("w2")
    one.set_clock(one.now.wall_ns + S)
    other.now = one.now
    assert lend(one, "w1", limit.id, 1) == 1
    assert lend(other, "w2", limit.id, 1) == 1
    assert one.left() == {limit.id: 48}, "neither what one lent nor what the other did is there again"
    assert lend(one, "w1", limit.id, 1) == 1
    assert other.left() == {limit.id: 47}, "it is told once"


def test_a_server_that_has_lost_its_last_second_goes_on_from_what_is_known(client: "redis.Redis") -> None:
    one, other = pair(client, MONTH)
    key = f"{make_prefix(one.fleet)}:limit:month"
    assert lend(one, "w1", "month", 30) == 30
    old = client.hgetall(key)
    assert lend(one, "w1", "month", 20) == 20
    assert lend(other, "w2", "month", 10) == 10
    client.delete(key)
    client.hset(key, mapping=old)
    assert lend(one, "w1", "month", 1) == 1
    assert lend(other, "w2", "month", 1) == 1
    assert one.left() == {"month": 38}


def test_of_what_nobody_knows_any_more_nothing_is_made_up(client: "redis.Redis") -> None:
    one, _ = pair(client, MONTH)
    assert lend(one, "w1", "month", 30) == 30
    forget(one)
    new = Shared(client, one.fleet, "c")
    new.begin("w3", limits=(MONTH,))
    assert new.left() == {"month": 100}


def test_what_was_lent_in_an_earlier_period_is_lent_no_more(client: "redis.Redis") -> None:
    one, other = pair(client, MONTH)
    assert lend(one, "w1", "month", 60) == 60
    one.set_clock(one.now.wall_ns + 40 * 86_400 * S)
    other.now = one.now
    assert lend(other, "w2", "month", 1) == 1
    answer = one.call(one.book.show(["month"], one.now))
    assert isinstance(answer, Shown)
    (standing,) = answer.standings
    assert (standing.left, standing.lent, standing.used) == (99, 1, 0)


def test_nothing_is_lent_right_after_the_first_call_ever(client: "redis.Redis") -> None:
    one = Shared(client)
    one.book.set_limits((PLACES,), one.now)
    one.join("w")
    early = one.ask("w", Want("places", 1, 1))
    assert isinstance(early, Early)
    one.set_clock(one.now.wall_ns + early.wait_ns)
    assert lend(one, "w", "places", 1) == 1


def test_whoever_is_not_seen_for_long_is_gone_and_a_server_that_was_away_blames_nobody(
    client: "redis.Redis",
) -> None:
    one, other = pair(client, PLACES, MONTH)
    assert lend(one, "w1", "places", 3) == lend(one, "w1", "month", 3) == 3
    for _ in range(3):
        one.set_clock(one.now.wall_ns + 3600 * S)  # nobody could say anything
        assert other.tick("w2") == Ticked(2, ())
    for _ in range(4):
        one.set_clock(one.now.wall_ns + S)
        other.tick("w2")
    assert one.left() == {"month": 97, "places": 5}
    assert other.tick("w2") == Ticked(1, ())
    assert one.tick("w1") == Ticked(1, ("w1",))
    assert isinstance(one.ask("w1", Want("places", 1, 1)), Stranger)
    one.join("w1", Held("places", 0, 3), Held("month", 0, 2))
    assert one.left() == {"month": 97, "places": 2}
    one.give("w1", "places", 0, 3)
    assert one.left() == {"month": 97, "places": 5}


def test_a_clock_that_goes_back_makes_no_unit(client: "redis.Redis") -> None:
    one, _ = pair(client, BUCKET, MONTH)
    assert lend(one, "w1", "bucket", 100) == lend(one, "w1", "month", 100) == 100
    for back_s in (1, 200, 86_400 * 40):
        one.set_clock(one.now.wall_ns - back_s * S)
        found = one.ask("w1", Want("bucket", 1, 1))
        if isinstance(found, OtherPeriods):
            found = one.ask("w1", Want("bucket", 1, 1))
        assert isinstance(found, Short)
        assert lend(one, "w1", "month", 1) == 0


def test_a_clock_of_the_server_that_is_years_ahead_is_the_one_that_counts(client: "redis.Redis") -> None:
    one, _ = pair(client, MONTH)
    assert lend(one, "w1", "month", 60) == 60
    here = one.now
    one.set_clock(one.now.wall_ns + 3 * 365 * 86_400 * S)
    one.now = here
    assert isinstance(one.ask("w1", Want("month", 1, 1)), OtherPeriods)
    assert lend(one, "w1", "month", 60) == 60, "another month has begun"


def test_places_of_a_limit_that_is_gone_are_given_back(client: "redis.Redis") -> None:
    one, _ = pair(client, PLACES)
    assert lend(one, "w1", "places", 3) == 3
    one.set_limits(())
    one.give("w1", "places", 0, 2)
    one.set_limits((PLACES,))
    assert one.left() == {"places": 4}


def test_of_two_amounts_the_later_edit_counts(client: "redis.Redis") -> None:
    one, other = pair(client, MONTH)
    assert lend(other, "w2", "month", 10) == 10
    one.set_clock(one.now.wall_ns + S)
    other.now = one.now
    one.set_limits((make_amount(MONTH, 200),))
    assert lend(other, "w2", "month", 10) == 10, "who has not heard of it changes nothing"
    assert one.left() == {"month": 180}
    one.set_clock(one.now.wall_ns + S)
    other.now = one.now
    other.set_limits((make_amount(MONTH, 50),))
    assert one.left() == {"month": 30}


def test_all_keys_lie_in_one_slot_of_a_cluster(client: "redis.Redis") -> None:
    one, _ = pair(client, MONTH, PLACES)
    lend(one, "w1", "places", 3)
    keys = client.keys(f"*{one.fleet}*")
    assert len(keys) > 4
    assert all(key.startswith(f"{{forebay:{one.fleet}}}:".encode()) for key in keys)
