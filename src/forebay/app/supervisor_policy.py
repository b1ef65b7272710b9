"""What becomes of a supervised child: its states, the table of moves between them, and the backoff.

Pure: no process, clock or log is touched here.  `supervisor` awaits the events and carries the moves out.
"""

import signal
from enum import StrEnum
from typing import Final

import msgspec


class ChildState(StrEnum):
    WAITING = "waiting"  #: for the children it needs
    STARTING = "starting"  #: it runs, and its probe has not succeeded yet
    READY = "ready"
    ROLLING = "rolling"  #: it serves, and its successor starts beside it
    BACKOFF = "backoff"  #: it ended by itself and is started again after a while
    HUNG = "hung"  #: it took too long to get ready and was killed
    STOPPING = "stopping"  #: it was asked to end
    KILLING = "killing"  #: it did not end in time
    REFUSED = "refused"  #: it ended, and to start it again is in vain
    STOPPED = "stopped"  #: it is gone for good


class ChildEvent(StrEnum):
    RELEASED = "released"  #: all that it needs has been ready once
    PROBED = "probed"
    EXITED = "exited"
    REFUSED = "refused"  #: it ended by itself, and is judged not to start again
    OVERDUE = "overdue"  #: a deadline of the present state has passed
    RESTART = "restart"  #: the backoff is over
    ROLL = "roll"  #: another process is to take its place
    FAILED = "failed"  #: its successor ended, or took too long to get ready
    STOP = "stop"


#: To a worker whose successor serves already: as SIGTERM, but nobody has to look away from this Forebay.
RETIRE_SIGNAL: Final = signal.SIGUSR1
SERVING: Final = frozenset({ChildState.READY, ChildState.ROLLING})
S, E = ChildState, ChildEvent

#: Every move.  A pair that is missing can't happen: the supervisor does not await that event in that state.
MOVES: Final[dict[tuple[ChildState, ChildEvent], ChildState]] = {
    (S.WAITING, E.RELEASED): S.STARTING,
    (S.WAITING, E.STOP): S.STOPPED,
    (S.STARTING, E.PROBED): S.READY,
    (S.STARTING, E.EXITED): S.BACKOFF,
    (S.STARTING, E.OVERDUE): S.HUNG,
    (S.STARTING, E.STOP): S.STOPPING,
    (S.READY, E.EXITED): S.BACKOFF,
    (S.READY, E.STOP): S.STOPPING,
    (S.READY, E.ROLL): S.ROLLING,
    (S.ROLLING, E.EXITED): S.BACKOFF,
    (S.ROLLING, E.STOP): S.STOPPING,
    (S.ROLLING, E.FAILED): S.READY,
    (S.ROLLING, E.PROBED): S.READY,  #: by the successor, whose predecessor is asked to end
    (S.STARTING, E.REFUSED): S.REFUSED,
    (S.READY, E.REFUSED): S.REFUSED,
    (S.ROLLING, E.REFUSED): S.REFUSED,
    (S.HUNG, E.REFUSED): S.REFUSED,
    (S.REFUSED, E.STOP): S.STOPPED,
    (S.HUNG, E.EXITED): S.BACKOFF,
    (S.HUNG, E.STOP): S.KILLING,
    (S.BACKOFF, E.RESTART): S.STARTING,
    (S.BACKOFF, E.STOP): S.STOPPED,
    (S.STOPPING, E.EXITED): S.STOPPED,
    (S.STOPPING, E.OVERDUE): S.KILLING,
    (S.KILLING, E.EXITED): S.STOPPED,
    (S.KILLING, E.OVERDUE): S.STOPPED,  #: not even SIGKILL ended it: it hangs in the kernel
}


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long a child that ended by itself stays down.  Seconds."""

    first_s: float = 0.2
    longest_s: float = 10.0
    stable_s: float = 30.0  #: ready for so long, the failures before it count no more

    def compute_delay_s(self, failures: int) -> float:
        """The pause after that many failures in a row, the first one being 1."""
        doublings = min(max(failures - 1, 0), 30)
        return min(self.longest_s, self.first_s * 2.0**doublings)

    def count_failures(self, failures: int, ready_s: float | None) -> int:
        """Failures in a row, with the one that just happened.  `ready_s` is None if it never got ready."""
        return 1 if ready_s is not None and ready_s >= self.stable_s else failures + 1


def describe_exit(code: int) -> str:
    """Words for the return code of a process, negative where a signal ended it."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
