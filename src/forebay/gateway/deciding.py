"""What comes after an attempt of one request: tells the place's load, changes the plan, and asks the table.

The decision is `policy.attempt`'s, and `policy.budget` says whether a retry may be made at all; this hands
them what has happened.  It owns what becomes of a plan once an attempt has ended.  Nothing here sends
anything.
"""

from collections.abc import Callable, Sequence

from forebay.core.context_overflow import says_too_long
from forebay.core.errors import ConnectionsExhausted, ContextTooLong, Fault, Next, TargetError
from forebay.core.routes import Endpoint
from forebay.gateway.answers import JSON_TYPE, Answer
from forebay.gateway.choosing import Chooser
from forebay.gateway.model import Exchange, RouteState, TargetState
from forebay.gateway.policy.attempt import Happened, Step, choose_step, name_error, name_status
from forebay.gateway.policy.budget import RetryBudget
from forebay.gateway.policy.faults import compute_retry_s
from forebay.gateway.policy.listed import is_in_service, note_probe, order_listed
from forebay.gateway.policy.load import ReplicaLoad
from forebay.gateway.state import State

BUSY_STATUSES = frozenset({429, 503, 529})  #: of a target that has no room
FAILED_STATUSES = frozenset({401, 403, 408, 500, 502, 504})  #: of one that is ill
RETRY_AFTER_MAX_S = 300
FULL_S = 0.1  #: that a target is left alone whose connections are all in use


class Decider:
    """See the module.

    Args:
        count_requests: how many requests this worker has ever served.
        get_time: the loop's time.
    """

    def __init__(
        self, chooser: Chooser, count_requests: Callable[[], int], get_time: Callable[[], float]
    ) -> None:
        self._chooser = chooser
        self._count_requests = count_requests
        self._get_time = get_time
        self.budget = RetryBudget()

    async def decide_after_error(self, exchange: Exchange, error: TargetError) -> Step:
        """What comes after an attempt that ended without an answer."""
        self.tell_error(exchange, error)
        self.complete_plan(exchange)
        happened = name_error(error)
        if happened is Happened.UNTOLD:
            self._pass_over(exchange)
        return await self._choose_step(exchange, happened)

    async def decide_after_status(self, exchange: Exchange, answer: Answer) -> Step:
        """What comes after an answer with an error status."""
        if is_overflow(exchange, exchange.target_state, answer):
            return await self._decide_after_overflow(exchange, answer.status)
        self.tell_status(exchange, answer)
        self.complete_plan(exchange)
        return await self._choose_step(exchange, name_status(answer.status))

    async def _decide_after_overflow(self, exchange: Exchange, status: int) -> Step:
        """Only a larger window is worth another try.  It says nothing of the target's health."""
        window = exchange.target_state.target.context_window
        self.complete_plan(exchange)
        if window is None:
            return await self._choose_step(exchange, name_status(status))
        exchange.window_tried = max(exchange.window_tried, window)
        self._keep_wider(exchange, exchange.window_tried)
        return await self._choose_step(exchange, Happened.TOO_LONG)

    async def _choose_step(self, exchange: Exchange, happened: Happened) -> Step:
        is_free = not exchange.sent or happened is Happened.UNTOLD  # no target was asked for nothing
        step = choose_step(exchange.tries, happened, has_budget=is_free or self.has_room(exchange))
        if step is Step.NEXT and exchange.fallbacks:
            await self._chooser.find_room(exchange)
            step = Step.NEXT if exchange.tries.has_alternative else Step.STOP
        if step is Step.SPENT:
            exchange.is_retry_denied = True
            exchange.state.cells.count_retry("denied")
        elif step is Step.NEXT and not is_free:
            self.spend(exchange)
        if step is Step.NEXT:
            self._note_probe(exchange)
        return step

    def _note_probe(self, exchange: Exchange) -> None:
        """The next attempt looks whether its place is well, where places are tried as they are listed."""
        route, made, others = exchange.route, exchange.tries.made, exchange.fallbacks
        if route is None or route.groups or (others and made >= others[0][0]):
            return
        plan = route.targets if exchange.plan is None else exchange.plan
        note_probe(plan[made], self._get_time())

    def spend(self, exchange: Exchange) -> None:
        """A retry, or a hedge, is made."""
        self.budget.spend()
        exchange.state.cells.count_retry("made")

    def find_next(self, exchange: Exchange) -> TargetState | None:
        """The place that comes next, of the same model, if a request that is under way may have it as well:
        it is in service and not full."""
        tries, route = exchange.tries, exchange.route
        assert route is not None
        if not tries.has_alternative or any(at == tries.made for at, _ in exchange.fallbacks):
            return None
        target = (route.targets if exchange.plan is None else exchange.plan)[tries.made]
        is_fit = is_in_service(target, self._get_time()) and self._chooser.is_open(exchange, route, target)
        return target if is_fit else None

    def has_room(self, exchange: Exchange) -> bool:
        """Whether the budget has room for one more attempt of a request."""
        return self.look_at_budget(exchange.state)

    def look_at_budget(self, state: State) -> bool:
        """Whether a retry may be made now; to be called every tenth of a second as well.

        All who choose are told how dear a retry is.
        """
        table, workers = state.snapshot.table, max(1, state.snapshot.quota_workers)
        least = table.retry_budget_min_per_s / workers
        has_room = self.budget.look(self._get_time(), self._count_requests(), table.retry_budget, least)
        state.trouble.retry_s = compute_retry_s(self.budget.strain)
        return has_room

    def has_way_on(self, exchange: Exchange) -> bool:
        """Whether a request could really be tried elsewhere at this moment; else no first-token timeout may
        cut it short."""
        tries = exchange.tries
        if not tries.has_alternative or self.budget.is_spent:
            return False
        if not exchange.is_plan_whole:
            return True  # what is left was counted without those out of service
        route = exchange.route
        assert route is not None
        plan = route.targets if exchange.plan is None else exchange.plan
        now = self._get_time()
        return any(is_in_service(target, now) for target in plan[tries.made :])

    # --- health ---------------------------------------------------------------------------------------------

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
            now = self._get_time()
            load.fail(now, now - exchange.attempt_at, has_begun=exchange.tries.content_sent)

    def tell_status(self, exchange: Exchange, answer: Answer) -> None:
        """Likewise of an answer with an error status."""
        load, now = exchange.load, self._get_time()
        if load is not None and answer.status in FAILED_STATUSES:
            _blame(exchange, load, now)
        elif load is not None and answer.status in BUSY_STATUSES:
            of_account = answer.status == 429
            load.refuse(now, read_retry_after_s(answer.retry_after), of_account=of_account)

    # --- what is left of a plan -----------------------------------------------------------------------------

    def complete_plan(self, exchange: Exchange) -> None:
        """Adds what comes after the first attempt to a plan that was that far alone."""
        route = exchange.route
        assert route is not None
        if exchange.is_plan_whole:
            made = exchange.tries.made
            if exchange.plan is None and exchange.tries.targets_left > 1:
                left = order_listed(route.targets[made:], self._get_time())
                exchange.plan = (*route.targets[:made], *left)
            return
        exchange.is_plan_whole = True
        limit = exchange.state.snapshot.table.attempts_max
        tried = exchange.target_state
        others = [each for each in self._chooser.choose(exchange, route, limit) if each is not tried]
        if len(others) == limit > 1:
            del others[-2]  # the last attempt is for who fails the least
        exchange.plan = (tried, *others[: limit - 1])
        exchange.tries.targets_left = len(exchange.plan) - 1

    def _pass_over(self, exchange: Exchange) -> None:
        """Lets a target count for nothing that can't be told the request: nothing was sent to it.

        Nor can others be told that speak the same for the same model; what else there is comes next, also
        where it was not planned.
        """
        tries, route = exchange.tries, exchange.route
        assert route is not None
        tries.made -= 1
        made = tries.made
        plan = route.targets if exchange.plan is None else exchange.plan
        left = list(plan[made + 1 :])
        if exchange.fallbacks:  # they have their places in the plan
            exchange.fallbacks = tuple((at - 1, other) for at, other in exchange.fallbacks if at > made)
        else:
            mute = _name_speech(exchange.target_state)
            left = [target for target in left if _name_speech(target) != mute]
            if not left:
                places = self._chooser.choose(exchange, route, len(route.places))
                left = [target for target in places if target not in plan and _name_speech(target) != mute]
        exchange.plan = (*plan[:made], *left)
        tries.targets_left = len(left)

    def _keep_wider(self, exchange: Exchange, window: int) -> None:
        """Leaves in the plan what has a larger window alone, with places that were not planned."""
        tries, route = exchange.tries, exchange.route
        assert route is not None
        made = tries.made
        tried = (route.targets if exchange.plan is None else exchange.plan)[:made]
        others = [other for at, other in exchange.fallbacks if at >= made]
        room = tries.limit - made
        left = self._find_wider(exchange, route, tried, window)[: room - 1 if others else room]
        fallbacks = []
        for other in others:
            found = self._find_wider(exchange, other, tried, window)
            if found:
                fallbacks.append((made + len(left), other))
                left.append(found[0])
        exchange.plan, exchange.fallbacks = (*tried, *left), tuple(fallbacks)
        tries.targets_left = len(left)

    def _find_wider(
        self, exchange: Exchange, route: RouteState, tried: Sequence[TargetState], window: int
    ) -> list[TargetState]:
        places = self._chooser.choose(exchange, route, len(route.places))
        return [
            place
            for place in places
            if (place.target.context_window or 0) > window and not any(place is each for each in tried)
        ]


def explain_overflow(exchange: Exchange, answer: Answer) -> Answer:
    """The answer that a request gets which is too long for places whose windows are known; others stay."""
    window = exchange.window_tried
    if not window or not is_overflow(exchange, exchange.target_state, answer):
        return answer
    error = ContextTooLong(
        f"the request is longer than the context window of each place that was tried for the model "
        f"{exchange.model}, of {window} tokens at most: shorten the prompt, or ask for a shorter answer",
        param="messages" if exchange.endpoint in (Endpoint.CHAT, Endpoint.MESSAGES) else None,
    )
    return Answer(error.status, JSON_TYPE, exchange.dialect.encode_error(error), error_code=error.code)


def is_overflow(exchange: Exchange, target: TargetState, answer: Answer) -> bool:
    """Whether a target says that a request is too long for it."""
    window = target.target.context_window
    return says_too_long(answer.status, answer.body, exchange.body, window)


def _name_speech(target: TargetState) -> tuple[str, str]:
    """What decides whether a target can be told something."""
    return target.target.dialect, target.target.model


def read_retry_after_s(digits: bytes) -> int | None:
    """How long a target asks to be left alone, as far as it is heard; None where it does not say."""
    return min(RETRY_AFTER_MAX_S, int(digits)) if digits else None


def _blame(exchange: Exchange, load: ReplicaLoad, now: float) -> None:
    """Counts an answer that speaks of illness; of a request that gets such from two places, against neither.

    Else one caller's requests that no place can bear would put all places out of service for everybody.
    """
    first = exchange.blamed
    if first is None:
        exchange.blamed = load
        load.fail(now, now - exchange.attempt_at)
    elif first is not load and not exchange.is_cleared:
        first.forgive(now)
        exchange.is_cleared = True
