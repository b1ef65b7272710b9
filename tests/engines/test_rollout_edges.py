"""Rollouts where much goes wrong at once: edits of the way of a change, clocks, two broken revisions."""

from dataclasses import dataclass, field

import msgspec
import pytest

from forebay.engines.deployment import Deployment, ReplicaState, ReplicaStatus, Rollout, Strategy
from forebay.engines.judging import Figures
from forebay.engines.model import EngineSpec
from forebay.engines.rollout import decide
from forebay.engines.rollout_state import Decision, Phase, Start, Stop, Track, Turn, World
from forebay.engines.scaling import UP_AFTER_S, Demand, Scale, rescale

WAY = Rollout(steps=(0.1, 0.2, 0.5), step_s=10.0, requests_min=1, ready_timeout_s=50.0)


def deploy(version: str, count: int = 2, rollout: Rollout = WAY) -> Deployment:
    spec = EngineSpec(name="m", kind="llamacpp")
    counts = {"replicas_min": count, "replicas_max": count}
    return Deployment(name="chat", model="m", version=version, spec=spec, rollout=rollout, **counts)


@dataclass
class Machine:
    """Has replicas in the states that it is told; time goes by 1 s a look."""

    track: Track = field(default_factory=lambda: Track(name="chat"))
    replicas: dict[str, ReplicaStatus] = field(default_factory=dict)
    states: dict[str, ReplicaState] = field(default_factory=dict)  #: of new replicas, by revision
    now_s: float = 1000.0
    is_draining: bool = False  #: those that leave answer somebody still
    turns: list[Turn] = field(default_factory=list)

    def look(self, wanted: Deployment | None, times: int = 1) -> Decision:
        for _ in range(times):
            self.now_s += 1.0
            decision = self._look(wanted)
        return decision

    def _look(self, wanted: Deployment | None) -> Decision:
        world = World(
            replicas=tuple(self.replicas.values()),
            free=frozenset() if self.is_draining else frozenset(self.track.leaving),
            figures={each.revision: Figures(requests=100) for each in self.replicas.values()},
            count=wanted.replicas_min if wanted else 0,
            now_s=self.now_s,
        )
        decision = decide(self.track, wanted, world)
        self.track = decision.track
        self.turns += [told.turn for told in decision.told]
        for action in decision.actions:
            match action:
                case Start(replica):
                    self.replicas[replica.id] = ReplicaStatus(
                        id=replica.id,
                        deployment="chat",
                        revision=replica.revision,
                        index=replica.index,
                        state=self.states.get(replica.revision, ReplicaState.READY),
                        url=f"http://{replica.id}/v1",
                    )
                case Stop(id):
                    del self.replicas[id]
        return decision

    def reach(self, wanted: Deployment, phase: Phase, step: int = 0) -> None:
        for _ in range(100):
            if (self.track.phase, self.track.step) == (phase, step):
                return
            self.look(wanted)
        raise AssertionError(self.track)

    def revisions(self) -> set[str]:
        return {each.revision for each in self.replicas.values()}


def begin(wanted: Deployment) -> Machine:
    machine = Machine()
    machine.look(wanted, 3)
    assert len(machine.replicas) == wanted.replicas_min
    return machine


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.WATCHING])
@pytest.mark.parametrize(
    "rollout",
    [
        msgspec.structs.replace(WAY, steps=(0.5,)),
        msgspec.structs.replace(WAY, steps=()),
        msgspec.structs.replace(WAY, strategy=Strategy.BLUE_GREEN),
    ],
)
def test_a_change_with_fewer_steps_by_now_goes_on(phase: Phase, rollout: Rollout) -> None:
    second = deploy("2", count=5)
    machine = begin(deploy("1", count=5))
    machine.reach(second, Phase.WATCHING, step=1)
    if phase is Phase.PREPARING:
        machine.states[second.revision] = ReplicaState.STARTING
    machine.reach(second, phase, step=2)
    shorter = deploy("2", count=5, rollout=rollout)
    assert shorter.revision == second.revision
    machine.look(shorter, 2)
    machine.states[second.revision] = ReplicaState.READY
    for id, each in machine.replicas.items():
        machine.replicas[id] = msgspec.structs.replace(each, state=ReplicaState.READY)
    machine.look(shorter, 40)
    assert machine.revisions() == {second.revision}
    assert machine.turns[-1] is Turn.DONE


def test_what_was_ended_does_not_come_back_with_another_revision_of_its_name() -> None:
    first, second = deploy("1"), deploy("2")
    machine = begin(first)
    machine.is_draining = True
    machine.look(None, 3)
    assert machine.revisions() == {first.revision}, "answers in flight leave first"
    decision = machine.look(second, 5)
    assert sum(each.revision == first.revision for each in machine.replicas.values()) == 2
    assert {each.replica.revision for each in decision.serving or ()} == {second.revision}
    machine.is_draining = False
    machine.look(second, 3)
    assert machine.revisions() == {second.revision}


def test_where_both_revisions_are_broken_it_is_told_once_and_another_one_helps() -> None:
    """Such as a folder of weights that is away while one takes the place of the other."""
    first, second, third = deploy("1"), deploy("2"), deploy("3")
    machine = begin(first)
    machine.reach(second, Phase.REPLACING, step=2)
    for id in machine.replicas:
        machine.replicas[id] = msgspec.structs.replace(machine.replicas[id], state=ReplicaState.REFUSED)
    machine.states = dict.fromkeys((first.revision, second.revision), ReplicaState.REFUSED)
    before = len(machine.turns)
    machine.look(second, 200)
    assert machine.turns[before:].count(Turn.FAILED) <= 2
    machine.look(third, 100)
    assert machine.revisions() == {third.revision}


def test_a_clock_that_is_set_back_stops_no_change_for_as_long() -> None:
    first, second = deploy("1"), deploy("2")
    machine = begin(first)
    machine.reach(second, Phase.WATCHING)
    machine.now_s -= 900.0
    machine.look(second, 100)
    assert machine.revisions() == {second.revision}


def test_a_clock_that_is_set_back_lets_replicas_follow_load() -> None:
    busy = Demand(busy=8, slots=4)
    scale = rescale(Scale(count=1), busy, 1, 4, 5000.0)
    scale = rescale(scale, busy, 1, 4, 100.0)
    assert rescale(scale, busy, 1, 4, 100.0 + UP_AFTER_S).count == 2
    idle = rescale(Scale(count=2, below_since_s=5000.0), Demand(busy=0, slots=4), 1, 4, 100.0)
    assert rescale(idle, Demand(busy=0, slots=4), 1, 4, 161.0).count == 1
