"""The end of a turn: what waits goes out together, records before answers, and nothing is sent for nobody."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from upstream_rig import LIMIT, OK, Rig, build_head, rig, run, turn, until, watch

from forebay.core.errors import CallerLeft, StaleConnection
from forebay.net.connection import WAITING_MAX_BYTES, Connection
from forebay.net.turn import ANSWERS_MAX, REQUESTS_MAX, Turn


class Noted:
    """Something that waits, and notes when it goes."""

    def __init__(self, name: str, log: list[str], then: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.log = log
        self.then = then

    def flush(self) -> None:
        self.log.append(self.name)
        self.then()


def in_a_turn(test: Callable[[Turn, list[str]], Any]) -> list[str]:
    """What happened, in its order, by the time that the loop has nothing left to do."""
    log: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: log.append(f"trouble: {context['exception']}"))
        made = Turn(loop, itertools.count(1).__next__)
        made.write_records = lambda: log.append("records")
        test(made, log)
        log.append("the turn goes on")
        for _ in range(3):
            await asyncio.sleep(0)

    run(scenario)
    return log


def test_requests_go_first_and_records_before_answers() -> None:
    def test(made: Turn, log: list[str]) -> None:
        made.add_answer(Noted("answer 1", log))
        made.add_request(Noted("request 1", log))
        made.end_soon()
        made.add_answer(Noted("answer 2", log))
        made.add_request(Noted("request 2", log))

    assert in_a_turn(test) == [
        "the turn goes on", "request 1", "request 2", "records", "answer 1", "answer 2",
    ]  # fmt: skip


def test_many_do_not_wait_for_the_turns_end() -> None:
    def test(made: Turn, log: list[str]) -> None:
        for number in range(REQUESTS_MAX + 1):
            made.add_request(Noted(f"request {number}", log))
        for number in range(ANSWERS_MAX + 1):
            made.add_answer(Noted(f"answer {number}", log))

    log = in_a_turn(test)
    on = log.index("the turn goes on")
    assert log[:REQUESTS_MAX] == [f"request {number}" for number in range(REQUESTS_MAX)]
    assert log[REQUESTS_MAX : REQUESTS_MAX + 2] == [f"request {REQUESTS_MAX}", "records"]
    assert log[on - ANSWERS_MAX : on] == [f"answer {number}" for number in range(ANSWERS_MAX)]
    assert log[on + 1 :] == ["records", f"answer {ANSWERS_MAX}"]


def test_what_comes_while_a_turn_ends_waits_for_the_next() -> None:
    def test(made: Turn, log: list[str]) -> None:
        late = Noted("late answer", log)
        made.add_answer(Noted("answer", log, lambda: made.add_answer(late)))

    assert in_a_turn(test) == ["the turn goes on", "records", "answer", "records", "late answer"]


def test_one_that_fails_holds_nobody_else_up() -> None:
    def fail() -> None:
        raise ValueError("broken")

    def test(made: Turn, log: list[str]) -> None:
        made.add_request(Noted("request 1", log, fail))
        made.add_request(Noted("request 2", log))
        made.add_answer(Noted("answer 1", log, fail))
        made.add_answer(Noted("answer 2", log))

    assert in_a_turn(test) == [
        "the turn goes on", "request 1", "trouble: broken", "request 2", "records", "answer 1",
        "trouble: broken", "answer 2",
    ]  # fmt: skip


def test_records_that_cannot_be_written_keep_no_answer_back() -> None:
    def fail() -> None:
        raise ValueError("no records")

    def test(made: Turn, log: list[str]) -> None:
        made.write_records = fail
        made.add_answer(Noted("answer", log))

    assert in_a_turn(test) == ["the turn goes on", "answer", "trouble: no records"]


# --- a connection's request ---------------------------------------------------------------------------------


async def send(made: Rig, body: bytes = b"{}") -> Connection:
    """A request over a pooled connection, in a turn that has not ended."""
    connection = made.origin.pop_idle()
    assert connection is not None
    watch(made.origin, connection)
    connection.send(build_head(len(body)), body, LIMIT)
    return connection


def test_a_small_request_goes_out_at_the_turns_end_and_a_large_one_at_once() -> None:
    async def scenario() -> None:
        async with rig() as r:
            _, wire = await r.pool_one()
            connection = await send(r)
            assert (wire.peek(), connection.sent_ns) == (b"", 0)
            await turn()
            assert wire.peek() == build_head(2) + b"{}"
            assert connection.sent_ns > 0
            await wire.read_request()
            wire.send(OK)
            assert await connection.all() == b"ok"
            connection.release()
            large = b"x" * WAITING_MAX_BYTES
            connection = await send(r, large)
            assert connection.sent_ns > 0
            assert await wire.read_request() == build_head(len(large)) + large
            connection.abort()

    run(scenario)


@pytest.mark.parametrize("end", ["closes", "resets", "answers"])
def test_a_request_that_had_not_gone_out_may_be_sent_again(end: str) -> None:
    """Whatever the peer does before it was asked has nothing to do with the request."""

    async def scenario() -> None:
        async with rig() as r:
            _, wire = await r.pool_one()
            connection = await send(r)
            waiting, r.client.turn._requests = r.client.turn._requests, []  # for a turn that lasts
            {"closes": wire.close, "resets": wire.reset, "answers": lambda: wire.send(OK)}[end]()
            with pytest.raises(StaleConnection):
                await connection.all()
            connection.release()
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)
            for outgoing in waiting:
                outgoing.flush()
            assert connection.sent_ns == 0
            with contextlib.suppress(OSError):
                assert wire.peek() == b""

    run(scenario)


def test_nothing_goes_out_for_a_caller_that_left_in_the_same_turn() -> None:
    async def scenario() -> None:
        async with rig() as r:
            _, wire = await r.pool_one()
            connection = await send(r)
            connection.fail(CallerLeft("the caller left"))
            with pytest.raises(CallerLeft):
                await connection.all()
            await turn()
            connection.release()
            assert await wire.read_all() == b""
            await until(lambda: r.origin.open_connections == 0)

    run(scenario)
