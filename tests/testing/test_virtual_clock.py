"""The virtual clock moves when told to, and never by itself."""

import pytest

from forebay.testing.clock import VirtualClock


def test_both_clocks_move_together_and_only_when_told() -> None:
    clock = VirtualClock(monotonic_ns=5, wall_ns=100)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (5, 100)
    clock.advance(1.5)
    clock.advance_ns(1)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (1_500_000_006, 1_500_000_101)


def test_the_wall_may_jump_but_monotonic_time_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance(1)
    clock.set_wall(3)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (1_000_000_000, 3)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-0.1)
