"""What lends to the workers of a machine, and what it may ask of whoever has the lines to them.

There are two: `quota_local` for a machine alone, `quota_redis` for several that share their limits.  Answers
come by callback: at once from the first, later from the second, not at all when it is lost meanwhile; then
all lines are closed, and workers go on with their share.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from forebay.core.errors import ForebayError
from forebay.core.limits import Limit
from forebay.gateway.policy.lending import Loan, Shortage, Standing, Want
from forebay.gateway.quota_wire import Held

Found = tuple[Loan, ...] | Shortage
AbsorbFound = Callable[[Found, Sequence[str]], None]  #: with workers that may have what is short


class AuthorityAway(ForebayError):
    """Nobody can tell how limits stand."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "quota_authority_unavailable"


class Lines(Protocol):
    """Whoever has the lines to this machine's workers."""

    def list_workers(self) -> Sequence[str]:
        """Who has a line."""

    def recall(self, limit_id: str, workers: Iterable[str]) -> None:
        """A worker elsewhere needs what these have not spent; those who have no line here are passed by."""

    def note_answer(self, worker: str, limit_id: str) -> None:
        """A worker, here or elsewhere, has answered a recall."""

    def close_lines(self, workers: Iterable[str] | None = None) -> None:
        """These, or all: their workers come again and say what they hold."""


class Authority(Protocol):
    """See the module."""

    grace_s: float  #: after a start, for workers to say what they hold
    recall_max_s: float  #: for workers to return what others need

    @property
    def is_there(self) -> bool:
        """Whether it takes workers in."""

    @property
    def trouble(self) -> str:
        """Why it does not, for people; empty where it does."""

    @property
    def members(self) -> int | None:
        """Workers on all machines together; None where there is one machine."""

    @property
    def limits(self) -> Mapping[str, Limit]:
        """By id, with the amounts that hold now."""

    def start(self, lines: Lines) -> None:
        """To be called in the loop, once."""

    def close(self) -> None:
        """Lends no more."""

    def set_limits(self, limits: tuple[Limit, ...]) -> None:
        """From now on these hold; one that comes again goes on where it was.  Raises OSError."""

    def set_amounts(self, amounts: Mapping[str, int]) -> None:
        """Limits that there are have these amounts from now on, by id.  Raises OSError."""

    def list_standings(self, limit_ids: Iterable[str] | None = None) -> list[Standing]:
        """All limits, or those of some ids, in the order of their ids, as far as is known here."""

    async def fetch_standings(self) -> list[Standing]:
        """As they are now.  Raises AuthorityAway."""

    async def fetch_holders(self, limit_ids: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Workers that may have something of a limit to give back."""

    def join(self, worker: str, held: Sequence[Held], *, is_first: bool, then: Callable[[], None]) -> None:
        """A worker is there, and holds what it was lent before; beside what it said already, or in all."""

    def leave(self, worker: str) -> None:
        """A worker is gone, and its requests with it."""

    def ask(self, worker: str, wants: Sequence[Want], *, final: bool, then: AbsorbFound) -> None:
        """Lends all or nothing; see `Lender.ask`.  Raises OSError."""

    def give_back(
        self, worker: str, returned: Sequence[Held], recalled: str, number: int, then: Callable[[], None]
    ) -> None:
        """Takes back; then it is written down.  Raises OSError, having taken nothing.

        Args:
            number: of debts, larger than that of any the worker told of before; those that it tells of again,
                for it has not heard that they are written down, count once.  0 where it need not hear.
        """

    def recall_elsewhere(self, limit_id: str, workers: Sequence[str]) -> bool:
        """Asks workers of other machines to return what they have; whether that can be."""
