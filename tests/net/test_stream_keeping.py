"""Connections after a stream: a server that says it keeps them, and does not, costs no request."""

from upstream_rig import ask, origin_at, run, until

from forebay.net.client import Origin
from forebay.testing.answers import Framing, answer
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Script, Sleep
from forebay.testing.upstream import ScriptedUpstream

STREAM = [("content-type", "text/event-stream"), ("keep-alive", "timeout=5, max=100")]
EVENTS = [b"data: one\n\n", b"data: [DONE]\n\n"]


def close_soon(request: RecordedRequest) -> Script:
    """As llama.cpp's server does: the head says that the connection is kept, and then it is not."""
    return [*answer(EVENTS, headers=STREAM, framing=Framing.CHUNKED), Sleep(0.02), Close()]


async def ask_at_once(origin: Origin, times: int) -> None:
    """Each request goes out in the moment in which the one before has its end."""
    for number in range(times):
        status, body = await ask(origin, f"r{number}")
        assert (status, body) == (200, b"".join(EVENTS))


def test_a_request_right_after_a_stream_is_not_lost() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(close_soon) as upstream:
            with origin_at(upstream.url) as (_, origin):
                await ask_at_once(origin, 5)
                await until(lambda: origin.open_connections == 0)
                await ask_at_once(origin, 5)
                assert origin.idle_connections == 0
            assert len({request.connection for request in upstream.requests}) == 10

    run(scenario)


def test_a_server_that_keeps_them_is_believed_after_a_moment() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(
            lambda _: answer(EVENTS, headers=STREAM, framing=Framing.CHUNKED)
        ) as upstream:
            with origin_at(upstream.url) as (_, origin):
                await ask_at_once(origin, 1)
                assert origin.idle_connections == 0
                await until(lambda: origin.idle_connections == 1)
                await ask_at_once(origin, 5)
                assert (origin.open_connections, origin.idle_connections) == (1, 1)
            assert len({request.connection for request in upstream.requests}) == 1

    run(scenario)
