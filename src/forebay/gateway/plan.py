"""The limits that a request meets, how many of their units it needs, and what it is told when they lack.

Counts and compares; who has units to spend, and what follows when there are too few, is `quota`'s.
"""

from forebay.core.errors import RateLimited
from forebay.core.events import Tokens
from forebay.core.limits import Exceeded, count_units
from forebay.gateway.lease import FOREVER, INPUT, OUTPUT, Lease, format_seconds
from forebay.gateway.model import Exchange

SECONDS_READABLE = 120  #: in messages to people; more are minutes and hours


class Plan:
    """The limits that one key meets with one model.

    Attributes:
        counts_tokens: a limit wants to know how many tokens a request will take.
        counts_cost: a limit wants to know what a request will cost.
    """

    __slots__ = ("_requests", "_tokens", "counts_cost", "counts_tokens", "leases")

    def __init__(self, leases: tuple[Lease, ...]) -> None:
        self.leases = leases
        self._tokens = tuple(lease for lease in leases if lease.counts)
        self._requests = tuple(lease for lease in leases if lease.counts_requests)
        self.counts_cost = any(lease.is_cost for lease in leases)
        self.counts_tokens = bool(self._tokens) or self.counts_cost

    def describe(self) -> str:
        """The header lines that tell a caller of the tightest of its limits."""
        lines = find_tightest(self._requests).describe() if self._requests else ""
        return lines + find_tightest(self._tokens).describe() if self._tokens else lines

    def list_exceeded(self) -> list[Lease]:
        """Those for which there was no room, though they refuse nothing."""
        return [lease for lease in self.leases if lease.is_exceeded]


def find_tightest(leases: tuple[Lease, ...]) -> Lease:
    found = leases[0]
    least = (found.known_left + found.left) / (found.limit.amount or 1)
    for lease in leases[1:]:
        part = (lease.known_left + lease.left) / (lease.limit.amount or 1)
        if part < least:
            found, least = lease, part
    return found


def count_tokens(lease: Lease, tokens: Tokens) -> int:
    """Units of a limit, 1 where it counts no tokens; of an even one `tokens` are input and output alone."""
    counts = lease.counts
    if not counts:
        return 1
    if not lease.is_even:
        return count_units(lease.limit, tokens)
    units = tokens.input or 0 if counts & INPUT else 0
    return units + (tokens.output or 0) if counts & OUTPUT else units


def count_need(lease: Lease, tokens: Tokens, *, named: bool) -> int:
    """Units of a limit that a request needs by its estimate; `named`: its output is the caller's word."""
    units = count_tokens(lease, tokens)
    if units > lease.guess_max and not named and lease.counts:
        return lease.bound_guess(units, count_tokens(lease, Tokens(input=tokens.input)))
    return units


def explain_shortage(lease: Lease, units: int, wait_s: float) -> RateLimited:
    """The refusal of a request that needs so many units, for which there is room after so long."""
    limit = lease.limit
    if units > limit.amount:
        return RateLimited(
            f"the limit of {limit.describe()} is too small for this request, which may take "
            f"{limit.spell(units)}"
        )
    seconds = max(1, -(-int(wait_s * 1000) // 1000))
    if lease.is_concurrent:
        when = "try again when one of them has ended"
    else:
        words = f"{seconds} s" if seconds < SECONDS_READABLE else format_seconds(seconds)
        when = f"it has room for this request in {words}"
    return RateLimited(f"the limit of {limit.describe()} is reached; {when}", retry_after_s=seconds)


def follow_exceeded(exchange: Exchange, lease: Lease, now_s: float) -> None:
    """Does to a request what a limit asks for that is exceeded.

    Args:
        now_s: the loop's time.

    Raises:
        RateLimited: no other model can answer it.
    """
    limit = lease.limit
    if limit.exceeded is Exceeded.THROTTLE:
        exchange.throttles += (limit.throttle,)
    elif limit.exceeded is Exceeded.DOWNGRADE and exchange.model != limit.downgrade_to:
        # Nobody is sent back to a model for which there was no room.
        if limit.downgrade_to != exchange.asked_model and exchange.redirect(limit.downgrade_to):
            return
        raise RateLimited(
            f"the limit of {limit.describe()} is reached, and this request can't be answered by "
            f"{limit.downgrade_to} in its place: the key may not call it, it has no such endpoint, or there "
            "is no room for it either",
            retry_after_s=max(1, int(lease.ends_at - now_s) + 1) if lease.ends_at < FOREVER else 1,
        )
