"""Boards of several machines: whatever becomes of messages, in the end each has what the others have."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.board_wire import decode_from_board
from forebay.gateway.policy.machines import (
    ASK_AGAIN_S,
    BEAT_S,
    MACHINES_MAX,
    SILENCE_MAX_S,
    WHOLE_S,
    Machines,
    Message,
)
from forebay.gateway.policy.merging import Merging
from forebay.gateway.policy.news import PART_MAX, News, PlaceCount, SaidUse, SaidWord

NAMES = ["a", "b", "c"]
TICK_S = 0.2
SETTLED_S = SILENCE_MAX_S + 2 * WHOLE_S + 2 * ASK_AGAIN_S


class Board:
    """One machine with two workers, a clock of its own, and what they were told."""

    def __init__(self, name: str, clock_s: float) -> None:
        self.name, self.clock_s = name, clock_s
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Its control plane begins anew, under another name."""
        self.starts += 1
        self.merging = Merging()
        self.machines = Machines(f"{self.name}{self.starts}", self.name, self.merging)
        self.has: dict[int, int] = {}
        self.heard: dict[int, tuple[int, int]] = {}
        self.words: dict[int, SaidWord] = {}
        for worker in ("w0", "w1"):
            self.merging.join(worker)

    def count(self, place: int, requests: int) -> None:
        """What its first worker has."""
        self.has[place] = requests
        self.merging.note("w0", News(counts=(PlaceCount(place, requests, requests * 10),)), 0.0)

    def listen(self) -> None:
        """What its second worker is told, which never has anything itself."""
        news = self.merging.take("w1")
        for count in news.counts:
            self.heard[count.place] = count.requests, count.tokens
        for word in news.words:
            self.words[word.whose] = word


class Network:
    """Boards, and messages on their way to each."""

    def __init__(self) -> None:
        self.now = 100.0
        self.boards = [Board(name, 1000.0 * at) for at, name in enumerate(NAMES)]
        self.under_way: list[tuple[int, bytes]] = []

    def tick(self, at: int) -> None:
        board = self.boards[at]
        for message in board.machines.take(self.now + board.clock_s):
            encoded = msgspec.msgpack.encode(message)
            self.under_way += [(to, encoded) for to in range(len(self.boards))]

    def deliver(self, index: int) -> None:
        to, encoded = self.under_way.pop(index)
        if to < len(self.boards):
            board = self.boards[to]
            board.machines.hear(msgspec.msgpack.decode(encoded, type=Message), self.now + board.clock_s)

    def run(self, seconds: float) -> None:
        """Nothing is lost any more."""
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_S
            for at, board in enumerate(self.boards):
                board.machines.sweep(self.now + board.clock_s)
                self.tick(at)
            while self.under_way:
                self.deliver(0)
        for board in self.boards:
            board.listen()


AT = st.integers(0, len(NAMES) - 1)
FATES = ["deliver", "deliver", "newest first", "again", "lose", "lose one", "stay", "unsaid", "restart"]
STEPS = st.lists(
    st.tuples(AT, st.integers(0, 1), st.integers(0, 2), st.sampled_from(FATES), st.floats(0.0, 1.5)),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_in_the_end_each_has_the_sum_of_the_others(steps: list[tuple[int, int, int, str, float]]) -> None:
    network = Network()
    delivered: list[tuple[int, bytes]] = []
    for at, place, requests, fate, seconds in steps:
        network.now += seconds
        network.boards[at].count(place, requests)
        if fate == "restart":
            network.boards[at].start()
        if fate != "unsaid":
            for each in range(len(NAMES)):
                network.tick(each)
        if fate == "again":
            network.under_way += delivered
        if fate in ("deliver", "newest first", "again"):
            delivered += network.under_way
            while network.under_way:
                network.deliver(0 if fate == "deliver" else -1)
        elif fate == "lose":
            network.under_way.clear()
        elif fate == "lose one":
            del network.under_way[:1]
    network.run(SETTLED_S)
    for board in network.boards:
        for place in range(2):
            whole = sum(each.has.get(place, 0) for each in network.boards)
            assert board.heard.get(place, (0, 0)) == (whole, whole * 10)
    assert all(len(board.machines.list_machines()) == len(NAMES) - 1 for board in network.boards)
    assert all(board.merging.size == 2 * len(NAMES) for board in network.boards)
    now = network.now
    quiet = [each for board in network.boards for each in board.machines.take(now + board.clock_s)]
    assert all(not message.is_news for message in quiet), "nothing is told twice"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            AT, st.integers(0, 1), st.integers(0, 60), st.sampled_from(["deliver", "twice", "lose", "hold"])
        ),
        max_size=30,
    )
)
def test_in_the_end_the_newest_word_holds_everywhere(steps: list[tuple[int, int, int, str]]) -> None:
    network = Network()
    newest: dict[int, float] = {}
    delivered: list[tuple[int, bytes]] = []
    for at, whose, retry_s, then in steps:
        network.now += 0.25
        newest[whose] = network.now + retry_s
        board = network.boards[at]
        now = network.now + board.clock_s
        board.merging.note("w0", News(words=(SaidWord(whose, now, now + retry_s),)), now)
        if then == "hold":
            continue
        for each in range(len(NAMES)):
            network.tick(each)
        if then == "lose":
            network.under_way.clear()
            continue
        if then == "twice":
            network.under_way += delivered
        delivered += network.under_way
        while network.under_way:
            network.deliver(-1)
    network.run(SETTLED_S)
    for board in network.boards:
        for whose, retry_at in newest.items():
            (word,) = (each for each in board.merging.read().words if each.whose == whose)
            assert max(word.retry_at - board.clock_s, network.now) == pytest.approx(
                max(retry_at, network.now), abs=0.5
            )


def test_who_is_silent_is_unknown_within_the_time_that_is_documented() -> None:
    network = Network()
    one, other, _ = network.boards
    one.count(1, 4)
    network.run(1.0)
    assert other.heard[1] == (4, 40)
    network.boards.remove(one)  # `kill -9`
    network.run(SILENCE_MAX_S + 2 * TICK_S)
    assert other.heard[1] == (0, 0)
    assert [each.name for each in other.machines.list_machines()] == ["c"]


def test_a_goodbye_counts_at_once_and_nothing_that_is_late_undoes_it() -> None:
    network = Network()
    one, other, _ = network.boards
    one.count(1, 4)
    late = one.machines.take(0.0)
    for message in (*late, one.machines.say_goodbye(), *late):
        other.machines.hear(message, 0.0)
    other.listen()
    assert other.heard.get(1, (0, 0)) == (0, 0)
    assert other.machines.list_machines() == ()


def test_a_word_is_told_in_durations_and_the_newest_holds_whoever_said_it() -> None:
    network = Network()
    one, other, third = network.boards
    network.run(1.0)
    for board, retry_s in ((one, 50.0), (other, 8.0)):  # the second is newer, and shorter
        now = network.now + board.clock_s
        board.merging.note("w0", News(words=(SaidWord(7, now, now + retry_s),)), now)
        network.now += 0.1
    said_at = network.now - 0.1
    network.run(1.0)
    for board in (one, other, third):
        assert board.words[7].retry_at - board.clock_s == pytest.approx(said_at + 8.0, abs=0.3)
    use = SaidUse(9, network.now, network.now + 30.0, 0.75)
    one.merging.note("w0", News(uses=(use,)), network.now)
    network.run(1.0)
    (told,) = third.merging.read().uses
    assert (told.account, told.used) == (9, 0.75)
    assert told.reset_at - third.clock_s == pytest.approx(use.reset_at, abs=0.3)


def test_messages_are_few_and_none_is_too_large() -> None:
    network = Network()
    board = network.boards[0]
    network.run(2.0)
    sent = []
    for _ in range(20):
        network.now += TICK_S
        sent += board.machines.take(network.now)
    assert len(sent) <= 20 * TICK_S / BEAT_S + 1
    assert not any(message.is_news for message in sent)
    many = tuple(PlaceCount(place, 1, 1) for place in range(3 * PART_MAX))
    board.merging.note("w0", News(counts=many), network.now)
    parts = board.machines.take(network.now)
    assert len(parts) == 3
    assert all(len(msgspec.msgpack.encode(part)) < 1 << 18 for part in parts)


def test_whatever_machines_say_a_worker_can_be_told() -> None:
    board = Network().boards[0]
    most = 1 << 40
    for number in range(MACHINES_MAX):
        counts = (PlaceCount(1, most, most),)
        told = Message(1, f"x{number}", "x", 1, True, workers=most, counts=counts)
        board.machines.hear(msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Message), 0.0)
    news = board.merging.take("w1")
    assert news.counts[0].requests > 1 << 30
    assert decode_from_board(msgspec.msgpack.encode(news)) == news


def test_what_a_machine_says_is_bounded() -> None:
    network = Network()
    board = network.boards[0]
    for number in range(2 * MACHINES_MAX):
        board.machines.hear(Message(1, f"x{number}", "x", 0, False), 0.0)
    assert len(board.machines.list_machines()) == MACHINES_MAX
    board.machines.sweep(10.0)
    for number in range(2, 5000, 2):  # every other message lacks
        board.machines.hear(Message(1, "y", "y", number, True, counts=(PlaceCount(1, number, 0),)), 10.0)
    board.machines.hear(Message(2, "z", "z", 1, True), 10.0)  # another format
    assert {each.instance for each in board.machines.list_machines()} <= {"y"}
