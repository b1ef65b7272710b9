"""Decides when a delivery that has not arrived is tried again, and when it is given up.  Pure."""

from typing import Final

FIRST_S: Final = 2.0  #: from the first try to the second; twice as long from each to the next
LONGEST_S: Final = 600.0
GIVE_UP_S: Final = 3 * 86_400.0  #: from the event on; what fails after that is not tried again
GONE: Final = 410  #: the receiver says that it will never want it


def compute_wait_s(attempts: int, asked_s: float, draw: float) -> float:
    """How long until the next try.

    Args:
        attempts: tries that failed, at least 1.
        asked_s: what the receiver has asked for; 0 where it did not.
        draw: from 0 to 1, at random, so that those who failed together do not come back together.
    """
    wait_s = min(LONGEST_S, FIRST_S * (1 << min(attempts - 1, 20)))
    return max(asked_s, wait_s * (0.75 + draw / 2))


def is_given_up(age_s: float, status: int | None) -> bool:
    """Whether a failed try was the last."""
    return status == GONE or age_s >= GIVE_UP_S
