"""Makes the plan of a request whose route has something to choose, and explains it to who may ask.

The decision is `policy.route`'s; this hands it what the worker knows, the time and a draw.  A route with one
target and without fallbacks never comes here.  Nothing here sends anything.
"""

from collections.abc import Awaitable, Callable
from random import random

import msgspec

from forebay.core.errors import (
    CapabilityMissing,
    ConnectionsExhausted,
    Fault,
    ForebayError,
    Next,
    TargetError,
    Untranslatable,
)
from forebay.core.routes import CAPABILITIES
from forebay.gateway.answers import Answer
from forebay.gateway.model import Exchange, RouteState, TargetState
from forebay.gateway.policy.attempt import Step, choose_after_error, choose_after_status
from forebay.gateway.policy.explain import explain, explain_barred, explain_listed
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.policy.route import choose, choose_first, count_fit
from forebay.gateway.wants import read_want

DEBUG_HEADER = b"x-forebay-debug"
DEBUG_ROUTE = b"route"
BUSY_STATUSES = frozenset({429, 503, 529})  #: of a target that has no room
FAILED_STATUSES = frozenset({401, 403, 408, 500, 502, 504})  #: of one that is ill
RETRY_AFTER_MAX_S = 300
RETRY_AFTER_DIGITS_MAX = 9  #: more are for ever
FULL_S = 0.1  #: that a target is left alone whose connections are all in use

TakeOver = Callable[[Exchange, RouteState, TargetState], Awaitable[ForebayError | None]]


class Chooser:
    """See the module.

    Args:
        get_time: the loop's time.
        take_over: reserves what a request needs of the limits of another model that is to go on at a place;
            returns the refusal where that can't be.
        draw: gives random numbers from 0 up to but not including 1.
    """

    def __init__(
        self, get_time: Callable[[], float], take_over: TakeOver, draw: Callable[[], float] = random
    ) -> None:
        self._get_time = get_time
        self._take_over = take_over
        self._draw = draw

    def prepare(self, exchange: Exchange) -> bool:
        """Gives an admitted request its plan, if there is a choice; False where it is only to be explained.

        Raises:
            CapabilityMissing: no target can do what it needs.
        """
        if exchange.tries.made:
            return True
        if DEBUG_HEADER in exchange.call.headers and self._is_asked(exchange):
            return False
        route = exchange.route
        assert route is not None
        if route.groups or route.route.fallbacks or exchange.asked_model:
            self.plan(exchange)
        return True

    async def prepare_whole(self, exchange: Exchange) -> bool:
        """The same, with room in the limits of the model that is to begin.

        Raises:
            CapabilityMissing: no target can do what it needs.
            RateLimited: only another model can, and its limits have no room.
            QuotaUnavailable: likewise, and nobody knows.
        """
        if exchange.plan is None and not self.prepare(exchange):
            return False
        if self.is_other_first(exchange):
            refusal = await self._find_room(exchange)
            if refusal is not None and not exchange.plan:
                raise refusal
        return True

    def is_other_first(self, exchange: Exchange) -> bool:
        """Whether a request begins at another model, for whose limits nothing is reserved."""
        changes = exchange.fallbacks
        return bool(changes) and changes[0][0] == 0 == exchange.tries.made

    def plan(self, exchange: Exchange) -> None:
        """Gives an admitted request its plan.

        Raises:
            CapabilityMissing: no target can do what it needs.
        """
        route = exchange.route
        assert route is not None
        if route.groups and not route.route.fallbacks:
            fleet = route.find_fleet(exchange.endpoint)
            want = read_want(exchange, fleet)
            exchange.load_tokens = want.tokens
            first = choose_first(fleet, want, self._get_time(), self._draw())
            if first is not None:
                target = exchange.target_state = route.places[first]
                exchange.plan, exchange.is_plan_whole = (target,), False
                exchange.tries.targets_left = count_fit(fleet, self._get_time())
                return
        self._plan_whole(exchange, route)

    def _plan_whole(self, exchange: Exchange, route: RouteState) -> None:
        """Other models come last; where this one can't answer at all, the first of them that can begins."""
        limit = exchange.state.snapshot.table.attempts_max
        others = []
        for fallback in self._list_fallbacks(exchange, route):
            found = self._choose(exchange, fallback, 1)
            if found:
                others.append((fallback, found))
        targets = self._choose(exchange, route, max(1, limit - 1) if others else limit)
        if not targets and not others:
            raise self._explain_lack(exchange, route)
        if not targets:
            first = others[0][0]
            others[0] = first, self._choose(exchange, first, max(1, limit - len(others) + 1))
        changes = []
        for fallback, found in others:
            changes.append((len(targets), fallback))
            targets += found
        exchange.plan, exchange.fallbacks = tuple(targets), tuple(changes)
        exchange.tries.targets_left = len(targets)
        exchange.target_state = targets[0]

    async def decide_after_error(self, exchange: Exchange, error: TargetError) -> Step:
        """What comes after an attempt that ended without an answer."""
        self.tell_error(exchange, error)
        if not exchange.is_plan_whole:
            self._complete(exchange)
        if isinstance(error, Untranslatable):
            self._pass_over(exchange)
        step = choose_after_error(exchange.tries, error)
        return step if step is not Step.NEXT or not exchange.fallbacks else await self._go_on(exchange)

    async def decide_after_status(self, exchange: Exchange, answer: Answer) -> Step:
        """What comes after an answer with an error status."""
        load, now = exchange.load, self._get_time()
        if load is not None and answer.status in FAILED_STATUSES:
            _blame(exchange, load, now)
        elif load is not None and answer.status in BUSY_STATUSES:
            of_account = answer.status == 429
            load.refuse(now, _read_retry_after_s(answer.retry_after), of_account=of_account)
        if not exchange.is_plan_whole:
            self._complete(exchange)
        step = choose_after_status(exchange.tries, answer.status)
        return step if step is not Step.NEXT or not exchange.fallbacks else await self._go_on(exchange)

    async def _go_on(self, exchange: Exchange) -> Step:
        await self._find_room(exchange)
        return Step.NEXT if exchange.tries.has_alternative else Step.STOP

    async def _find_room(self, exchange: Exchange) -> ForebayError | None:
        """Where another model comes next, takes those from the plan whose limits have no room.

        Returns the last refusal, if there was one.
        """
        made, refusal = exchange.tries.made, None
        while exchange.tries.has_alternative:
            changes, plan = exchange.fallbacks, exchange.plan
            here = next((at for at, change in enumerate(changes) if change[0] == made), None)
            if here is None or plan is None:
                break
            answer = await self._take_over(exchange, changes[here][1], plan[made])
            if answer is None:
                break
            refusal = answer
            end = changes[here + 1][0] if here + 1 < len(changes) else len(plan)
            later = [(at - end + made, route) for at, route in changes[here + 1 :]]
            exchange.fallbacks = (*changes[:here], *later)
            exchange.plan = (*plan[:made], *plan[end:])
            exchange.tries.targets_left -= end - made
            if not made and exchange.plan:
                exchange.target_state = exchange.plan[0]
        return refusal

    def tell_error(self, exchange: Exchange, error: TargetError) -> None:
        """Counts an error against the current target, if it is one that speaks against it.

        A connection that had gone stale does not, and one that we do not allow ourselves is no illness.
        """
        load = exchange.load
        if load is None or error.fault is not Fault.TARGET or error.next is Next.RETRY_HERE:
            return
        if isinstance(error, ConnectionsExhausted):
            load.leave_alone(self._get_time(), FULL_S)
        else:
            load.fail(self._get_time())

    def _pass_over(self, exchange: Exchange) -> None:
        """Lets a target count for nothing that can't be told the request: nothing was sent to it.

        Nor can others be told that speak the same for the same model; what else there is comes next, also
        where it was not planned.
        """
        tries, route = exchange.tries, exchange.route
        assert route is not None
        tries.limit += 1
        if exchange.fallbacks:
            return  # they have their places in the plan
        plan = route.targets if exchange.plan is None else exchange.plan
        mute = _name_speech(exchange.target_state)
        left = [target for target in plan[tries.made :] if _name_speech(target) != mute]
        if not left:
            places = self._choose(exchange, route, len(route.places))
            left = [target for target in places if target not in plan and _name_speech(target) != mute]
        exchange.plan = (*plan[: tries.made], *left)
        tries.targets_left = len(left)

    def _complete(self, exchange: Exchange) -> None:
        """Adds what comes after the first attempt, which has failed, to a plan that was that far alone."""
        route = exchange.route
        assert route is not None
        exchange.is_plan_whole = True
        limit = exchange.state.snapshot.table.attempts_max
        tried = exchange.target_state
        others = [target for target in self._choose(exchange, route, limit) if target is not tried]
        exchange.plan = (tried, *others[: limit - 1])
        exchange.tries.targets_left = len(exchange.plan) - 1

    def _choose(self, exchange: Exchange, route: RouteState, limit: int) -> list[TargetState]:
        """Places of one model in the order in which they are to be tried; none where none can answer."""
        if not route.groups:
            return list(route.targets[:limit])
        fleet = route.find_fleet(exchange.endpoint)
        want = read_want(exchange, fleet)
        if not exchange.tries.made:
            exchange.load_tokens = want.tokens
        plan = choose(fleet, want, self._get_time(), self._draw(), limit)
        return [route.places[index] for index in plan.order]

    def _explain_lack(self, exchange: Exchange, route: RouteState) -> CapabilityMissing:
        needs = read_want(exchange, route.find_fleet(exchange.endpoint)).needs
        lacking = [name for at, name in enumerate(CAPABILITIES) if needs >> at & 1]
        return CapabilityMissing(
            f"no place that answers the model `{route.route.model}` takes all that this request needs: "
            f"{', '.join(lacking)}",
            param="model",
        )

    def _list_fallbacks(self, exchange: Exchange, route: RouteState) -> tuple[RouteState, ...]:
        """The models that may take over, as far as the key may call them."""
        assert exchange.key is not None
        key = exchange.state.find_key(exchange.key.digest)
        if key is None:
            return ()
        asked = exchange.state.routes.get(exchange.asked_model)
        if asked is not None and not asked.targets:
            route = asked  # its engine does not run, so one of these answers already
        found = (key.routes.get(name) for name in route.route.fallbacks if name != exchange.model)
        return tuple(each for each in found if each and each.targets and exchange.endpoint in each.cells)

    # --- explaining -----------------------------------------------------------------------------------------

    def _is_asked(self, exchange: Exchange) -> bool:
        """Whether the caller wants to know where its request would go, and may."""
        asked = exchange.call.headers.get(DEBUG_HEADER)
        return asked == DEBUG_ROUTE and exchange.state.snapshot.explains_routes

    def explain(self, exchange: Exchange) -> bytes:
        """JSON: where an admitted request would go, and why nowhere else."""
        route = exchange.route
        assert route is not None
        assert exchange.key is not None
        whole = exchange.state.routes[exchange.model]
        barred = explain_barred(exchange.key, [place.target for place in whole.places])
        limit = exchange.state.snapshot.table.attempts_max
        if route.groups:
            fleet = route.find_fleet(exchange.endpoint)
            want = read_want(exchange, fleet)
            explained = explain(fleet, want, self._get_time(), self._draw(), limit, route.groups)
        else:
            explained = explain_listed([place.target for place in route.targets], limit)
        explained.candidates.extend(barred)
        return msgspec.json.encode({"model": exchange.model, **msgspec.to_builtins(explained)})


def _name_speech(target: TargetState) -> tuple[str, str]:
    """What decides whether a target can be told something."""
    return target.target.dialect, target.target.model


def _read_retry_after_s(raw: bytes) -> int | None:
    """How long a target asks to be left alone, as far as it is heard; None where it does not say."""
    if not raw.isdigit():
        return None
    return RETRY_AFTER_MAX_S if len(raw) > RETRY_AFTER_DIGITS_MAX else min(RETRY_AFTER_MAX_S, int(raw))


def _blame(exchange: Exchange, load: ReplicaLoad, now: float) -> None:
    """Counts an answer that speaks of illness; of a request that gets such from two places, against neither.

    Else one caller's requests that no place can bear would put all places out of service for everybody.
    """
    first = exchange.blamed
    if first is None:
        exchange.blamed = load
        load.fail(now)
    elif first is not load and not exchange.is_cleared:
        first.forgive(now)
        exchange.is_cleared = True
