"""What workers have put out of service is told to the control plane, and to no other worker."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest
from board_rig import Machine
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.routes import Choosing, Endpoint, Route
from forebay.gateway.policy.ejections import PLACES_MAX, Ejections, take_outs
from forebay.gateway.policy.load import EJECT_AFTER, EJECT_MAX_S, EJECT_S, ReplicaLoad
from forebay.gateway.policy.news import News, SaidOut, cut
from forebay.testing.openai import error_answer, well_behaved

NOW = 1000.0
LONG = {"forebay.gateway.policy.load.EJECT_S": 120.0}  #: out of service, until all of it was seen


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


def until(is_so: Callable[[], bool]) -> None:
    begun = monotonic()
    while not is_so():
        assert monotonic() < begun + 30
        sleep(0.02)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.floats(0, 400)), max_size=40))
def test_what_is_told_is_what_each_worker_said_last(said: list[tuple[str, int, float]]) -> None:
    ejections, known = Ejections(), dict[tuple[str, int], float]()
    for name, place, until_s in said:
        ejections.note(name, [SaidOut(place, NOW + until_s - 100)], NOW)
        known[name, place] = min(NOW + until_s - 100, NOW + EJECT_MAX_S)
    ejections.leave("c")
    for now in (NOW, NOW + 150):
        expected = {}
        for place in range(4):
            own = [at for (name, each), at in known.items() if each == place and name != "c" and at > now]
            assert ejections.count(place, now) == len(own)
            if own:
                expected[place] = SaidOut(place, min(own), len(own), len(own) == 2)
        assert {out.place: out for out in ejections.read(2, now)} == expected


def test_a_worker_tells_each_ejection_and_each_return_once() -> None:
    loads, told = {number: ReplicaLoad(number) for number in range(3)}, dict[int, float]()
    assert list(take_outs(loads, told, NOW)) == []
    for _ in range(EJECT_AFTER):
        loads[1].fail(NOW)
    assert list(take_outs(loads, told, NOW)) == [SaidOut(1, NOW + EJECT_S)]
    assert list(take_outs(loads, told, NOW + 1)) == []
    loads[1].succeed(NOW + 2, NOW + 1)
    assert list(take_outs(loads, told, NOW + 2)) == [SaidOut(1, 0.0)]
    for _ in range(EJECT_AFTER):
        loads[1].fail(NOW + 3)
    assert len(list(take_outs(loads, told, NOW + 3))) == 1
    assert list(take_outs(loads, told, NOW + 100)) == [], "that it is over everybody knows"
    del loads[1]
    assert list(take_outs(loads, told, NOW + 100)) == []
    assert told == {}


def test_what_a_worker_says_has_a_bound_and_messages_hold_all_of_it() -> None:
    outs = tuple(SaidOut(place, NOW + 5) for place in range(PLACES_MAX + 1))
    assert sum((part.outs for part in cut(News(outs=outs))), ()) == outs
    with pytest.raises(ValueError, match="more than"):
        Ejections().note("w", outs, NOW)


def test_the_board_knows_at_how_many_workers_a_place_is_out_of_service(machine: Machine) -> None:
    ill, well = machine.add("ill", error_answer(500)), machine.add("well", well_behaved("Hi"))
    route = Route(model="m", endpoints=(Endpoint.CHAT,), targets=(ill, well), choosing=Choosing())
    machine.start(route, constants=LONG)

    def read() -> list[tuple[int, bool]]:
        news: News = machine.board.call(machine.board.server.read)
        return [(out.workers, out.is_everywhere) for out in news.outs]

    for worker, expected in ((0, [(1, False)]), (1, [(2, True)])):
        for _ in range(EJECT_AFTER):
            assert machine.ask(worker).status_code == 200
        until(lambda expected=expected: read() == expected)
    (out,) = machine.board.call(machine.board.server.read).outs
    assert machine.board.call(lambda: machine.board.server.count_ejecting(out.place)) == 2
    machine.workers[0].process.kill()
    until(lambda: read() == [(1, True)])
