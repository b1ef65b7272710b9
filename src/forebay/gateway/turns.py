"""Who asks the authority for which limits: one request at a time for each, in order of arrival.

Whoever comes meanwhile sleeps until it is its turn, and then often finds that enough was lent already.  So a
crowd costs each request one look, and not each request a look at each answer.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from forebay.gateway.lease import Lease
from forebay.gateway.line import Waiter


class Turns:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asking: dict[Lease, Waiter] = {}  # whose turn it is
        self._next: dict[Lease, deque[tuple[Waiter, asyncio.Future[None]]]] = {}

    async def begin(self, waiter: Waiter, leases: Iterable[Lease]) -> bool:
        """Whether it may ask for all of these now; False after its turn has come for one more, to look again.

        Turns are taken in the order of the limits' ids alone, so no two wait for each other.
        """
        wanted = sorted(leases, key=_id_of)
        last = max(map(_id_of, waiter.turns), default="")
        if any(lease.limit.id < last and lease not in waiter.turns for lease in wanted):
            self.end(waiter)
        for lease in wanted:
            holder = self._asking.get(lease)
            if holder is None:
                self._asking[lease] = waiter
                waiter.turns += (lease,)
            elif holder is not waiter:
                mine = self._loop.create_future()
                self._next.setdefault(lease, deque()).append((waiter, mine))
                await mine
                return False
        return True

    def end(self, waiter: Waiter) -> None:
        """It asks no more: it has what it needs, was refused, waits in line, or is gone."""
        turns, waiter.turns = waiter.turns, ()
        for lease in turns:
            del self._asking[lease]
            sleepers = self._next.get(lease)
            while sleepers:
                other, future = sleepers.popleft()
                if not future.done():  # else it is gone
                    self._asking[lease] = other
                    other.turns += (lease,)
                    future.set_result(None)
                    break
            if not sleepers:
                self._next.pop(lease, None)


def _id_of(lease: Lease) -> str:
    return lease.limit.id
