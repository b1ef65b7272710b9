"""Who answers a request, and what the ready-made answers look like on the wire."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import httpx
import pytest
import trustme

from forebay.testing.answers import (
    Framing,
    answer,
    drip,
    echo,
    head,
    informational,
    json_answer,
    last_chunk,
    malformed_answers,
    redirect,
    sse_answer,
)
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Reset, Script, Send, Sleep
from forebay.testing.upstream import ScriptedUpstream, UpstreamSettings


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario, but not for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


# --- who answers --------------------------------------------------------------------------------------------


def open_client(upstream: ScriptedUpstream) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=upstream.origin)


def test_scripts_in_the_queue_come_first_then_the_route_then_a_500_that_says_so() -> None:
    async def scenario() -> None:
        routes = {"POST /a": json_answer("posted"), "/a": json_answer("a"), "/echo": echo}
        async with (
            ScriptedUpstream(routes) as upstream,
            httpx.AsyncClient(base_url=upstream.origin) as client,
        ):
            upstream.enqueue(json_answer("queued"))
            assert (await client.get("/a")).json() == "queued"
            assert (await client.get("/a?b=c")).json() == "a"
            assert (await client.post("/a")).json() == "posted"
            answered = await client.post("/echo?x", content=b"body", headers={"X-Own": "1"})
            assert ["X-Own", "1"] in answered.json()["headers"]
            assert answered.json()["body"] == "body"
            missing = await client.delete("/none")
            assert (missing.status_code, missing.json()) == (500, {"error": "no script for DELETE /none"})

    run(scenario)


def test_an_error_in_a_handler_fails_the_test() -> None:
    def broken(_: RecordedRequest) -> Script:
        raise ZeroDivisionError("in the handler")

    async def scenario() -> None:
        async with ScriptedUpstream(broken) as upstream, httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.get(upstream.url)

    with pytest.raises(ZeroDivisionError, match="in the handler"):
        run(scenario)


def test_waiting_in_vain_says_what_was_seen() -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(echo) as upstream, open_client(upstream) as client:
            await client.get("/x")
            with pytest.raises(TimeoutError, match="target='/x'"):
                await upstream.wait_requests(2, timeout_s=0.01)

    run(scenario)


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", list(Framing))
def test_every_framing_carries_the_same_body(framing: Framing) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream() as upstream, httpx.AsyncClient() as client:
            for script in (answer([b"ab", b"", b"c"], framing=framing), answer(b"abc", framing=framing)):
                for every in (None, 1):
                    upstream.enqueue(script if every is None else drip(script, every=every))
                    answered = await client.get(upstream.url)
                    assert (answered.status_code, answered.content) == (200, b"abc")
            expected = 4 if framing is Framing.CLOSE else 1
            assert len(upstream.connections) == expected

    run(scenario)


def test_a_stream_is_cut_where_the_test_says() -> None:
    events = [b"data: a\n\n", b"data: b\n\n"]
    whole = sse_answer(events)
    assert [step.data for step in whole[1:] if isinstance(step, Send)] == [
        b"9\r\ndata: a\n\n\r\n",
        b"9\r\ndata: b\n\n\r\n",
        b"0\r\n\r\n",
    ]
    by_byte = sse_answer(events, cut_every=1, framing=Framing.CLOSE)
    assert [step.data for step in by_byte[1:-1] if isinstance(step, Send)] == [
        bytes([byte]) for byte in b"".join(events)
    ]
    at = sse_answer(events, cut_at=[2, 17], framing=Framing.LENGTH, pause_s=0.5)
    assert at[1:] == [Send(b"da"), Sleep(0.5), Send(b"ta: a\n\ndata: b\n"), Sleep(0.5), Send(b"\n")]


def test_trailers_redirects_and_informational_answers() -> None:
    async def scenario() -> None:
        script = [*informational(103, [("link", "</a>")]), *redirect("http://b/")]
        async with ScriptedUpstream(script) as upstream, open_client(upstream) as client:
            answered = await client.get("/a")
            assert (answered.status_code, answered.headers["location"]) == (307, "http://b/")

    run(scenario)
    assert informational(103, [("link", "</a>")]) == [Send(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")]
    assert last_chunk([("x-sum", "1")]) == Send(b"0\r\nx-sum: 1\r\n\r\n")
    assert answer(b"a", framing=Framing.CHUNKED, trailers=[("x-sum", "1")])[-1] == last_chunk(
        [("x-sum", "1")]
    )
    assert head(599, reason="Odd") == b"HTTP/1.1 599 Odd\r\n\r\n"
    assert head(799) == b"HTTP/1.1 799 Unknown\r\n\r\n"


#: h11 takes these: it ignores the length beside chunked, and reads any version as it finds it.
TAKEN_BY_H11 = {"length_and_chunked", "http_2_version"}


@pytest.mark.parametrize("name", sorted(malformed_answers().keys() - TAKEN_BY_H11))
def test_malformed_answers_are_errors_to_a_strict_client(name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(malformed_answers()[name]) as upstream, httpx.AsyncClient() as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(upstream.url)

    run(scenario)


def test_tls() -> None:
    async def scenario() -> None:
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        async with ScriptedUpstream(echo, UpstreamSettings(tls=context)) as upstream:
            async with httpx.AsyncClient(verify=trusting) as client:
                assert (await client.get(upstream.url)).json()["target"] == "/v1"
                upstream.enqueue([Send(head(200, [("content-length", "9")]) + b"half"), Reset()])
                with pytest.raises(httpx.ReadError):
                    await client.get(upstream.url)
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.get(upstream.url)
            await upstream.wait_until(lambda: upstream.connections_open == 0)

    run(scenario)
