"""Lets another model go on with a request whose first one failed, as far as its limits have room.

What the request holds becomes what that model needs: limits that both meet stay reserved, those that it meets
alone are reserved too, and those of the model before it come back.  It borrows and never waits in line, for
there are other ways; it leaves everything as it was where there is no room.
"""

from collections.abc import Sequence

from forebay.core.errors import ForebayError, QuotaUnavailable, RateLimited
from forebay.gateway.model import Exchange, RouteState, TargetState
from forebay.gateway.plan import explain_shortage
from forebay.gateway.quota import Quota
from forebay.gateway.waiting import Reserved

NEXT_TRY_S = 1.0  #: that a caller is told to wait, where nobody knows when there is room


class Succession:
    """See the module."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota

    async def take_over(
        self, exchange: Exchange, route: RouteState, target: TargetState
    ) -> ForebayError | None:
        """Reserves what a request needs so that a model may answer it there; the refusal if it can't."""
        held = exchange.reservation
        if held is None:
            return None  # its key meets no limits
        before = exchange.model, exchange.target_state
        known = exchange.estimate, exchange.cost_estimate, exchange.limit_headers
        exchange.model, exchange.target_state = route.route.model, target
        exchange.estimate = exchange.cost_estimate = exchange.reservation = None
        exchange.kept = [lease for lease, _, _ in held]
        is_done = False
        try:
            taken = await self._reserve(exchange, held)
            is_done = True
        except (RateLimited, QuotaUnavailable) as refusal:
            return refusal
        finally:
            exchange.model, exchange.target_state = before
            exchange.kept = ()
            if not is_done:
                self._quota.release(exchange)
                exchange.reservation = held
                exchange.estimate, exchange.cost_estimate, exchange.limit_headers = known
        exchange.reservation = taken
        told = [line for line in known[2].splitlines(keepends=True) if line.startswith("x-forebay-")]
        exchange.limit_headers += "".join(told)
        return None

    async def _reserve(self, exchange: Exchange, held: Sequence[Reserved]) -> list[Reserved]:
        """What it holds from now on.  Raises as `Quota.acquire` does, holding then what that reserved."""
        quota = self._quota
        assert exchange.key is not None
        await quota.acquire(exchange, quota.make_plan(exchange), may_wait=False)
        fresh = exchange.reservation or []
        for lease, units, _ in fresh:
            if lease.is_exceeded:
                raise explain_shortage(lease, units, NEXT_TRY_S)
        exchange.kept = ()
        plan = quota.make_plan(exchange)
        kept = [each for each in held if each[0] in plan.leases]
        needs = [
            max(units, quota.count_need(exchange, lease)) if lease.is_cost else units
            for lease, units, _ in kept
        ]
        for (lease, units, _), need in zip(kept, needs, strict=True):
            if need > units and need - units > lease.left + max(0, lease.known_left):
                raise explain_shortage(lease, need, NEXT_TRY_S)
        # From here on nothing can fail.
        for (lease, units, epoch), need in zip(kept, needs, strict=True):
            lease.give(units - need, epoch)  # what the dearer one takes beyond a loan is a debt, as any is
        exchange.reservation = [each for each in held if each[0] not in plan.leases]
        for lease, _, _ in exchange.reservation:
            quota.waits.look_again(lease)
        quota.release(exchange)
        exchange.limit_headers = plan.describe()
        return [*fresh, *((lease, need, epoch) for (lease, _, epoch), need in zip(kept, needs, strict=True))]
