"""The number of replicas by load: it follows, it keeps to its bounds, and it never swings."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.scaling import DOWN_AFTER_S, UP_AFTER_S, Demand, Scale, rescale


def run(
    scale: Scale, demand: Demand | None, least: int, most: int, seconds: int, start: int = 0
) -> list[int]:
    counts = []
    for now in range(start, start + seconds):
        scale = rescale(scale, demand, least, most, float(now))
        counts.append(scale.count)
    return counts


@given(
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 5),
    st.floats(0, 60),
    st.integers(1, 8),
    st.booleans(),
)
def test_a_constant_load_finds_its_number_and_stays(
    count: int, least: int, more: int, busy: float, slots: int, is_missed: bool
) -> None:
    most = max(1, least + more)
    counts = run(Scale(count=count), Demand(busy=busy, slots=slots, is_missed=is_missed), least, most, 1000)
    inside = [each for each in counts if least <= each <= most]
    assert inside == counts
    assert len(set(counts[-300:])) == 1, "it does not swing"
    moves = [after - before for before, after in pairwise(counts) if after != before]
    assert all(move > 0 for move in moves) or all(move < 0 for move in moves), "nor overshoot"
    last = counts[-1]
    assert last == most or busy <= 0.8 * last * slots + 1e-9 or last == 0


def test_up_comes_soon_and_down_late() -> None:
    busy = run(Scale(count=1), Demand(busy=9, slots=4), 1, 4, 20)
    assert busy.index(2) == UP_AFTER_S
    assert busy[-1] == 3
    idle = run(Scale(count=3), Demand(busy=0, slots=4), 1, 4, 200)
    assert idle.index(2) == DOWN_AFTER_S
    assert idle[-1] == 1


def test_nothing_runs_until_it_is_missed_and_then_until_it_is_idle() -> None:
    assert run(Scale(count=0), Demand(busy=0, slots=4), 0, 2, 50)[-1] == 0
    assert run(Scale(count=0), Demand(busy=0, slots=4, is_missed=True), 0, 2, 10)[-1] == 1
    assert run(Scale(count=1), Demand(busy=0.5, slots=4), 0, 2, 200)[-1] == 1
    assert run(Scale(count=1), Demand(busy=0, slots=4), 0, 2, 200)[-1] == 0


def test_what_nobody_knows_changes_nothing() -> None:
    assert set(run(Scale(count=2), None, 0, 4, 200)) == {2}
    assert run(Scale(count=9), None, 0, 4, 2) == [4, 4]
