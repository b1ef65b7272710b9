"""What a worker may spend while its authority comes and goes: never more than its part of what was left."""

import pytest

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.lease import Lease
from forebay.gateway.policy.lending import Loan
from forebay.gateway.policy.meter import Now

S = 1_000_000_000
DAY_S = 86_400
CALENDAR = Limit(
    id="c", owner="team a", measure=Measure.REQUESTS, amount=100, period=Period.DAY, kind=Kind.CALENDAR
)
BUCKET = Limit(id="b", owner="team a", measure=Measure.REQUESTS, amount=100, period=Period.DAY)


def at(seconds: float) -> Now:
    return Now(int(seconds * S), int(seconds * S))


def lose_and_spend(lease: Lease, now: Now, workers: int = 4) -> int:
    """The line breaks, requests come until one is refused, and the line is there again."""
    lease.stand_alone(workers, now)
    spent = 0
    while lease.draw(1, now):
        lease.take(1, 0)
        spent += 1
    lease.return_all()
    lease.stand_in = None
    return spent


@pytest.mark.parametrize("limit", [CALENDAR, BUCKET])
def test_a_line_that_breaks_again_and_again_gives_no_share_twice(limit: Limit) -> None:
    lease = Lease(limit)
    lease.absorb(Loan(limit.id, 0, 0, 40, 0, DAY_S * S if limit is CALENDAR else 0), 0)
    spent = [lose_and_spend(lease, at(10)) for _ in range(5)]
    assert spent == [10 if limit is CALENDAR else 0, 0, 0, 0, 0]


def test_what_is_lent_anew_makes_a_new_share() -> None:
    lease = Lease(CALENDAR)
    lease.absorb(Loan("c", 0, 0, 40, 0, DAY_S * S), 0)
    assert lose_and_spend(lease, at(10)) == 10
    lease.absorb(Loan("c", 0, 0, 20, 0, DAY_S * S), 0)
    assert lose_and_spend(lease, at(11)) == 5


def test_a_new_period_without_an_authority_has_a_whole_share_once() -> None:
    lease = Lease(CALENDAR)
    lease.absorb(Loan("c", 0, 0, 0, 0, DAY_S * S), 0)
    assert lose_and_spend(lease, at(10)) == 0
    assert [lose_and_spend(lease, at(DAY_S + second)) for second in (1, 2, 3)] == [25, 0, 0]
