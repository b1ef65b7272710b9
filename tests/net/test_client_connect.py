"""How a connection comes to be, or does not: each failure has its error, and words that say what to mend."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import trustme
from upstream_rig import OK, Peer, ask, both_loops, origin_at, rig, run, start, turn, until

from forebay.core.errors import ConnectFailed, ConnectionsExhausted, ConnectTimeout, UpstreamReset
from forebay.net.client import Address, parse_address
from forebay.net.connection import READ_HIGH_WATER
from forebay.testing.answers import Framing, answer, echo
from forebay.testing.steps import Close, Send, Stall
from forebay.testing.threaded import Blackhole, ThreadedUpstream, find_closed_port
from forebay.testing.upstream import ScriptedUpstream, UpstreamSettings

# --- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "path", "authority"),
    [
        ("http://a.example/v1", "http", "a.example", 80, "/v1", "a.example"),
        ("https://a.example:443/v1/", "https", "a.example", 443, "/v1", "a.example"),
        ("https://a.example:8443", "https", "a.example", 8443, "", "a.example:8443"),
        ("http://[::1]:8000/v1", "http", "::1", 8000, "/v1", "[::1]:8000"),
        ("https://[::1]", "https", "::1", 443, "", "[::1]"),
        ("http://A.Example:443/", "http", "a.example", 443, "", "a.example:443"),
        ("http://a:0/v1", "http", "a", 0, "/v1", "a:0"),
    ],
)
def test_an_url_is_an_address_and_a_path(
    url: str, scheme: str, host: str, port: int, path: str, authority: str
) -> None:
    address, found = parse_address(url, "ca.pem")
    assert address == Address(scheme=scheme, host=host, port=port, tls_ca="ca.pem")
    assert (found, address.authority) == (path, authority)


@pytest.mark.parametrize(
    "url", ["", "a.example/v1", "ftp://a", "http://", "http:///v1", "http://a:99999", "//a"]
)
def test_what_is_no_http_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"not an http|[Pp]ort"):
        parse_address(url)


# --- failures -----------------------------------------------------------------------------------------------


@both_loops
def test_a_refused_connection_says_so(loop_name: str) -> None:
    async def scenario() -> None:
        port = find_closed_port(keep=True)
        with origin_at(f"http://127.0.0.1:{port}/v1") as (_, origin):
            with pytest.raises(ConnectFailed, match=rf"127\.0\.0\.1:{port}.*[Rr]efused"):
                await origin.acquire(5)
            assert origin.open_connections == 0

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid", "a..b"])
def test_an_unknown_name_says_so(host: str, loop_name: str) -> None:
    async def scenario() -> None:
        with origin_at(f"http://{host}:8000/v1") as (_, origin):
            with pytest.raises(ConnectFailed) as caught:
                await origin.acquire(10)
            assert host in caught.value.message
            reason = caught.value.message.partition(f"{host}:8000: ")[2]
            assert len(reason) > 5

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_connection_that_does_not_come_is_given_up_in_time(scheme: str, loop_name: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with Blackhole() as hole, origin_at(f"{scheme}://127.0.0.1:{hole.port}/v1", 1) as (_, origin):
            begun = loop.time()
            with pytest.raises(ConnectTimeout, match=r"within 0\.15 s"):
                await origin.acquire(0.15)
            assert 0.14 <= loop.time() - begun < 5
            with pytest.raises(ConnectTimeout):  # and its place is free again
                await origin.acquire(0.05)

    run(scenario, loop_name)


@both_loops
def test_tls_that_is_never_agreed_counts_as_connecting(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(settings=UpstreamSettings(on_connect=[Stall()])) as upstream:
            with origin_at(upstream.url.replace("http:", "https:")) as (_, origin):
                with pytest.raises(ConnectTimeout):
                    await origin.acquire(0.1)
                await upstream.wait_until(lambda: upstream.connections_open == 0)
                assert origin.open_connections == 0

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("script", [[Close()], [Send(OK), Close()]], ids=["silent", "plain http"])
def test_a_server_without_tls_is_told_apart(script: list, loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(settings=UpstreamSettings(on_connect=script)) as upstream:
            with origin_at(upstream.url.replace("http:", "https:")) as (_, origin):
                with pytest.raises(ConnectFailed) as caught:
                    await origin.acquire(5)
                assert caught.value.message.rpartition(": ")[2]
                assert origin.open_connections == 0

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("deed", ["close", "reset"])
def test_a_connection_that_ends_while_it_is_made_is_no_connection(deed: str, loop_name: str) -> None:
    """At whatever moment: also after it was made, and before whoever asked for it gets to run."""

    async def scenario() -> None:
        peer = Peer()
        with origin_at(f"http://127.0.0.1:{peer.port}/v1") as (_, origin):
            for turns in range(5):
                asking = asyncio.ensure_future(ask(origin))
                while not (accepted := peer.accept_waiting()):
                    await asyncio.sleep(0)
                await turn(turns)
                getattr(accepted[0], deed)()
                with pytest.raises((ConnectFailed, UpstreamReset)):
                    await asking
                await turn()
                assert origin.open_connections == 0
        peer.close()

    run(scenario, loop_name)


# --- bounds -------------------------------------------------------------------------------------------------


@both_loops
def test_no_more_connections_than_allowed_not_even_while_they_are_made(loop_name: str) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(echo) as upstream:
            with origin_at(upstream.url, 3) as (client, origin):
                found = await asyncio.gather(*[origin.acquire(5) for _ in range(10)], return_exceptions=True)
                taken = [one for one in found if not isinstance(one, BaseException)]
                refused = [one for one in found if isinstance(one, ConnectionsExhausted)]
                assert (len(taken), len(refused)) == (3, 7)
                assert "all 3 connections" in refused[0].message
                assert origin.open_connections == len(upstream.connections) == 3
                taken[0].abort()
                again = await origin.acquire(5)
                assert client.origin(origin.address, 4) is origin
                more = await origin.acquire(5)
                with pytest.raises(ConnectionsExhausted):
                    await origin.acquire(5)
                for connection in (*taken[1:], again, more):
                    connection.release()
                assert origin.open_connections == 0

    run(scenario, loop_name)


def test_a_fresh_connection_takes_the_place_of_an_idle_one() -> None:
    """Whoever asks for a fresh one has found a pooled one dead, and need not wait for the rest to expire."""

    async def scenario() -> None:
        async with rig(connections_max=1) as r:
            _, wire = await r.pool_one()
            connection = await r.origin.connect(5)
            assert (r.origin.open_connections, r.origin.idle_connections) == (1, 0)
            await wire.read_end()
            with pytest.raises(ConnectionsExhausted):
                await r.origin.connect(5)
            connection.abort()

    run(scenario)


# --- IPv6 and TLS -------------------------------------------------------------------------------------------


@both_loops
def test_an_ipv6_address_is_reached_and_named_in_brackets(loop_name: str) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")

    async def scenario() -> None:
        peer = Peer.__new__(Peer)
        peer.listener, peer.wires = listener, []
        listener.setblocking(False)
        port = listener.getsockname()[1]
        with origin_at(f"http://[::1]:{port}/v1") as (_, origin):
            asking = asyncio.ensure_future(ask(origin))
            wire = await peer.accept()
            await wire.read_request()
            wire.send(OK)
            assert await asking == (200, b"ok")
            assert origin.name == f"http://[::1]:{port}"
        peer.close()

    run(scenario, loop_name)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def serve_tls(authority: trustme.CA, name: str = "127.0.0.1") -> UpstreamSettings:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return UpstreamSettings(tls=context)


@both_loops
def test_tls_connections_are_reused_whatever_tickets_come_meanwhile(
    authority: trustme.CA, ca_file: str, loop_name: str
) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream(echo, serve_tls(authority)) as upstream:
            with origin_at(upstream.url, tls_ca=ca_file) as (_, origin):
                idle = await origin.acquire(5)  # its tickets come while nobody has asked for anything
                await asyncio.sleep(0.02)
                assert not idle.is_stale()
                start(origin, idle, name="first")
                assert b"/v1/first" in await idle.all()
                idle.release()
                await asyncio.sleep(0.02)
                for number in range(3):
                    assert (await ask(origin, f"r{number}"))[0] == 200
                assert len(upstream.connections) == 1
                assert origin.idle_connections == 1

    run(scenario, loop_name)


@both_loops
def test_tickets_on_a_new_connection_do_not_make_it_look_dead(
    authority: trustme.CA, ca_file: str, loop_name: str
) -> None:
    """A server in another thread sends them at any moment, also before the connection is handed out."""
    with ThreadedUpstream(echo, serve_tls(authority)) as upstream:

        async def scenario() -> None:
            for number in range(20):
                with origin_at(upstream.origin, tls_ca=ca_file) as (_, origin):
                    assert (await ask(origin, f"r{number}"))[0] == 200

        run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("framing", list(Framing))
def test_big_answers_and_requests_over_tls(
    authority: trustme.CA, ca_file: str, framing: Framing, loop_name: str
) -> None:
    body = bytes(range(256)) * 12_000

    async def scenario() -> None:
        async with ScriptedUpstream(answer([body] * 2, framing=framing), serve_tls(authority)) as upstream:
            with origin_at(upstream.url, tls_ca=ca_file) as (_, origin):
                assert await ask(origin, body=body) == (200, body * 2)
                assert upstream.requests[0].body == body
                connection = await origin.acquire(5)
                start(origin, connection)
                data = bytearray(await connection.some())
                while not connection.complete:
                    await asyncio.sleep(0.001)
                    assert connection.received - len(data) <= READ_HIGH_WATER + 2 * 256 * 1024
                    data += await connection.some()
                assert data == body * 2
                connection.release()

    run(scenario, loop_name)


@both_loops
def test_a_tls_connection_that_ended_while_idle_is_replaced(
    authority: trustme.CA, ca_file: str, loop_name: str
) -> None:
    async def scenario() -> None:
        async with ScriptedUpstream([Send(OK), Close()], serve_tls(authority)) as upstream:
            with origin_at(upstream.url, tls_ca=ca_file) as (_, origin):
                for number in range(2):
                    assert await ask(origin, f"r{number}") == (200, b"ok")
                    await until(lambda: origin.open_connections == 0)
                assert [request.path for request in upstream.requests] == ["/v1/r0", "/v1/r1"]

    run(scenario, loop_name)


@both_loops
def test_an_unknown_authority_and_a_wrong_name_are_refused_before_anything_is_sent(
    authority: trustme.CA, ca_file: str, tmp_path: Path, loop_name: str
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    cases = [
        (str(other), "127.0.0.1", r"certificate.*unable to get|certificate.*verify|certificate.*signature"),
        (None, "127.0.0.1", "self-signed certificate|unable to get local issuer"),
        (ca_file, "elsewhere.example", r"not valid for '127\.0\.0\.1'"),
    ]

    async def scenario() -> None:
        for tls_ca, name, text in cases:
            async with ScriptedUpstream(echo, serve_tls(authority, name)) as upstream:
                with origin_at(upstream.url, tls_ca=tls_ca) as (_, origin):
                    with pytest.raises(ConnectFailed, match=text) as caught:
                        await origin.acquire(5)
                    assert f"https://127.0.0.1:{upstream.port}" in caught.value.message
                    assert origin.open_connections == 0
                assert upstream.requests == []

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize("when", ["idle", "in use", "being made"])
def test_connections_of_authorities_that_were_replaced_serve_nobody_else(
    authority: trustme.CA, ca_file: str, tmp_path: Path, when: str, loop_name: str
) -> None:
    """Whoever was trusted when a connection was made need not be trusted by the time that it is free."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))

    async def scenario() -> None:
        async with ScriptedUpstream(echo, serve_tls(authority)) as upstream:
            with origin_at(upstream.url, tls_ca=ca_file) as (_, origin):

                def replace() -> None:
                    origin.trust(ssl.create_default_context(cafile=str(other)))

                if when == "being made":
                    making = asyncio.ensure_future(origin.acquire(5))
                    await asyncio.sleep(0)
                    replace()
                    connection = await making
                else:
                    connection = await origin.acquire(5)
                start(origin, connection)
                if when == "in use":
                    replace()
                assert b"/v1/" in await connection.all()
                connection.release()
                if when == "idle":
                    assert origin.idle_connections == 1
                    replace()
                assert origin.idle_connections == 0
                with pytest.raises(ConnectFailed, match="certificate"):
                    await origin.acquire(5)

    run(scenario, loop_name)


def test_an_authority_file_that_is_none_is_refused_when_the_origin_is_made(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate")

    async def scenario() -> None:
        for path in (str(tmp_path / "missing.pem"), str(empty)):
            with pytest.raises(OSError, match=r"No such file|no certificate|NO_CERTIFICATE"):
                with origin_at("https://127.0.0.1:1/v1", tls_ca=path):
                    pass

    run(scenario)


def test_origins_of_one_authority_share_its_certificates(ca_file: str) -> None:
    async def scenario() -> None:
        with origin_at("https://127.0.0.1:1/v1", tls_ca=ca_file) as (client, first):
            second = client.origin(parse_address("https://127.0.0.1:2/v1", ca_file)[0], 1)
            assert first is not second
            assert first._tls is second._tls

    run(scenario)
