"""Decides what becomes of a batch and of each line of it.  Pure: time and chance are arguments.

The states are a table.  A line that met a full place is asked again as long as its batch lives; one whose
answer is an error is asked a few times.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forebay.batch.model import Status

BACKOFF_S: Final = 1.0  #: before a line is asked again that nobody said a time for
BACKOFF_MAX_S: Final = 60.0
RETRY_AFTER_MAX_S: Final = 600.0  #: however long the answer says
WINDOW_FIRST: Final = 2  #: lines of a batch that are asked at once in the beginning
#: Answers after which the same request may succeed.
_PASSING: Final = frozenset({408, 409, 425, 499, 500, 502, 504})


class Happening(StrEnum):
    """What moves a batch on."""

    VALID = "valid"  #: the input file is
    INVALID = "invalid"
    ALL_DONE = "all_done"  #: every line has an answer or an error
    CANCEL = "cancel"  #: was asked for
    EXPIRE = "expire"  #: the window is over
    KEY_ENDED = "key_ended"  #: nothing can be asked with it any more
    WRITTEN = "written"  #: the files lie ready


_MOVES: Final = {
    (Status.VALIDATING, Happening.VALID): Status.IN_PROGRESS,
    (Status.VALIDATING, Happening.INVALID): Status.FAILED,
    (Status.VALIDATING, Happening.CANCEL): Status.CANCELLING,
    (Status.VALIDATING, Happening.EXPIRE): Status.EXPIRED,
    (Status.VALIDATING, Happening.KEY_ENDED): Status.FAILED,
    (Status.IN_PROGRESS, Happening.ALL_DONE): Status.FINALIZING,
    (Status.IN_PROGRESS, Happening.CANCEL): Status.CANCELLING,
    (Status.IN_PROGRESS, Happening.EXPIRE): Status.EXPIRED,
    (Status.IN_PROGRESS, Happening.KEY_ENDED): Status.FAILED,
    (Status.FINALIZING, Happening.WRITTEN): Status.COMPLETED,
    (Status.CANCELLING, Happening.WRITTEN): Status.CANCELLED,
}
FINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED})


def move(status: Status, happening: Happening) -> Status | None:
    """The state that follows; None where nothing does."""
    return _MOVES.get((status, happening))


class Stop(StrEnum):
    """Why lines of a batch that were not asked won't be; the code of their errors."""

    CANCELLED = "batch_cancelled"
    EXPIRED = "batch_expired"
    KEY_ENDED = "key_ended"


STOP_WORDS: Final = {
    Stop.CANCELLED: "This request was not executed before the batch was cancelled.",
    Stop.EXPIRED: "This request could not be executed before the completion window expired.",
    Stop.KEY_ENDED: "This request was not executed: the key that the batch was created with is revoked or "
    "has expired.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of one request.  `status` is 0 where nobody knows what did."""

    status: int
    body: bytes = b""
    request_id: str = ""
    retry_after_s: float | None = None
    error: str = ""  #: why there is no answer
    was_sent: bool = True  #: False where the gateway was not reached


@dataclass(frozen=True, slots=True)
class Answered:
    """Into the output file."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Into the error file."""


@dataclass(frozen=True, slots=True)
class Again:
    """Ask once more.  `is_full`: the batch as a whole shall ask less, and nothing before that time."""

    after_s: float
    is_full: bool
    counts: bool  #: as one of the tries that a line has


@dataclass(frozen=True, slots=True)
class KeyUnknown:
    """The gateway does not take the key."""


Verdict = Answered | Refused | Again | KeyUnknown


def judge(reply: Reply, tries: int, waits: int, tries_max: int) -> Verdict:
    """What follows a reply.

    Args:
        tries: of this line that counted, this one not included.
        waits: times that this line has been asked again already.
        tries_max: that a line has.
    """
    status = reply.status
    if 200 <= status < 300:
        return Answered()
    if status == 401:
        return KeyUnknown()
    backoff = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(waits, 10))
    if not reply.was_sent:
        return Again(backoff, is_full=True, counts=False)
    if status in (429, 503):
        # Without a time, a 429 says that waiting does not help; a 503 that nobody knows.
        is_known = reply.retry_after_s is not None
        after_s = min(RETRY_AFTER_MAX_S, reply.retry_after_s) if reply.retry_after_s is not None else backoff
        if is_known or status == 503 or tries + 1 < tries_max:
            # Longer each time, for what is full again and again: each refusal is a record.
            return Again(max(after_s, backoff / 2), is_full=True, counts=not is_known and status == 429)
        return Refused()
    if status == 0 or status in _PASSING:
        return Again(backoff, is_full=False, counts=True) if tries + 1 < tries_max else Refused()
    return Refused()


class Window:
    """How many lines of a batch are asked at once: one more for each that went well, half when places are
    full."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = min(WINDOW_FIRST, most)

    def succeed(self) -> None:
        self.size = min(self._most, self.size + 1)

    def shrink(self) -> None:
        self.size = max(1, self.size // 2)
