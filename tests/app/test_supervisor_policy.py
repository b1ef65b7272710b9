"""How children move from state to state, and when a dead one is tried again: pure."""

import signal

from hypothesis import given
from hypothesis import strategies as st

from forebay.app.supervisor_policy import MOVES, ChildEvent, ChildState, RestartPolicy, describe_exit


def test_every_state_but_stopped_can_end_and_leads_to_stopped() -> None:
    reaches = {ChildState.STOPPED}
    while len(wider := reaches | {before for (before, _), after in MOVES.items() if after in reaches}) > len(
        reaches
    ):
        reaches = wider
    assert reaches == set(ChildState)
    asked = {before for (before, event) in MOVES if event is ChildEvent.STOP}
    assert asked | {ChildState.STOPPING, ChildState.KILLING, ChildState.STOPPED} == set(ChildState)
    assert not any(before is ChildState.STOPPED for before, _ in MOVES)


@given(st.integers(0, 10_000))
def test_backoff_grows_up_to_its_limit(failures: int) -> None:
    policy = RestartPolicy()
    delay = policy.compute_delay_s(failures)
    assert 0.2 <= delay <= 10.0
    assert policy.compute_delay_s(failures + 1) >= delay
    assert [policy.compute_delay_s(n) for n in range(1, 8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]


@given(st.integers(0, 100), st.one_of(st.none(), st.floats(0, 1000)))
def test_failures_count_in_a_row_until_stable(failures: int, ready_s: float | None) -> None:
    stable = ready_s is not None and ready_s >= 30
    assert RestartPolicy().count_failures(failures, ready_s) == (1 if stable else failures + 1)


def test_exits_are_described() -> None:
    assert describe_exit(0) == "exited with 0"
    assert describe_exit(-signal.SIGKILL) == "killed by SIGKILL"
    assert describe_exit(-99) == "killed by signal 99"
