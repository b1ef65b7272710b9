"""Decides who of those that wait for one limit is next.  Pure, in integers.

Between classes: while several wait, units go out by `WEIGHTS`, so a lower class is slow and never starved.
Between the tenants of a class: each its equal part of the units, however many of its requests wait.  Of one
tenant: who came first.

The classes go by *finish* tags (self-clocked fair queueing, Golestani 1994): a class whose next request would
end first, at its share, is next, so a higher class that has something waiting goes before.  The tenants go by
*start* tags (start-time fair queueing, Goyal, Vin and Cheng 1996): a tenant's next request starts where its
last one ended, and one that comes anew starts where the class is.  For any two tenants that wait all the
time, what they got differs by no more than the largest request of both together.  Nothing is charged but what
was really let in, so a request that leaves costs its tenant nothing.
"""

from collections.abc import Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import islice

WEIGHTS = (16, 4, 1)  #: of the classes in the order of `core.keys.PRIORITIES`: interactive, standard, batch
FACTORS = tuple(WEIGHTS[0] // weight for weight in WEIGHTS)  #: how far one unit moves a class
TENANTS_LOOKED_AT = 256  #: to see how long one would wait; more only make it longer
SLACK = 16  #: of entries in a heap that are of no use any more, before it is cleared


class Full(Enum):
    """Which bound keeps a request from waiting."""

    ALL = "all"
    TENANT = "tenant"


class Entry:
    """One request that waits.

    Attributes:
        rank: of its class, 0 is served first.
        tenant: with whom it shares one part.
        units: what it needs of the limit, at least 1.
        number: of its arrival; unique.
    """

    __slots__ = ("is_waiting", "number", "rank", "tenant", "units")

    def __init__(self, rank: int, tenant: str, units: int, number: int) -> None:
        self.rank = rank
        self.tenant = tenant
        self.units = max(1, units)
        self.number = number
        self.is_waiting = False

    def __lt__(self, other: "Entry") -> bool:
        return self.number < other.number


class _Tenant:
    """Those of one tenant that wait, and where its next request starts."""

    __slots__ = ("_heap", "count", "order", "start", "units")

    def __init__(self, start: int, order: int) -> None:
        self.start = start
        self.order = order  # of two that start at the same point, who waits longer is first
        self.count = self.units = 0
        self._heap: list[Entry] = []

    def add(self, entry: Entry) -> None:
        heappush(self._heap, entry)
        self.count += 1
        self.units += entry.units

    def drop(self, entry: Entry) -> None:
        """The entry does not wait any more; it goes from the heap when it comes up, or with many others."""
        self.count -= 1
        self.units -= entry.units
        if len(self._heap) > 2 * self.count + SLACK:
            self._heap = [each for each in self._heap if each.is_waiting]
            heapify(self._heap)

    def first(self) -> Entry:
        heap = self._heap
        while not heap[0].is_waiting:
            heappop(heap)
        return heap[0]


class _Class:
    """The tenants of one class that have something waiting.

    Attributes:
        clock: where the request started that was let in last.
        start: where the class's next request starts, on the clock of all classes.
    """

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.start = self.clock = 0
        self.count = self.units = 0
        self.tenants: dict[str, _Tenant] = {}
        self._ends: dict[str, int] = {}  # where tenants without anything waiting would start, if behind
        self._heap: list[tuple[int, int, str]] = []
        self._order = 0

    def add(self, entry: Entry) -> None:
        tenant = self.tenants.get(entry.tenant)
        if tenant is None:
            start = max(self.clock, self._ends.pop(entry.tenant, 0))
            self._order += 1
            tenant = self.tenants[entry.tenant] = _Tenant(start, self._order)
            heappush(self._heap, (start, tenant.order, entry.tenant))
        tenant.add(entry)
        self.count += 1
        self.units += entry.units

    def drop(self, entry: Entry, *, is_served: bool) -> None:
        tenant = self.tenants[entry.tenant]
        tenant.drop(entry)
        self.count -= 1
        self.units -= entry.units
        if is_served:
            self.clock = max(self.clock, tenant.start)
            tenant.start += entry.units
            self._order += 1
            tenant.order = self._order
            if tenant.count:
                heappush(self._heap, (tenant.start, tenant.order, entry.tenant))
        if not tenant.count:
            del self.tenants[entry.tenant]
            self._remember(entry.tenant, tenant.start)
        if len(self._heap) > 2 * len(self.tenants) + SLACK:
            self._heap = [(each.start, each.order, name) for name, each in self.tenants.items()]
            heapify(self._heap)

    def _remember(self, name: str, start: int) -> None:
        """Leaving and coming again gives nobody another turn."""
        if start > self.clock:
            self._ends[name] = start
        if len(self._ends) > 2 * len(self.tenants) + TENANTS_LOOKED_AT:
            self._ends = {name: end for name, end in self._ends.items() if end > self.clock}
            if len(self._ends) > 2 * TENANTS_LOOKED_AT:
                self._ends.clear()

    def first(self) -> Entry:
        """Who is next.  The class must not be empty."""
        heap = self._heap
        while True:
            _, order, name = heap[0]
            tenant = self.tenants.get(name)
            if tenant is not None and tenant.order == order:
                return tenant.first()
            heappop(heap)

    def count_before(self, name: str) -> int:
        """Units that are let in before a tenant's next request that is not there yet, at the least."""
        own = self.tenants.get(name)
        before = own.units if own is not None else 0
        start = own.start + own.units if own is not None else max(self.clock, self._ends.get(name, 0))
        for other in islice(self.tenants.values(), TENANTS_LOOKED_AT):
            if other is not own and other.start <= start:
                before += min(other.units, max(other.first().units, start - other.start))
        return before


class FairQueue:
    """See the module.

    Args:
        entries_max: that wait at a time.
        tenant_max: of these, of one tenant in one class.
    """

    def __init__(self, *, entries_max: int, tenant_max: int) -> None:
        self.entries_max = entries_max
        self.tenant_max = tenant_max
        self._classes = tuple(_Class(factor) for factor in FACTORS)
        self._clock = 0  # where the class's request ended that was let in last
        self._first: Entry | None = None  # as long as it is known

    def __len__(self) -> int:
        return sum(each.count for each in self._classes)

    def __iter__(self) -> Iterator[_Class]:
        return iter(self._classes)

    def add(self, entry: Entry) -> Full | None:
        """Takes a request in; says why not, and does nothing, if it can't."""
        if len(self) >= self.entries_max:
            return Full.ALL
        own = self._classes[entry.rank]
        tenant = own.tenants.get(entry.tenant)
        if tenant is not None and tenant.count >= self.tenant_max:
            return Full.TENANT
        if not own.count:
            own.start = max(self._clock, own.start)
        entry.is_waiting = True
        own.add(entry)
        self._first = None
        return None

    def first(self) -> Entry | None:
        """Who is next; None if nobody waits."""
        if self._first is None:
            best = None
            for each in self._classes:
                if each.count:
                    entry = each.first()
                    end = each.start + entry.units * each.factor
                    if best is None or end < best:  # of two at the same point the higher class goes first
                        best, self._first = end, entry
        return self._first

    def remove(self, entry: Entry) -> None:
        """A request leaves without anything."""
        self._drop(entry, is_served=False)

    def take(self, entry: Entry) -> None:
        """A request is let in, whether or not it was next."""
        self._drop(entry, is_served=True)

    def _drop(self, entry: Entry, *, is_served: bool) -> None:
        if not entry.is_waiting:
            return
        entry.is_waiting = False
        self._first = None
        if is_served:
            self.charge(entry.rank, entry.units)
        self._classes[entry.rank].drop(entry, is_served=is_served)

    def lets_pass(self, rank: int, units: int) -> bool:
        """Whether a request that has just come would be next: no other of its class or a higher one waits,
        and the lower ones have had their part."""
        if any(each.count for each in self._classes[: rank + 1]):
            return False
        first = self.first()
        if first is None:
            return True
        other = self._classes[first.rank]
        return self._find_end(rank, units) <= other.start + first.units * other.factor

    def charge(self, rank: int, units: int) -> None:
        """Units went to a class."""
        own = self._classes[rank]
        own.start = self._find_end(rank, units)
        self._clock = max(self._clock, own.start)
        self._first = None

    def _find_end(self, rank: int, units: int) -> int:
        own = self._classes[rank]
        start = own.start if own.count else max(self._clock, own.start)
        return start + max(1, units) * own.factor

    def count_before(self, rank: int, tenant: str, units: int) -> int:
        """Units that go before a tenant's next request, which is not there yet, as far as can be seen."""
        own = self._classes[rank]
        before = own.count_before(tenant)
        end = self._find_end(rank, before + units)
        for other, each in enumerate(self._classes):
            if other != rank and each.count:
                room = (end - each.start - (other > rank)) // each.factor
                size = -(-each.units // each.count)  # requests go whole, and so much at a time
                before += min(each.units, max(0, room // size * size))
        return before
