"""The nouns of the data plane: a compiled snapshot (`state`), and one request on its way.

Nothing here does I/O but through what it is handed.
"""

import asyncio
from collections.abc import Collection
from typing import Any

from forebay.core.errors import CallerLeft, ForebayError
from forebay.core.events import Tokens, UsageSource
from forebay.core.filler import Filler
from forebay.core.keys import KeyEntry
from forebay.core.routes import Endpoint, Target
from forebay.gateway.call import Call
from forebay.gateway.crossing import Crossing
from forebay.gateway.dialect import Dialect as Dialect
from forebay.gateway.dialect import Meter as Meter
from forebay.gateway.dialect import Reading as Reading
from forebay.gateway.dialect import RequestView as RequestView
from forebay.gateway.headroom import hear_quota
from forebay.gateway.metrics import EndpointCells
from forebay.gateway.policy.attempt import Attempts
from forebay.gateway.policy.load import OUTPUT_MIN, STALE_S, ReplicaLoad, estimate_tokens
from forebay.gateway.policy.progress import Progress
from forebay.gateway.state import KeyState as KeyState
from forebay.gateway.state import RouteState as RouteState
from forebay.gateway.state import State as State
from forebay.gateway.state import TargetState as TargetState
from forebay.net.connection import Connection

#: Answers after which nobody knows how much of the work was done.
UNCERTAIN = frozenset({500, 502, 504})

UNTRIED = Attempts(limit=0, targets_left=0)  #: for requests that never get that far; never changed


class Common:
    """What most requests set or ask for: in slots.

    An object whose class has seen more than 30 attributes keeps them in a dictionary of its own, and then
    each use of any of them costs the interpreter several times as much.
    """

    __slots__ = (
        "answer_bytes", "asked_model", "at_ns", "attempt_at", "body", "body_bytes", "broken",
        "call", "cells", "connection", "crossing", "deadline", "dialect", "duration_ns", "endpoint",
        "estimate", "fallbacks", "filler_ns", "first_s", "first_token_ns", "hedged", "holds_place",
        "id", "is_plan_whole", "is_retry_denied", "keeps_answer", "key", "left", "limit_headers",
        "load", "load_tokens", "meant_status", "mirror_of", "mirrors", "model", "names_output",
        "plan", "queued_ns", "reading", "recorded", "reservation", "route", "sent", "started_ns",
        "state", "status", "stream", "target_state", "tokens", "translated_bytes", "tries", "turn",
        "units", "usage_source", "view", "waited_ns",
    )  # fmt: skip

    answer_bytes: int
    asked_model: str  #: what the caller named, where another model answers in its place
    at_ns: int
    attempt_at: float  #: loop time at which the current attempt began, where its target is counted
    body: bytes
    body_bytes: int
    broken: ForebayError | None  #: why a stream that had begun did not end well
    call: Call
    cells: EndpointCells
    connection: Connection | None
    crossing: Crossing | None  #: of the current attempt, where its target is not met as OpenAI's are
    deadline: float  #: loop time at which the current attempt ends
    dialect: Dialect  #: that of the caller
    duration_ns: int  #: as on the record, once it is made
    endpoint: Endpoint
    estimate: Tokens | None  #: of what it will use, where a limit wants to know
    fallbacks: tuple[tuple[int, RouteState], ...]  #: models that take over, by their place in `plan`
    filler_ns: int | None  #: from the head's arrival to it
    first_s: float  #: of the current attempt until its first token, where its target is counted
    first_token_ns: int | None
    hedged: str  #: id of the target that was asked at the same time, and did not answer
    holds_place: bool  #: it is counted at its place already, where no attempt has begun
    id: str
    is_plan_whole: bool  #: else `plan` goes no further than the first attempt
    is_retry_denied: bool  #: there was another place, and no budget for it
    keeps_answer: bool  #: it is to be compared
    key: KeyEntry | None
    left: bool  #: the caller has gone
    limit_headers: str  #: header lines that tell the caller of its limits
    load: ReplicaLoad | None  #: which counts the current attempt
    load_tokens: int  #: that it counts
    meant_status: int  #: of an error that had to be told in a stream whose head was out already
    mirror_of: str  #: of a copy for a mirror, the id of the request
    mirrors: tuple[Any, ...]  #: which get a copy once it has ended; `mirrors` explains them
    model: str
    names_output: bool  #: how long the answer may become is the caller's word, not a guess
    plan: tuple[TargetState, ...] | None  #: where it goes; None: as the route lists them
    queued_ns: int  #: of `waited_ns`, for room in limits and at places
    reading: bool  #: the body is still coming
    recorded: bool
    reservation: list[tuple[Any, int, int]] | None  #: `quota` explains it
    route: RouteState | None  #: without the targets that its key may not be sent to
    sent: bool  #: a target may have worked on it
    started_ns: int
    state: State
    status: int  #: what the caller got
    stream: bool
    target_state: TargetState  #: of the current attempt, the first one before any was made; once admitted
    tokens: Tokens | None
    translated_bytes: int  #: of a body that was translated, while it is held
    tries: Attempts
    turn: Any  #: where it stands in the line for a place; `crowd` explains it
    units: tuple[tuple[str, int], ...]  #: what else the target counted
    usage_source: UsageSource
    view: RequestView
    waited_ns: int  #: for the target and the caller


class Exchange(Common):
    """One request, from its head's arrival to its record.

    The defaults of what few requests change live on the class: setting all of them anew would be a good part
    of what a request costs.
    """

    answer = b""  #: whole and good, where it is to be compared
    batch = ""  #: the line of a batch that it is for
    blamed: ReplicaLoad | None = None  #: a place against which a status that it answered with was counted
    cost_estimate: int | None = None  #: nano-USD, where a limit wants to know
    filler: Filler | None = None  #: that the stream began with, and to which the answer is joined
    kept: Collection[Any] = ()  #: leases that it holds while it reserves more for another model
    #: a place that lost with a whole answer: how long it had, and how long the one that won took
    outpaced: tuple[ReplicaLoad, float, float] | None = None
    is_filler_due = True  #: there may still be one
    guessed_units: tuple[tuple[str, int], ...] = ()  #: that it will cost, where a limit wants to know
    hedged_tokens = 0  #: prompt tokens that it may have cost, by estimate
    is_binary = False  #: its stream is no text, so that no error can be told inside it
    is_cleared = False  #: what was counted against `blamed` was taken back
    mirror_digest: bytes | None = None  #: of a copy: of what its request's answer held
    mirrors_dropped = 0  #: copies before it that its mirror did not get
    progress: Progress | None = None  #: of the body, while it comes
    silent_bytes = -1  #: of the answer that had gone out when `silence` last looked
    silent_since = 0.0  #: loop time; since when nothing has gone out, if that is so
    task: asyncio.Task[Any] | None = None
    throttles: tuple[str, ...] = ()  #: ids of limits that hold because others are exceeded
    window_tried = 0  #: the largest context window for which it was too long

    def __init__(
        self,
        state: State,
        request_id: str,
        call: Call,
        endpoint: Endpoint,
        dialect: Dialect,
        started_ns: int,
        at_ns: int,
    ) -> None:
        self.state = state
        self.id = request_id
        self.call = call
        self.endpoint = endpoint
        self.dialect = dialect
        self.started_ns = started_ns
        self.at_ns = at_ns
        self.cells = state.unknown
        self.answer_bytes = self.body_bytes = self.duration_ns = self.load_tokens = self.meant_status = 0
        self.queued_ns = self.status = self.translated_bytes = self.waited_ns = 0
        self.attempt_at = self.deadline = self.first_s = 0.0
        self.body = b""
        self.broken = self.connection = self.crossing = self.estimate = self.filler_ns = None
        self.first_token_ns = self.key = self.load = self.plan = self.reservation = self.route = None
        self.tokens = self.turn = None
        self.is_plan_whole = self.names_output = self.reading = True
        self.asked_model = self.hedged = self.limit_headers = self.mirror_of = self.model = ""
        self.holds_place = self.is_retry_denied = self.keeps_answer = self.left = self.recorded = False
        self.sent = self.stream = False
        self.usage_source = UsageSource.NONE
        self.tries = UNTRIED
        self.fallbacks = self.mirrors = self.units = ()

    @property
    def spoken(self) -> Dialect:
        """What is read of the current target's answer, before it is translated for the caller."""
        crossing = self.crossing
        return crossing.inner if crossing is not None and crossing.is_translated else self.dialect

    @property
    def attempts(self) -> int:
        return self.tries.made

    @property
    def target(self) -> Target | None:
        """The last target tried, None when none was."""
        return self.target_state.target if self.tries.made else None

    @property
    def is_uncertain(self) -> bool:
        """Whether nobody knows how much of the work was done."""
        return (self.meant_status or self.status) in UNCERTAIN

    def redirect(self, model: str) -> bool:
        """Lets another model answer that the key may call; False, and nothing is changed, if none can."""
        assert self.key is not None
        key = self.state.find_key(self.key.digest)
        route = None if key is None else key.routes.get(model)
        cells = None if route is None else route.cells.get(self.endpoint)
        if route is None or cells is None or not route.targets:
            return False
        asked, self.model, self.route, self.cells = self.model, model, route, cells
        self.tries = Attempts(self.state.snapshot.table.attempts_max, len(route.targets))
        self.target_state = route.targets[0]
        self.plan = None
        self.cost_estimate = self.estimate = None  # another price, and answers of another length
        self.asked_model = self.asked_model or asked
        return True

    def begin_attempt(self, now: float) -> None:
        """The next target's turn, and its time: a request takes no longer than its attempts may together.

        Args:
            now: the loop's time.
        """
        assert self.route is not None
        tries = self.tries
        plan = self.plan
        self.target_state = target = (self.route.targets if plan is None else plan)[tries.made]
        for at, route in self.fallbacks:
            if at == tries.made:
                self._answer_with(route)
        tries.begin_next()
        self.deadline = now + target.target.timeouts.total_s
        load = target.load
        if self.holds_place and load is self.load:
            self.holds_place, self.attempt_at = False, now
            return
        if self.load is not None:
            self.end_load(now)  # the attempt before this one has failed
        if load is not None:
            self.load, self.attempt_at = load, now
            self.load_tokens = self.load_tokens or estimate_tokens(self.body_bytes)
            load.begin(self.load_tokens, now)

    def _answer_with(self, route: RouteState) -> None:
        """Another model takes over, after all places of the one before it that were to be tried.

        It may be the one that was asked for, where that was out of service.
        """
        asked = self.asked_model or self.model
        self.model, self.route = route.route.model, route
        self.cells = route.cells[self.endpoint]
        self.asked_model = "" if asked == self.model else asked

    def tell_first(self, now: float) -> None:
        """The first token of the current attempt, which is counted, has come."""
        assert self.load is not None
        self.first_s = now - self.attempt_at
        self.load.tell_first(self.first_s, now)
        if self.load.account is not None:
            self.hear_quota(now)

    def hear_quota(self, now: float) -> None:
        """What the answer's head says of the quota of an account, which there is, is told to it, where any
        place is chosen by that."""
        connection, load = self.connection, self.load
        if connection is not None and load is not None and load.account is not None and load.pools:
            hear_quota(load.account, connection, now, self.at_ns * 1e-9)

    def end_load(self, now: float) -> None:
        """The current attempt, which is counted, has ended.

        Args:
            now: the loop's time.
        """
        load = self.load
        assert load is not None
        self.load = None
        status = self.meant_status or self.status
        if not self.recorded or status >= 300 or self.broken is not None or self.left:
            load.end(self.load_tokens, now)
            return
        tokens, begun_at = self.tokens, self.attempt_at
        output = 0 if tokens is None else tokens.output_total
        if self.first_token_ns is None and output < OUTPUT_MIN:
            load.end_well(self.load_tokens, now, begun_at, now - begun_at)
            return
        load.end(self.load_tokens, now)
        load.succeed(now, begun_at)
        if output >= OUTPUT_MIN:
            load.tell_token(max(0.0, now - begun_at - self.first_s) / output, now)

    def tell_outpaced(self, now: float) -> None:
        """The place that lost takes at least so long for an answer like this one, which is whole."""
        assert self.outpaced is not None
        load, waited_s, won_s = self.outpaced
        self.outpaced = None
        output = self.tokens.output_total if self.tokens is not None else 0
        if output < OUTPUT_MIN:
            known_s = load.estimate(0, now)
            if waited_s > (won_s if known_s is None else known_s):
                load.tell_first(waited_s, now)
            return
        is_known = now - load.token_at <= STALE_S
        if waited_s > (load.token_s * output if is_known else won_s):
            load.tell_token(waited_s / output, now)

    def is_body_late(self, now_ns: int) -> bool:
        """Whether the caller takes too long to send the body."""
        progress = self.progress
        if progress is None:
            progress = self.progress = Progress(self.started_ns, self.started_ns)
        return progress.is_too_slow(now_ns, self.call.received)

    def leave(self) -> None:
        """The caller has gone: let the target go at once."""
        self.left = True
        if self.recorded:
            return
        if self.connection is not None:
            self.connection.fail(CallerLeft("the caller left"))
        elif self.task is not None:
            self.task.cancel()
