"""What a connection of a caller may make the worker hold, read by read."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caller_side import HEAD, READ_MAX, Side, feed_in_reads, request
from gateway_stage import Stage
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_caller import RawCaller

from forebay.core.routes import GatewayLimits
from forebay.gateway.caller import AHEAD_MAX_BYTES, HEAD_MAX_BYTES
from forebay.gateway.server import NAME_MAX_BYTES, TURNED_AWAY_MAX
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.steps import Gate, Wait

bodies = st.builds(lambda size: b"x" * size, st.sampled_from([0, 1, 5000, 64 * 1024, 300_000]))
requests = st.tuples(bodies, st.sampled_from([0, 3000, 60_000]), st.sampled_from([0, 0, 1000, 70_000]))
sizes = st.lists(st.sampled_from([700, 3000, 60_000, 64 * 1024, READ_MAX]), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(requests, min_size=1, max_size=5), sizes)
def test_sound_requests_are_served_wherever_reads_end(made: list[Any], read_sizes: list[int]) -> None:
    async def test() -> None:
        side = Side(at_once=True)
        data = b"".join(request(body, padding=padding, chunk=chunk) for body, padding, chunk in made)
        await feed_in_reads(side, data, read_sizes)
        assert side.wire.statuses == [200] * len(made)
        assert side.bodies == [body for body, _, _ in made]
        assert side.memory.held == 0

    asyncio.run(test())


def test_a_head_behind_a_large_read_of_a_body_may_come_in_two(tmp_path: Path) -> None:
    async def test() -> None:
        side = Side(at_once=True)
        first, second = request(b"x" * 300_000), request(b"", padding=3000)
        await side.feed(first[:-200_000])
        await side.feed(first[-200_000:])
        await side.feed(second[:2000])
        await side.feed(second[2000:])
        assert side.wire.statuses == [200, 200]

    asyncio.run(test())


ENDLESS: dict[str, Callable[[int], bytes]] = {
    "headers": lambda n: b"x-%d: " % n + b"y" * 2000 + b"\r\n",
    "one header": lambda n: b"y" * 2000,
}


@pytest.mark.parametrize("before", ["", "a request", "body", "body in this read"])
@pytest.mark.parametrize("name", ENDLESS)
def test_headers_and_trailers_without_end_are_refused(name: str, before: str) -> None:
    async def test() -> None:
        side = Side(at_once=True)
        body = b"transfer-encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n"
        if before == "a request":
            await side.feed(request(b""))
            side.wire.written.clear()
        if "body" in before:
            await side.feed(HEAD + body if before == "body" else HEAD)
            if before != "body":
                await side.feed(body)
        else:
            await side.feed(HEAD)
        await side.feed(b"x-begun: ")
        for number in range((HEAD_MAX_BYTES + READ_MAX) // 2000 + 2):
            if side.wire.written:
                break
            await side.feed(ENDLESS[name](number))
        assert side.wire.statuses == [431]

    asyncio.run(test())


def test_trailers_are_none_of_the_next_requests_headers() -> None:
    async def test() -> None:
        side = Side(at_once=False)
        trailer = b"authorization: Bearer other\r\n\r\n"
        await side.feed(request(b"xyz", chunk=2)[: -len(b"x-trailer: 1\r\n\r\n")] + trailer)
        await side.feed(b"GET / HTTP/1.1\r\n\r\n")
        side.waiting[0].respond(200, "", b"")
        first, second = side.waiting
        assert first.headers[b"authorization"] == b"Bearer " + TEST_KEY.encode()
        assert not second.headers

    asyncio.run(test())


@pytest.mark.parametrize("size", [100, 5000, 250_000, 3_000_000])
def test_requests_read_ahead_are_held_within_limits_and_in_the_account(size: int) -> None:
    async def test() -> None:
        side = Side(at_once=False)
        data = request(b"") + request(b"x" * size) * 40
        at = 0

        async def feed() -> None:
            nonlocal at
            while side.wire.reads and at < len(data):
                await side.feed(data[at : at + READ_MAX])
                at += READ_MAX

        await feed()
        answered = 0
        while side.waiting:
            ahead = sum(call.received for call in side.connection._queue)
            assert side.memory.held == ahead <= AHEAD_MAX_BYTES + READ_MAX
            side.waiting.pop(0).respond(200, "", b"")
            answered += 1
            await feed()
        while at < len(data):  # bodies that are taken as they come
            await feed()
        await asyncio.sleep(0)  # the turn's end
        assert side.wire.statuses == [200] * 41
        assert side.memory.held == 0

    asyncio.run(test())


def test_what_was_read_ahead_is_given_back_when_the_caller_leaves() -> None:
    async def test() -> None:
        side = Side(at_once=False)
        await side.feed(request(b"") + request(b"x" * 50_000) * 2 + HEAD)
        assert side.memory.held == 100_000
        side.connection.connection_lost(None)
        assert side.memory.held == 0

    asyncio.run(test())


@pytest.mark.parametrize("read", [READ_MAX, 20])
@pytest.mark.parametrize("chunk", [1, 2, 30])
def test_a_body_in_tiny_chunks_takes_no_more_than_it_holds(chunk: int, read: int) -> None:
    async def test() -> None:
        side = Side(at_once=False)
        size = 4 * READ_MAX if read == READ_MAX else 60_000
        body = b"x" * size
        data = request(body, chunk=chunk)[:-20]
        tracemalloc.start()
        try:
            await feed_in_reads(side, data, [read])
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 1.5 * size + 150_000
        await side.feed(b"0\r\n\r\n" if data.endswith(b"\r\n") else b"")
        side.connection.connection_lost(None)

    asyncio.run(test())


def test_long_names_of_headers_are_not_remembered() -> None:
    async def test() -> None:
        side = Side(at_once=True)
        for number in range(20):
            name = b"x" * (NAME_MAX_BYTES + 1) + b"%d" % number
            await side.feed(b"GET / HTTP/1.1\r\n" + name + b": 1\r\nx-short: 1\r\n\r\n")
        assert side.wire.statuses == [200] * 20
        assert set(side.server.names) == {b"x-short"}

    asyncio.run(test())


# --- one worker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [RawCaller.close, RawCaller.reset], ids=["fin", "rst"])
def test_a_caller_that_leaves_is_missed_also_while_nothing_is_read(
    gateway: GatewayProcess, upstream: Stage, leave: Callable[[RawCaller], None]
) -> None:
    upstream.answer = [Wait(Gate())]
    caller = RawCaller(gateway.port)
    caller.post("completions", {"model": "m"})
    for _ in range(2):  # enough that no more is read
        caller.post("completions", b'{"model":"m"%b}' % (b" " * 50_000))
    request = upstream.wait_request()
    gateway.until(lambda: gateway.metric("forebay_memory_held_bytes") > AHEAD_MAX_BYTES)
    leave(caller)
    upstream.wait_closed(request)
    gateway.wait_idle()
    gateway.until(lambda: gateway.metric("forebay_memory_held_bytes") == 0)
    assert len(upstream.requests) == 1


def test_a_key_is_remembered_in_one_spelling(gateway: GatewayProcess, upstream: Stage) -> None:
    """Any other is served as well, and holds no memory."""
    with RawCaller(gateway.port) as caller:

        def ask(padding: int) -> int:
            caller.reply = type(caller.reply)()
            caller.send(
                b"GET /v1/models HTTP/1.1\r\nauthorization: Bearer%b%b\r\n\r\n"
                % (b" " * padding, TEST_KEY.encode())
            )
            return caller.read_all().status

        for padding in range(1, 50):
            assert ask(padding) == 200
        before = gateway.rss_bytes
        for padding in range(50_000, 50_400):
            assert ask(padding) == 200
        assert gateway.rss_bytes < before + 4_000_000


def test_an_announcement_takes_no_memory_from_others(tmp_path: Path, upstream: Stage) -> None:
    limits = GatewayLimits(body_max_bytes=1 << 20, memory_max_bytes=3 << 20)
    with (
        GatewayProcess([make_route("m", upstream.url)], folder=tmp_path, limits=limits) as process,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(20):
            caller = stack.enter_context(RawCaller(process.port))
            caller.post("completions", b"x" * (1 << 20), body_sent=0)
        process.until(lambda: process.metric("forebay_requests_in_flight") == 20)
        with RawCaller(process.port) as other:
            other.post("completions", b'{"model":"m"%b}' % (b" " * 900_000))
            assert other.read_all().status == 200


def test_connections_beyond_the_limit_are_told_so_and_do_not_pile_up(tmp_path: Path, upstream: Stage) -> None:
    limits = GatewayLimits(connections_max=10)
    with (
        GatewayProcess([make_route("m", upstream.url)], folder=tmp_path, limits=limits) as process,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(f"/proc/{process.process.pid}/fd")
        before = len(list(folder.iterdir()))
        callers = [stack.enter_context(RawCaller(process.port)) for _ in range(300)]
        late = callers[10]
        assert late.read_all().status == 503
        assert late.reply.json()["error"]["code"] == "too_many_connections"
        assert callers[-1].read_all().status == 503
        process.until(lambda: len(list(folder.iterdir())) <= before + 10 + TURNED_AWAY_MAX)
        callers[0].send(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert callers[0].read_all().status == 200
        callers[0].close()

        def is_served() -> bool:
            """Whoever waits to read why it was turned away takes nobody's place."""
            with RawCaller(process.port) as caller, contextlib.suppress(ConnectionError):
                caller.send(b"GET /healthz HTTP/1.1\r\n\r\n")
                return caller.read_all().status == 200
            return False

        process.until(is_served)
