"""What a connection makes of an answer: any split of its bytes is the same, and broken ones are errors."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from upstream_rig import CHUNKED, HEAD, OK, Headers, both_loops, exchange, origin_at, rig, run, start, turn

from forebay.core.errors import UpstreamProtocol, UpstreamReset
from forebay.net.answer import FRAMING_MAX_BYTES
from forebay.testing.answers import malformed_answers
from forebay.testing.upstream import ScriptedUpstream


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer's bytes, and what they mean."""

    wire: bytes
    status: int
    headers: Headers
    body: bytes
    closes: bool = False  #: its end is the connection's end
    reusable: bool = True


names = st.from_regex(rb"x-[a-zA-Z0-9_-]{1,8}", fullmatch=True)
values = st.from_regex(rb"([!-~]([ !-~]{0,12}[!-~])?)?", fullmatch=True)
extensions = st.sampled_from([b"", b";a", b";a=b", b';name="quoted; text"'])


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    headers = draw(st.lists(st.tuples(names, values), max_size=4))
    framing = draw(st.sampled_from(["length", "chunked", "close", "none", "http/1.0", "http/1.0 kept"]))
    status = draw(st.sampled_from([200, 201, 400, 429, 500, 503] if framing != "none" else [204, 304]))
    version = b"1.0" if framing.startswith("http/1.0") else b"1.1"
    body = b"" if framing == "none" else draw(st.binary(max_size=60))
    out = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hints\r\nlink: </a>\r\n\r\n"])
    )
    closes, reusable, tail = framing in ("close", "http/1.0"), True, body
    if framing in ("length", "http/1.0 kept"):
        headers.append((draw(st.sampled_from([b"content-length", b"Content-Length"])), b"%d" % len(body)))
        if framing == "http/1.0 kept":
            headers.append((b"connection", b"keep-alive"))
        elif draw(st.booleans()):
            headers.append((b"connection", b"Close"))
            reusable = False
    elif framing == "chunked":
        headers.append((b"Transfer-Encoding", b"chunked"))
        ends = sorted(draw(st.sets(st.integers(1, len(body)), max_size=5)) | {len(body)}) if body else []
        chunks = [body[a:b] for a, b in pairwise([0, *ends])]
        tail = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), draw(extensions), chunk) for chunk in chunks)
        trailers = draw(st.lists(st.tuples(names, values), max_size=2))
        tail += b"0\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in trailers) + b"\r\n"
    head = b"HTTP/%b %d Some reason\r\n" % (version, status)
    head += b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n"
    first: dict[bytes, bytes] = {}
    for name, value in headers:
        first.setdefault(name, value)
    return Sample(out + head + tail, status, list(first.items()), body, closes, reusable and not closes)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(samples(), st.data(), st.booleans(), st.sampled_from(["asyncio", "uvloop"]))
def test_any_split_of_the_bytes_is_the_same_answer(
    sample: Sample, data: st.DataObject, whole: bool, loop_name: str
) -> None:
    size = len(sample.wire)
    cuts = data.draw(st.one_of(st.just(set(range(1, size))), st.sets(st.integers(1, size - 1), max_size=8)))
    pieces = [sample.wire[a:b] for a, b in pairwise([0, *sorted(cuts), size])]

    async def scenario() -> None:
        seen = await exchange(pieces, closes=sample.closes, whole=whole)
        assert (seen.status, seen.headers, seen.body) == (sample.status, sample.headers, sample.body)
        assert seen.pooled is sample.reusable

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("name", sorted(malformed_answers().keys() - {"http_2_version"}))
def test_a_malformed_answer_is_an_error_and_never_pooled(name: str, loop_name: str) -> None:
    """Whatever breaks the framing, the target is to blame, and its connection is closed."""

    async def scenario() -> None:
        async with ScriptedUpstream(malformed_answers()[name]) as upstream:
            with origin_at(upstream.url) as (_, origin):
                connection = await origin.acquire(5)
                start(origin, connection)
                with pytest.raises((UpstreamProtocol, UpstreamReset)):
                    await connection.all()
                connection.release()
                await turn()
                assert (origin.open_connections, origin.idle_connections) == (0, 0)

    run(scenario, loop_name)


def test_a_version_that_can_not_be_is_read_and_not_kept() -> None:
    """The parser takes `HTTP/2.0` on a status line; to ask for the version would cost every answer."""

    async def scenario() -> None:
        seen = await exchange([b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok"])
        assert (seen.body, seen.pooled) == (b"ok", False)

    run(scenario)


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n\r\n\x16\x03\x01 garbage",
        b"HTTP/1.1 200\r\nfoo\x01: a\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\nbody",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/3.0 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        HEAD + b"content-length: 2, 2\r\n\r\nok",
        HEAD + b"content-length: 99999999999999999999999\r\n\r\nok",
        HEAD + b"content-length: +2\r\n\r\nok",
        CHUNKED + b"5\r\nhell\r\n0\r\n\r\n",
        CHUNKED + b"4\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"-1\r\nhello\r\n",
        CHUNKED + b"fffffffffffffffff\r\nhello\r\n",
        CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n\x81\x05hello",
    ],
)
def test_bytes_that_are_no_answer_fail_without_waiting_for_the_end(wire: bytes) -> None:
    async def scenario() -> None:
        with pytest.raises(UpstreamProtocol) as caught:
            await exchange([wire])
        assert caught.value.__context__ is None or "bound" not in str(caught.value.__context__)

    run(scenario, timeout_s=20)  # the end itself is awaited for 30 s


def test_an_error_says_what_is_wrong_with_the_bytes() -> None:
    cases = {
        b"HTTP/1.1 099 Low\r\n\r\n": "status 99",
        b"SSH-2.0\r\n": "not HTTP/1.1",
        b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n": "switch protocols",
        HEAD
        + b"x-long: "
        + b"x" * (FRAMING_MAX_BYTES + 1): f"more than {FRAMING_MAX_BYTES} bytes of headers",
    }

    async def scenario() -> None:
        for wire, text in cases.items():
            with pytest.raises(UpstreamProtocol, match=text):
                await exchange([wire])

    run(scenario)


def test_a_body_that_ends_early_is_a_reset_and_what_came_is_given_out_first() -> None:
    async def scenario() -> None:
        for wire in (HEAD + b"content-length: 10\r\n\r\nhello", CHUNKED + b"5\r\nhello\r\n"):
            async with rig() as r:
                connection, peer = await r.connect()
                start(r.origin, connection)
                await peer.read_request()
                peer.send(wire)
                peer.close()
                await turn(5)
                assert await connection.some() == b"hello"
                with pytest.raises(UpstreamReset, match="in the middle"):
                    await connection.some()
                connection.release()
                assert r.origin.open_connections == 0

    run(scenario)


def test_a_reset_does_not_end_a_body_that_the_connections_end_would() -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            await wire.read_request()
            wire.send(HEAD + b"\r\nhello")
            await turn()
            wire.reset()
            assert await connection.some() == b"hello"
            with pytest.raises(UpstreamReset):
                await connection.some()

    run(scenario)


@both_loops
@pytest.mark.parametrize(
    "extra", [b"x", OK, b"HTTP/1.1", b"\x00", b"HTTP/1.1 100 Continue\r\n\r\n", b"hello world"]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_bytes_after_an_answer_cost_the_connection_and_never_reach_the_next(
    extra: bytes, at_once: bool, loop_name: str
) -> None:
    async def scenario() -> None:
        async with rig() as r:
            connection, wire = await r.connect()
            start(r.origin, connection)
            await wire.read_request()
            if at_once:
                wire.send(OK + extra)
                assert await connection.all() == b"ok"
            else:
                wire.send(OK)
                assert await connection.all() == b"ok"
                wire.send(extra)
                await turn()
            assert connection.status == 200
            connection.release()
            await turn()
            assert (r.origin.open_connections, r.origin.idle_connections) == (0, 0)
            assert r.origin.pop_idle() is None
            await wire.read_end()

    run(scenario, loop_name)


def test_a_blank_line_after_an_answer_is_forgiven() -> None:
    """Some servers send one; it says nothing, so it spoils nothing."""

    async def scenario() -> None:
        assert (await exchange([OK + b"\r\n"])).pooled

    run(scenario)


def test_folded_headers_do_not_shift_the_body() -> None:
    async def scenario() -> None:
        try:
            seen = await exchange([HEAD + b"x-a: one\r\n  two\r\ncontent-length: 2\r\n\r\nok"])
        except UpstreamProtocol:
            return
        assert seen.body == b"ok"
        assert [name for name, _ in seen.headers] == [b"x-a", b"content-length"]

    run(scenario)


def test_redirects_are_answers_and_cookies_are_not_kept() -> None:
    async def scenario() -> None:
        async with rig() as r:
            redirect = (
                b"HTTP/1.1 302 Found\r\nlocation: /other\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
            )
            _, wire = await r.pool_one(redirect)
            connection = r.origin.pop_idle()
            assert connection is not None
            assert (connection.status, connection.header(b"location")) == (302, b"/other")
            start(r.origin, connection)
            request = await wire.read_request()
            assert b"cookie" not in request
            assert request.startswith(b"POST /v1/x ")
            assert r.peer.accept_waiting() == []
            connection.abort()

    run(scenario)
