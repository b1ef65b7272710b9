"""The budget of retries, as a property over any run of requests."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.policy.budget import WINDOW_S, RetryBudget


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50), st.integers(0, 50)), max_size=60),
    st.sampled_from([0.0, 0.05, 0.2, 1.0]),
    st.sampled_from([0.0, 0.5, 3.0]),
)
def test_retries_stay_within_their_share_of_any_window(
    run: list[tuple[float, int, int]], share: float, least: float
) -> None:
    budget, now, requests = RetryBudget(), 0.0, 0
    made: list[tuple[float, int, int]] = []  # time, requests by then, retries by then
    for passed, more, wanted in run:
        now += passed
        requests += more
        for _ in range(wanted):
            if budget.look(now, requests, share, least):
                budget.spend()
        made.append((now, requests, budget.spent))
        for then, requests_then, spent_then in made:
            if now - WINDOW_S <= then:
                # What was allowed for in the window before may be used in it: never more than twice.
                first = max((each for each in made if each[0] <= now - WINDOW_S - 1), default=(0.0, 0, 0))
                most = 2 * (share * (requests - first[1]) + least * WINDOW_S)
                assert budget.spent - spent_then <= most, (then, requests_then)


def test_few_requests_may_retry_and_a_flood_of_failures_may_not() -> None:
    budget = RetryBudget()
    made = 0
    for number in range(1000):
        if budget.look(number / 1000, number, 0.2, 1.0):
            budget.spend()
            made += 1
    assert 200 <= made <= 0.2 * 1000 + WINDOW_S
    assert budget.is_spent


def test_it_fills_again_with_time() -> None:
    budget = RetryBudget()
    while budget.look(0.0, 0, 0.2, 1.0):
        budget.spend()
    assert budget.spent == WINDOW_S
    assert not budget.look(WINDOW_S / 2, 0, 0.2, 1.0)
    assert budget.look(WINDOW_S + 2, 0, 0.2, 1.0)


def test_nothing_is_kept_beyond_the_window() -> None:
    budget = RetryBudget()
    for tick in range(10_000):
        budget.look(tick / 10, tick, 0.2, 1.0)
    assert len(budget._marks) <= WINDOW_S + 2
