"""No unit is lent twice, whatever workers ask, return and die of, however often the authority restarts."""

from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.app.quota_state import QuotaState
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.gateway.lease import Lease
from forebay.gateway.policy.lending import Lender, Loan, Shortage, Want
from forebay.gateway.policy.meter import PERIOD_NS, Now

S = 1_000_000_000
BUCKET = Limit(id="bucket", owner="team a", measure=Measure.REQUESTS, amount=100, period=Period.MINUTE)
CALENDAR = Limit(
    id="calendar",
    owner="team a",
    measure=Measure.TOTAL_TOKENS,
    amount=500,
    period=Period.HOUR,
    kind=Kind.CALENDAR,
)
PLACES = Limit(id="places", owner="team a", measure=Measure.CONCURRENT, amount=5)
LIMITS = (BUCKET, CALENDAR, PLACES)


class Authority(RuleBasedStateMachine):
    """Workers with leases, and the authority that lends to them, without a wire between them."""

    @initialize()
    def start(self) -> None:
        self.path = Path(mkdtemp()) / "state"
        self.now_ns = 0
        self.spent = {limit.id: 0 for limit in LIMITS}  # of a calendar: in this period
        self.workers: dict[str, dict[str, Lease]] = {}
        self.count = 0
        self.begin()

    def begin(self) -> None:
        self.lender = Lender()
        self.state = QuotaState(self.path)
        self.lender.set_limits(LIMITS, self.now)
        self.state.restore(self.lender.meters, self.now)
        for name, leases in self.workers.items():
            self.lender.join(name, self.list_held(leases))

    @property
    def now(self) -> Now:
        return Now(self.now_ns, self.now_ns)

    @staticmethod
    def list_held(leases: dict[str, Lease]) -> list[tuple[str, int]]:
        return [
            (key, lease.left + lease.in_use) for key, lease in leases.items() if lease.left + lease.in_use
        ]

    @rule()
    def a_worker_comes(self) -> None:
        if len(self.workers) < 4:
            self.count += 1
            name = f"w{self.count}"
            self.workers[name] = {limit.id: Lease(limit) for limit in LIMITS}
            self.lender.join(name, [])

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        del self.workers[name]
        self.lender.leave(name)
        self.state.save(self.lender.meters.values(), self.now)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), tokens=st.integers(1, 300), more=st.integers(0, 300))
    def a_request_reserves(self, data: st.DataObject, tokens: int, more: int) -> None:
        leases = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        name = next(key for key, value in self.workers.items() if value is leases)
        needs = {"bucket": 1, "calendar": tokens, "places": 1}
        wants = tuple(
            Want(key, need - leases[key].left, need - leases[key].left + more)
            for key, need in needs.items()
            if leases[key].left < need
        )
        found = self.lender.ask(name, wants, self.now)
        if isinstance(found, Shortage):
            return
        self.state.save(self.lender.meters.values(), self.now)
        self.absorb(leases, found)
        if any(leases[key].left < need for key, need in needs.items()):
            return  # a new period began with the loan, and made what was left of the last one void
        for key, need in needs.items():
            leases[key].take(need, 0)
            self.spent[key] += need

    @staticmethod
    def absorb(leases: dict[str, Lease], loans: tuple[Loan, ...]) -> None:
        for loan in loans:
            leases[loan.limit_id].absorb(loan, 0)

    @precondition(lambda self: any(leases["places"].in_use for leases in self.workers.values()))
    @rule(data=st.data(), unused=st.integers(0, 50))
    def a_request_ends(self, data: st.DataObject, unused: int) -> None:
        busy = sorted(key for key, leases in self.workers.items() if leases["places"].in_use)
        leases = self.workers[data.draw(st.sampled_from(busy))]
        leases["places"].give(1, 0)
        self.spent["places"] -= 1
        calendar = leases["calendar"]
        back = min(unused, self.spent["calendar"])
        if calendar.epoch == self.lender.meters["calendar"].epoch:
            calendar.give(back, calendar.epoch)
            self.spent["calendar"] -= back

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), limit=st.sampled_from(LIMITS))
    def a_worker_returns(self, data: st.DataObject, limit: Limit) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        lease = self.workers[name][limit.id]
        self.lender.give_back(name, limit.id, lease.epoch, lease.return_all(), self.now)
        self.state.save(self.lender.meters.values(), self.now)

    @rule()
    def the_authority_is_killed(self) -> None:
        self.state.close()
        self.begin()

    @rule(seconds=st.integers(0, 2000))
    def time_passes(self, seconds: int) -> None:
        hour = self.now_ns // (3600 * S)
        self.now_ns += seconds * S
        if self.now_ns // (3600 * S) != hour:
            self.spent["calendar"] = 0
            for leases in self.workers.values():
                leases["calendar"].end_period()  # as the loan told when that would be

    @invariant()
    def no_more_is_spent_than_there_was(self) -> None:
        if not hasattr(self, "lender"):
            return
        assert self.spent["bucket"] <= BUCKET.amount + BUCKET.amount * self.now_ns // PERIOD_NS[Period.MINUTE]
        assert self.spent["calendar"] <= CALENDAR.amount
        in_use = sum(leases["places"].in_use for leases in self.workers.values())
        assert in_use <= PLACES.amount
        for key, meter in self.lender.meters.items():
            assert meter.left <= meter.limit.amount, key

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self.state.close()


TestAuthority = Authority.TestCase
TestAuthority.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


# --- single decisions ---------------------------------------------------------------------------------------


def make(amount: int, workers: int) -> Lender:
    lender = Lender()
    limit = Limit(id="x", owner="team a", measure=Measure.REQUESTS, amount=amount, period=Period.DAY)
    lender.set_limits([limit], Now(0, 0))
    for number in range(workers):
        lender.join(f"w{number}", [])
    return lender


def lend(lender: Lender, worker: str, need: int, like: int) -> int:
    found = lender.ask(worker, [Want("x", need, like)], Now(0, 0))
    return 0 if isinstance(found, Shortage) else found[0].units


def test_a_small_limit_is_lent_unit_by_unit_and_a_large_one_in_parts_that_shrink() -> None:
    assert [lend(make(10, 4), "w0", 1, 100) for _ in range(3)] == [1, 1, 1]
    lender = make(16_000, 4)
    assert [lend(lender, f"w{n}", 1, 10**6) for n in range(4)] == [1000, 937, 878, 824]


def test_all_of_it_is_lent_and_not_one_more() -> None:
    lender = make(1000, 3)
    lent = 0
    while units := lend(lender, f"w{lent % 3}", 1, 50):
        lent += units
    assert lent == 1000


def test_nothing_is_lent_of_any_limit_where_one_is_short() -> None:
    lender = Lender()
    lender.set_limits(LIMITS, Now(0, 0))
    lender.join("w", [])
    found = lender.ask("w", [Want("bucket", 1, 1), Want("places", 6, 6), Want("calendar", 1, 1)], Now(0, 0))
    assert isinstance(found, Shortage)
    assert (found.limit_id, found.left, found.wait_ns) == ("places", 5, None)
    assert [lender.meters[limit.id].left for limit in LIMITS] == [100, 500, 5]


def test_a_shortage_says_when_there_is_enough_and_what_others_hold() -> None:
    lender = make(100, 2)
    assert lend(lender, "w0", 90, 90) == 90
    found = lender.ask("w1", [Want("x", 20, 20)], Now(0, 0))
    assert isinstance(found, Shortage)
    assert found.left == 10
    assert found.wait_ns == PERIOD_NS[Period.DAY] // 10
    assert lender.list_holders("x", "w1") == ["w0"]
    assert lender.list_holders("x", "w0") == []
    lender.give_back("w0", "x", 0, 50, Now(0, 0))
    assert lender.list_holders("x", "w1") == [], "whoever returns some returns all that is left"
    assert lend(lender, "w1", 60, 60) == 60


def test_what_was_spent_beyond_a_loan_is_a_debt_of_all() -> None:
    lender = make(100, 1)
    assert lend(lender, "w0", 10, 10) == 10
    lender.give_back("w0", "x", 0, -200, Now(0, 0))
    assert lender.meters["x"].left == -110
    assert lend(lender, "w0", 1, 1) == 0


def test_places_of_a_dead_worker_are_free_and_its_tokens_are_spent() -> None:
    lender = Lender()
    lender.set_limits(LIMITS, Now(0, 0))
    lender.join("w", [])
    assert not isinstance(lender.ask("w", [Want("places", 3, 3), Want("bucket", 3, 3)], Now(0, 0)), Shortage)
    lender.leave("w")
    assert (lender.meters["places"].left, lender.meters["bucket"].left) == (5, 97)


def test_a_limit_that_is_gone_holds_nobody_up() -> None:
    lender = make(10, 1)
    assert lender.ask("w0", [Want("gone", 5, 9)], Now(0, 0)) == ()


def test_places_of_a_limit_that_is_gone_are_held_by_whoever_says_so() -> None:
    """A line that breaks meanwhile frees none of them for the day on which the limit comes again."""
    lender = Lender()
    lender.set_limits([PLACES], Now(0, 0))
    for worker in ("one", "other"):
        lender.join(worker, [])
        assert not isinstance(lender.ask(worker, [Want("places", 2, 2)], Now(0, 0)), Shortage)
    lender.set_limits([], Now(0, 0))
    lender.leave("one")
    lender.join("one", [("places", 2)])
    lender.set_limits([PLACES], Now(0, 0))
    assert lender.meters["places"].left == 1
    lender.give_back("one", "places", 0, 2, Now(0, 0))
    assert lender.meters["places"].left == 3


def test_what_was_lent_in_an_earlier_period_is_lent_no_more() -> None:
    lender = Lender()
    lender.set_limits([CALENDAR], Now(0, 0))
    lender.join("w", [])
    assert not isinstance(lender.ask("w", [Want("calendar", 400, 400)], Now(0, 0)), Shortage)
    (before,) = lender.list_standings(Now(S, S))
    assert (before.left, before.lent) == (100, 400)
    undo = lender.remember(["calendar"])
    later = Now(3600 * S, 3600 * S)
    assert not isinstance(lender.ask("w", [Want("calendar", 1, 1)], later), Shortage)
    (after,) = lender.list_standings(later)
    assert (after.left, after.lent, after.used) == (499, 1, 0)
    undo()
    (again,) = lender.list_standings(later)
    assert (again.left, again.lent, again.used) == (500, 0, 0)
