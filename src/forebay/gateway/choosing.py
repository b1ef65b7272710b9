"""Makes the plan of a request whose route has something to choose, and explains it to who may ask.

The decision is `policy.route`'s; this hands it what the worker knows, the time and a draw.  A route with one
target and without fallbacks never comes here.  Nothing here sends anything.
"""

from collections.abc import Awaitable, Callable, Sequence
from random import random

import msgspec

from forebay.core.errors import CapabilityMissing, ForebayError, ModelOverloaded
from forebay.core.routes import CAPABILITIES, Endpoint
from forebay.gateway.crowd import Crowd
from forebay.gateway.model import Exchange, RouteState, TargetState
from forebay.gateway.policy.explain import explain, explain_barred, explain_listed
from forebay.gateway.policy.fleet import Fleet
from forebay.gateway.policy.listed import is_in_service, note_probe, order_listed
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.policy.route import choose, choose_first, count_fit
from forebay.gateway.policy.want import Want
from forebay.gateway.seating import hold, take_seat
from forebay.gateway.wants import read_want

DEBUG_HEADER = b"x-forebay-debug"
DEBUG_ROUTE = b"route"

TakeOver = Callable[[Exchange, RouteState, TargetState], Awaitable[ForebayError | None]]


class Chooser:
    """See the module.

    Args:
        get_time: the loop's time.
        take_over: reserves what a request needs of the limits of another model that is to go on at a place;
            returns the refusal where that can't be.
        crowd: where requests wait whose places are full.
        draw: gives random numbers from 0 up to but not including 1.
    """

    def __init__(
        self,
        get_time: Callable[[], float],
        take_over: TakeOver,
        crowd: Crowd,
        draw: Callable[[], float] = random,
    ) -> None:
        self._get_time = get_time
        self._take_over = take_over
        self._crowd = crowd
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
        else:
            load = exchange.target_state.load
            if load is not None and load.unfit_until and self._is_in_doubt(load, route):
                self.plan(exchange)
        return True

    def _is_in_doubt(self, load: ReplicaLoad, route: RouteState) -> bool:
        """Whether the first of the places that are tried as they are listed may have to stand back."""
        return len(route.targets) > 1 and (load.is_on_trial or not load.is_fit(self._get_time()))

    async def prepare_whole(self, exchange: Exchange) -> bool:
        """The same, with room in the limits of the model that is to begin.

        Raises:
            CapabilityMissing: no target can do what it needs.
            RateLimited: only another model can, and its limits have no room.
            QuotaUnavailable: likewise, and nobody knows.
            ModelOverloaded: all places are full, and it may not wait, or not any more.
        """
        if exchange.plan is None and exchange.turn is None and not self.prepare(exchange):
            return False
        if exchange.turn is not None:
            try:
                await self._crowd.wait(exchange)
            except ModelOverloaded:
                if not exchange.fallbacks or not self._begin_elsewhere(exchange):
                    raise
        if self.is_other_first(exchange):
            refusal = await self.find_room(exchange)
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
            fleet = route.fleets.get(exchange.endpoint) or route.find_fleet(exchange.endpoint)
            want = read_want(exchange, fleet)
            exchange.load_tokens = want.tokens
            now = self._get_time()
            first = choose_first(fleet, want, now, self._draw())
            if first is not None and route.queue is not None and has_queue(exchange, route):
                self._seat(exchange, route, fleet, want, first)
                return
            if first is not None:
                target = exchange.target_state = route.places[first]
                exchange.plan, exchange.is_plan_whole = (target,), False
                fit = fleet.size if now >= fleet.trouble.until else count_fit(fleet, now)
                exchange.tries.targets_left = fit
                return
        self._plan_whole(exchange, route)

    def _plan_whole(self, exchange: Exchange, route: RouteState) -> None:
        """Other models come last, and those of which all places are out of service not at all.

        Where all of this one's are, or it can't answer, the first of the others that can begins.  Where all
        are out of service, all are tried rather than none.
        """
        limit, now = exchange.state.snapshot.table.attempts_max, self._get_time()
        others = []
        for fallback in self._list_fallbacks(exchange, route):
            found = self.choose(exchange, fallback, 1)
            if found:
                others.append((fallback, found))
        fit = [each for each in others if is_in_service(each[1][0], now)]
        targets = self.choose(exchange, route, max(1, limit - 1) if fit else limit)
        if not targets and not others:
            raise self._explain_lack(exchange, route)
        own = [(route, targets)] if targets else []
        if targets and any(is_in_service(each, now) for each in targets):
            turns = [*own, *fit]
        elif fit or not targets:
            others = fit or others
            first = others[0][0]
            others[0] = first, self.choose(exchange, first, max(1, limit - len(others) + 1 - len(own)))
            turns = [*others, *own]
        else:
            turns = [*own, *others]
        self._take_turns(exchange, route, turns)
        load = exchange.target_state.load
        if exchange.mirror_of or load is None:
            pass
        elif turns[0][0].groups:
            load.note_trial(now)
        else:
            note_probe(exchange.target_state, now)
        if has_queue(exchange, route) and not self.is_other_first(exchange):
            self._seat_or_turn(exchange, route)

    def _take_turns(
        self, exchange: Exchange, route: RouteState, turns: Sequence[tuple[RouteState, list[TargetState]]]
    ) -> None:
        """Makes the plan of places of one model after the other; `route` is the one that was asked for."""
        plan: list[TargetState] = []
        changes = []
        for state, places in turns:
            if plan or state is not route:
                changes.append((len(plan), state))
            plan += places
        exchange.plan, exchange.fallbacks = tuple(plan), tuple(changes)
        exchange.tries.targets_left = len(plan)
        exchange.target_state = plan[0]

    def _seat(self, exchange: Exchange, route: RouteState, fleet: Fleet, want: Want, index: int) -> None:
        """Gives a request the place that was chosen for it, another one where that is full, or a turn.

        Raises:
            ModelOverloaded: it may not wait, or not for so long.
        """
        now = self._get_time()
        if self._crowd.is_open(fleet, index, now):
            take_seat(exchange, route, fleet, index, want, now)
        else:
            self._crowd.find_turn(exchange, fleet, want, now)

    def _seat_or_turn(self, exchange: Exchange, route: RouteState) -> None:
        """The same for one with a whole plan: where it may not wait, a fallback that has room begins."""
        fleet = route.find_fleet(exchange.endpoint)
        want = read_want(exchange, fleet)
        first = exchange.target_state
        index = next(at for at in fleet.seats if route.places[at] is first)
        try:
            self._seat(exchange, route, fleet, want, index)
        except ModelOverloaded:
            if not self._begin_elsewhere(exchange):
                raise

    def _begin_elsewhere(self, exchange: Exchange) -> bool:
        """Lets the first of the fallbacks begin that has room; False, and nothing is changed, if none has."""
        plan, now = exchange.plan, self._get_time()
        assert plan is not None
        for number, (start, route) in enumerate(exchange.fallbacks):
            target = plan[start]
            if not self.is_open(exchange, route, target):
                continue
            exchange.plan, exchange.target_state = plan[start:], target
            exchange.fallbacks = tuple((at - start, each) for at, each in exchange.fallbacks[number:])
            exchange.tries.targets_left = len(plan) - start
            if target.load is not None:
                hold(exchange, target, exchange.load_tokens, now)
            return True
        return False

    def is_open(self, exchange: Exchange, route: RouteState, target: TargetState) -> bool:
        """Whether a place can have a request at once: it is not full, and nobody waits for it."""
        if not has_queue(exchange, route):
            return True
        fleet = route.find_fleet(exchange.endpoint)
        index = next((at for at in fleet.seats if route.places[at] is target), None)
        return index is not None and self._crowd.is_open(fleet, index, self._get_time())

    async def find_room(self, exchange: Exchange) -> ForebayError | None:
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

    def choose(self, exchange: Exchange, route: RouteState, limit: int) -> list[TargetState]:
        """Places of one model in the order in which they are to be tried; none where none can answer."""
        if not route.groups:
            return order_listed(route.targets, self._get_time())[:limit]
        fleet = route.find_fleet(exchange.endpoint)
        want = read_want(exchange, fleet)
        if not exchange.tries.made:
            exchange.load_tokens = want.tokens
        may_stray = not exchange.mirror_of and not exchange.tries.made
        plan = choose(fleet, want, self._get_time(), self._draw(), limit, may_stray=may_stray)
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
            explained = explain_listed(route.targets, limit, self._get_time())
        explained.candidates.extend(barred)
        told = {"model": exchange.model, **msgspec.to_builtins(explained)}
        fallbacks = self._list_fallbacks(exchange, route)
        if fallbacks:
            told["fallbacks"] = [self._explain_fallback(exchange, each) for each in fallbacks]
        if has_queue(exchange, route):
            told["queue"] = self._crowd.describe(exchange.model, exchange.key, fleet, want, self._get_time())
        return msgspec.json.encode(told)

    def _explain_fallback(self, exchange: Exchange, route: RouteState) -> dict[str, object]:
        found = self.choose(exchange, route, 1)
        is_up = bool(found) and is_in_service(found[0], self._get_time())
        return {"model": route.route.model, "in_service": is_up}


def has_queue(exchange: Exchange, route: RouteState) -> bool:
    """Whether a request waits where all places are full.

    A count of tokens is no work for a place, and a copy for a mirror never waits.
    """
    if route.queue is None or exchange.mirror_of:
        return False
    return exchange.endpoint is not Endpoint.COUNT_TOKENS
