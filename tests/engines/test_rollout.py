"""Rollouts as pure decisions: a small world of replicas that start, fail and answer, driven by a seed."""

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.deployment import (
    Deployment,
    ExitReason,
    Replica,
    ReplicaState,
    ReplicaStatus,
    Rollout,
    Strategy,
)
from forebay.engines.judging import Figures, Verdict, judge
from forebay.engines.model import EngineSpec
from forebay.engines.rollout import decide, list_shares
from forebay.engines.rollout_state import MOVES, Decision, Phase, Start, Stop, Track, Turn, World

READY = ReplicaState.READY
FAST = Rollout(steps=(0.1, 0.5), step_s=10.0, requests_min=20, ready_timeout_s=100.0)


def deploy(version: str, count: int = 2, rollout: Rollout = FAST) -> Deployment:
    spec = EngineSpec(name="m", kind="llamacpp")
    counts = {"replicas_min": count, "replicas_max": count}
    return Deployment(name="chat", model="m", version=version, spec=spec, rollout=rollout, **counts)


@dataclass
class Fleet:
    """What a launcher and callers would do; time goes by 1 s a step."""

    track: Track = field(default_factory=lambda: Track(name="chat"))
    replicas: dict[str, ReplicaStatus] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)  #: by revision: refuses, crashes, errs, slow, hangs
    room: int = 100
    now: float = 0.0
    is_blind: bool = False  #: nobody can say what runs
    figures_since: float = 0.0
    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    last: Decision | None = None

    def tick(self, wanted: Deployment | None, count: int | None = None) -> Decision:
        self.now += 1.0
        self.live()
        world = World(
            replicas=None if self.is_blind else tuple(self.replicas.values()),
            free=frozenset(self.track.leaving),
            figures=self.measure(),
            count=wanted.replicas_min if count is None and wanted else count or 0,
            now_s=self.now,
        )
        decision = decide(self.track, wanted, world)
        self.track, self.last = decision.track, decision
        self.turns += [told.turn for told in decision.told]
        for action in decision.actions:
            match action:
                case Start(replica):
                    self.start(replica)
                case Stop(id):
                    assert id in self.replicas
                    self.stopped.append(id)
                    self.set(id, state=ReplicaState.STOPPING)
        return decision

    def start(self, replica: Replica) -> None:
        assert replica.id not in self.replicas, "an id is unique among those that run"
        self.started.append(replica.id)
        self.replicas[replica.id] = ReplicaStatus(
            id=replica.id,
            deployment=replica.deployment,
            revision=replica.revision,
            index=replica.index,
            state=ReplicaState.PENDING,
            url=f"http://{replica.id}/v1",
        )

    def set(self, id: str, **changes: object) -> None:
        self.replicas[id] = msgspec.structs.replace(self.replicas[id], **changes)

    def live(self) -> None:
        """What replicas do by themselves."""
        for id, status in list(self.replicas.items()):
            fault = self.bad.get(status.revision, "")
            running = sum(each.state not in (ReplicaState.PENDING,) for each in self.replicas.values())
            match status.state:
                case ReplicaState.STOPPING:
                    del self.replicas[id]
                case ReplicaState.PENDING if running < self.room:
                    self.set(id, state=ReplicaState.STARTING)
                case ReplicaState.STARTING if fault == "refuses":
                    self.set(id, state=ReplicaState.REFUSED, failures=1, reason=ExitReason.REFUSED)
                case ReplicaState.STARTING if fault == "crashes":
                    self.set(id, state=ReplicaState.BACKOFF, failures=status.failures + 1)
                case ReplicaState.BACKOFF:
                    self.set(id, state=ReplicaState.STARTING)
                case ReplicaState.STARTING if fault != "hangs":
                    self.set(id, state=READY)
                case _:
                    pass

    def measure(self) -> dict[str, Figures]:
        found = {}
        for revision in {each.revision for each in self.replicas.values()}:
            age = int(min(self.now - self.track.since_s, 30.0)) if self.track.since_s else 30
            requests = age * 3
            fault = self.bad.get(revision, "")
            found[revision] = Figures(
                requests=requests,
                failed=requests if fault == "errs" else 0,
                first_token_s=3.0 if fault == "slow" else 1.0,
                streams=requests,
            )
        return found

    def ready(self, deployment: Deployment) -> int:
        mine = (each for each in self.replicas.values() if each.revision == deployment.revision)
        return sum(each.state is READY for each in mine)

    def share(self, deployment: Deployment) -> float:
        assert self.last is not None
        assert self.last.serving is not None
        serving = self.last.serving
        weights = [1.0 if each.weight is None else each.weight for each in serving]
        mine = [each.replica.revision == deployment.revision for each in serving]
        return sum(w for w, is_mine in zip(weights, mine, strict=True) if is_mine) / (sum(weights) or 1.0)


def settle(fleet: Fleet, wanted: Deployment | None, limit: int = 500) -> None:
    """Until nothing happens any more."""
    quiet = 0
    for _ in range(limit):
        before = fleet.track, dict(fleet.replicas)
        decision = fleet.tick(wanted)
        is_same = not decision.actions and before == (fleet.track, fleet.replicas)
        quiet = quiet + 1 if is_same and fleet.track.candidate is None else 0
        if quiet > 5:
            return
    raise AssertionError(f"it never came to rest: {fleet.track}")


def begin(version: str = "1", count: int = 2) -> tuple[Fleet, Deployment]:
    fleet, first = Fleet(), deploy(version, count)
    settle(fleet, first)
    assert fleet.ready(first) == count
    return fleet, first


def test_the_first_revision_starts_and_serves() -> None:
    fleet, first = begin()
    assert fleet.share(first) == 1.0
    assert fleet.turns == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_good_revision_takes_over_in_steps_and_the_old_one_stays_till_then(count: int) -> None:
    fleet, first = begin(count=count)
    second, shares = deploy("2", count), []
    while fleet.track.serving is None or fleet.track.serving.revision != second.revision:
        fleet.tick(second)
        shares.append(round(fleet.share(second), 3))
        assert fleet.ready(first) + fleet.ready(second) >= count
        if Turn.PROVEN not in fleet.turns:
            assert fleet.ready(first) == count
    assert shares == sorted(shares)
    assert {0.0, 0.1, 0.5, 1.0} <= set(shares)
    settle(fleet, second)
    assert (fleet.ready(first), fleet.ready(second)) == (0, count)
    assert sorted(fleet.stopped) == sorted(id for id in fleet.started if first.revision in id)


def test_blue_green_gives_all_at_once_when_all_are_ready() -> None:
    fleet, first = begin(count=3)
    second = deploy("2", 3, msgspec.structs.replace(FAST, strategy=Strategy.BLUE_GREEN))
    while fleet.track.phase is not Phase.WATCHING:
        fleet.tick(second)
        if fleet.track.phase is not Phase.WATCHING:
            assert fleet.share(second) == 0.0
    assert fleet.share(second) == 1.0
    assert (fleet.ready(first), fleet.ready(second)) == (3, 3)
    fleet.bad[second.revision] = "errs"
    fleet.tick(second)
    assert fleet.share(first) == 1.0, "the old one gets everything back at once"
    settle(fleet, second)
    assert (fleet.ready(first), fleet.ready(second)) == (3, 0)


@pytest.mark.parametrize("fault", ["refuses", "crashes", "errs", "slow", "hangs"])
def test_a_bad_revision_is_stopped_and_not_tried_again(fault: str) -> None:
    fleet, first = begin()
    second = deploy("2")
    fleet.bad[second.revision] = fault
    most = 0.0
    for _ in range(150):
        fleet.tick(second)
        most = max(most, fleet.share(second))
        assert fleet.ready(first) == 2
    assert most <= 0.1, "never more than the first step"
    assert fleet.track.stopped == second.revision
    assert fleet.track.reason
    assert fleet.turns.count(Turn.FAILED) == 1
    settle(fleet, second)
    assert fleet.ready(second) == 0
    mended = deploy("3")
    settle(fleet, mended)
    assert fleet.ready(mended) == 2


def test_the_way_back_is_one_step_and_is_not_judged() -> None:
    fleet, first = begin()
    second = deploy("2")
    settle(fleet, second)
    fleet.bad[second.revision] = "errs"
    began = fleet.now
    while fleet.ready(first) < 2 or fleet.ready(second):
        fleet.tick(first)
        assert fleet.ready(first) + fleet.ready(second) >= 2
    assert fleet.now - began < FAST.step_s, "it waits for replicas alone"
    assert fleet.turns[-3:] == [Turn.ASKED, Turn.TRUSTED, Turn.DONE]


@pytest.mark.parametrize("ticks", [1, 3, 5, 8, 16, 20, 26, 30])
def test_a_change_during_a_change_costs_no_replica_that_serves(ticks: int) -> None:
    fleet, first = begin(count=3)
    second, third = deploy("2", 3), deploy("3", 3)
    for _ in range(ticks):
        fleet.tick(second)
    for wanted in (third, first):
        for _ in range(4):
            fleet.tick(wanted)
            assert sum(each.state is READY for each in fleet.replicas.values()) >= 3
    settle(fleet, first)
    assert fleet.ready(first) == len(fleet.replicas) == 3


def test_where_there_is_no_room_it_waits_and_then_gives_up() -> None:
    fleet, first = begin()
    fleet.room = 2
    second = deploy("2")
    for _ in range(110):
        fleet.tick(second)
        assert fleet.ready(first) == 2
    assert fleet.track.stopped == second.revision
    assert "pending" in fleet.track.reason


def test_with_room_for_one_more_it_goes_one_by_one() -> None:
    fleet, first = begin(count=4)
    fleet.room = 5
    second = deploy("2", 4, msgspec.structs.replace(FAST, steps=(0.1,)))
    while fleet.ready(second) < 4:
        fleet.tick(second)
        assert fleet.ready(first) + fleet.ready(second) >= 4
        assert fleet.now < 300
    settle(fleet, second)


def test_what_is_asked_for_no_more_leaves() -> None:
    fleet, _ = begin()
    settle(fleet, None)
    assert not fleet.replicas
    assert sorted(fleet.started) == sorted(fleet.stopped)


def test_what_does_not_serve_is_replaced_without_a_judge() -> None:
    fleet, first = Fleet(), deploy("1")
    fleet.bad[first.revision] = "refuses"
    for _ in range(10):
        fleet.tick(first)
    second = deploy("2")
    settle(fleet, second)
    assert fleet.ready(second) == 2
    assert Turn.PREPARED not in fleet.turns


def test_every_move_is_in_the_table_and_every_phase_can_end() -> None:
    assert {phase for phase, _ in MOVES} == set(Phase)
    assert {turn for _, turn in MOVES} == set(Turn)
    assert list_shares(deploy("1", rollout=msgspec.structs.replace(FAST, steps=()))) == (1.0,)


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(list(Strategy)))
def test_whatever_happens_nothing_that_serves_is_lost_and_all_comes_to_rest(
    seed: int, count: int, strategy: Strategy
) -> None:
    draw = random.Random(seed)
    rollout = msgspec.structs.replace(FAST, strategy=strategy)
    revisions = [deploy(str(number), count, rollout) for number in range(3)]
    fleet, wanted = Fleet(), revisions[0]
    settle(fleet, wanted)
    for bad in revisions[1:]:
        fleet.bad[bad.revision] = draw.choice(["", "", "refuses", "crashes", "errs", "slow"])
    for _ in range(120):
        if draw.random() < 0.05:
            wanted = draw.choice(revisions)
        fleet.is_blind = draw.random() < 0.1
        before, track = dict(fleet.replicas), fleet.track
        decision = fleet.tick(wanted)
        if fleet.is_blind:
            assert (decision.actions, decision.serving, decision.track) == ((), None, track)
            continue
        staying = (each for id, each in fleet.replicas.items() if id not in fleet.track.leaving)
        ready = sum(each.state is READY for each in staying)
        assert ready >= count, "requests never have fewer replicas than before"
        assert decision.serving
        assert {each.replica.id for each in decision.serving} <= before.keys()
        for each in decision.serving:
            assert each.replica.state is READY
            assert each.replica.id not in fleet.track.leaving
    fleet.is_blind = False
    settle(fleet, wanted)
    settle(fleet, None)
    assert not fleet.replicas
    assert sorted(fleet.started) == sorted(fleet.stopped), "each was started once and stopped once"


@given(
    st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.floats(0.0, 500.0), st.floats(0.1, 10.0)
)
def test_more_failures_are_never_judged_better(
    requests: int, failed: int, more: int, age_s: float, first_token_s: float
) -> None:
    order = [Verdict.BAD, Verdict.OPEN, Verdict.GOOD]
    failed, worse = min(failed, requests), min(failed + more, requests)
    old = Figures(requests=100, failed=1, first_token_s=1.0, streams=100)

    def ask(failures: int) -> int:
        new = Figures(requests=requests, failed=failures, first_token_s=first_token_s, streams=requests)
        return order.index(judge(new, old, FAST, age_s).verdict)

    assert ask(worse) <= ask(failed)


def test_few_requests_are_enough_after_a_long_time_and_none_says_nothing_before() -> None:
    nothing = Figures()
    assert judge(nothing, nothing, FAST, 49.0).verdict is Verdict.OPEN
    assert judge(nothing, nothing, FAST, 50.0).verdict is Verdict.GOOD


def test_few_times_are_enough_at_the_end_of_a_step() -> None:
    old = Figures(requests=100, first_token_s=0.1, streams=50, answer_s=0.2, answers=50)
    new = Figures(requests=21, first_token_s=0.4, streams=10, answer_s=0.2, answers=11)
    assert judge(new, old, FAST, 5.0).verdict is Verdict.OPEN
    assert judge(new, old, FAST, 10.0).verdict is Verdict.BAD
    many = msgspec.structs.replace(new, requests=41, streams=30)
    assert judge(many, old, FAST, 5.0).verdict is Verdict.BAD
    unknown = msgspec.structs.replace(new, first_token_s=None, streams=0)
    assert judge(unknown, old, FAST, 10.0).verdict is Verdict.GOOD
