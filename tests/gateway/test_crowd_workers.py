"""A herd that comes to several workers at once: together they fill what there is, and no place more."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from board_rig import BoardThread
from crowd_rig import CLASSES, RULES, Place, Scene

from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Step


class Watched(Place):
    """It knows how busy it was."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.held: list[tuple[float, float, str]] = []  #: from, until, and the request's id

    def _serve(self, request: RecordedRequest) -> Iterator[Step]:
        begun_s = time.monotonic()
        for number, step in enumerate(super()._serve(request)):
            if number == 1:  # what it waited for is over, and nothing of the answer has gone out
                self.held.append((begun_s, time.monotonic(), request.header("x-request-id") or ""))
            yield step

    def measure_use(self) -> float:
        """Requests in hand in the mean, from the first to the last.

        How long each was in hand is what was seen, and not what it should have been: a busy machine lets
        answers go late.
        """
        begun_s, ended_s, _ = zip(*self.held, strict=True)
        return (sum(ended_s) - sum(begun_s)) / (max(ended_s) - min(begun_s))

    def find_peak(self, ids: set[str]) -> int:
        """The most of some requests that were in hand at a time."""
        held = [(begun_s, ended_s) for begun_s, ended_s, id in self.held if id in ids]
        return max(sum(begun <= at < ended for begun, ended in held) for at, _ in held)


class Stage(Scene):
    """Workers with a board between them."""

    board: BoardThread

    def start_workers(self, place: Place, count: int, wait_s: float, **facts: int) -> None:
        self.board = self._stack.enter_context(BoardThread(self._folder))
        self.add(place, **facts)
        rules = msgspec.structs.replace(RULES, default_wait_s=(wait_s,) * 3, wait_max_s=600)
        self.start(self.make_route(rules), workers=count)
        self.gateway.until(lambda: self.gateway.metric("forebay_board_connected") == count)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


async def ask(stage: Stage) -> tuple[int, str]:
    """The status and the head of an answer; over a bare connection, so that a herd comes at once."""
    host, port = stage.gateway.url.removeprefix("http://").split("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hello"}]}'
    head = f"authorization: Bearer {CLASSES['standard']}\r\ncontent-length: {len(body)}\r\nconnection: close"
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n{head}\r\n\r\n".encode() + body)
    try:
        told = (await reader.read()).decode().lower()
    finally:
        writer.close()
    return int(told[9:12] or 0), told


async def send(stage: Stage, count: int) -> list[tuple[int, str]]:
    async with asyncio.timeout(150):
        return await asyncio.gather(*(ask(stage) for _ in range(count)))


def test_four_workers_never_fill_more_than_there_is_and_waste_little(stage: Stage) -> None:
    place = Watched(0.8)
    stage.start_workers(place, 4, 5.0, requests_max=8)
    answers = asyncio.run(send(stage, 400))
    assert place.peak == 8
    # More than half on a quiet machine; `test_dealing.py` has the sharp claim, by a clock of its own.
    assert place.measure_use() > 0.25 * 8, "places were idle though many waited"
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) <= {200, 503}
    assert statuses[200] == place.served > 8, "who waited had a place, too"
    for status, told in answers:
        assert status == 200 or ("model_overloaded" in told and "retry-after: " in told)
    records = stage.gateway.until(lambda: len(found := stage.gateway.records()) == 400 and found)
    assert len({record.request_id for record in records}) == 400
    for _ in range(10):  # the kernel deals connections out as it likes
        if len({record.worker for record in stage.gateway.records()}) > 1:
            break
        asyncio.run(send(stage, 100))
    else:
        raise AssertionError("one worker took all connections, always")
    assert place.peak == 8


def test_fewer_places_than_workers_serve_every_request_of_each(stage: Stage) -> None:
    place = Place(0.1)
    stage.start_workers(place, 4, 600.0, requests_max=2)
    answers = asyncio.run(send(stage, 40))
    assert {status for status, _ in answers} == {200}
    assert place.peak <= 2


def test_a_worker_that_dies_in_a_herd_leaves_its_places_to_the_others(stage: Stage) -> None:
    place = Watched(0.1)
    stage.start_workers(place, 3, 600.0, requests_max=6)

    async def run() -> None:
        async with asyncio.timeout(150):
            asked = [asyncio.ensure_future(ask(stage)) for _ in range(120)]
            await stage.until(lambda: place.served > 6)
            await asyncio.to_thread(stage.workers[2].kill)
            done = await asyncio.gather(*asked, return_exceptions=True)
            answered = [each[0] for each in done if isinstance(each, tuple)]
            assert set(answered) <= {200, 0}, "those of the dead worker, however many, end without an answer"
            after = await asyncio.gather(*(ask(stage) for _ in range(40)))
            assert {status for status, _ in after} == {200}, "the others have all of its places"

    asyncio.run(run())
    # What the dead one had in hand, the place may hold for a moment longer.
    living = {each.request_id for each in stage.gateway.records() if each.worker != 2}
    assert 1 <= place.find_peak(living) <= 6


def test_tokens_of_four_workers_fill_what_there_is(stage: Stage) -> None:
    place = Place(0.3)
    stage.start_workers(place, 4, 600.0, tokens_max=3000)
    answers = asyncio.run(send(stage, 60))
    assert {status for status, _ in answers} == {200}
    assert 8 <= place.peak <= 11 + 4  # each is taken for 275 tokens


def test_a_herd_survives_a_new_table_and_a_new_board(stage: Stage) -> None:
    place = Place(0.05)
    stage.start_workers(place, 3, 600.0, requests_max=6)
    (route,) = stage.gateway.snapshot.table.routes

    async def run() -> list[tuple[int, str]]:
        asked = [asyncio.ensure_future(ask(stage)) for _ in range(150)]
        async with asyncio.timeout(150):
            for most in (3, 6):
                await asyncio.sleep(0.3)
                targets = (msgspec.structs.replace(route.targets[0], requests_max=most),)
                table = msgspec.structs.replace(
                    stage.gateway.snapshot.table, routes=(msgspec.structs.replace(route, targets=targets),)
                )
                stage.gateway.write_snapshot(msgspec.structs.replace(stage.gateway.snapshot, table=table))
            await asyncio.to_thread(stage.board.close)
            await asyncio.sleep(0.3)
            stage.board = stage._stack.enter_context(BoardThread(stage._folder))
            return await asyncio.gather(*asked)

    answers = asyncio.run(run())
    assert {status for status, _ in answers} == {200}, next(told for status, told in answers if status != 200)
    assert place.served == 150
    assert place.peak <= 6 + 4  # of three workers without a board, one may have all and the others two each
