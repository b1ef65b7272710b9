"""The way to a place: names that change what they stand for, several addresses, proxies, and mutual TLS."""

import asyncio
import gc
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from upstream_rig import both_loops, run, start, turn

from forebay.core.errors import ConnectFailed, ConnectTimeout, ForebayError
from forebay.net import client as client_module
from forebay.net import dialing
from forebay.net.client import Client, Origin, parse_address
from forebay.net.connection import Connection
from forebay.net.dialing import ANSWER_MAX_BYTES, Proxy, ProxyRefused, check_tunnel, parse_proxy
from forebay.net.turn import Turn
from forebay.testing.answers import echo
from forebay.testing.proxy import TunnelProxy
from forebay.testing.threaded import Blackhole, ThreadedUpstream, find_closed_port
from forebay.testing.upstream import UpstreamSettings

SECRET = "user:a-canary"
BASIC = "Basic dXNlcjphLWNhbmFyeQ=="


@contextmanager
def origin_at(url: str, **files: Any) -> Iterator[Origin]:
    loop = asyncio.get_running_loop()
    client = Client(loop, Turn(loop, time.monotonic_ns))
    address, _ = parse_address(url, **files)
    try:
        yield client.origin(address, 10)
    finally:
        client.close()


async def ask(origin: Origin, connection: Connection) -> tuple[int, bytes]:
    """One exchange over a connection, which is let go."""
    try:
        start(origin, connection)
        answer = await connection.all()
        return connection.status, answer
    finally:
        connection.release()


class Names:
    """A resolver that says what the test says; for asyncio's own loop, whose methods can be replaced."""

    def __init__(self, loop: Any, answer: list[str] | OSError) -> None:
        self.answer = answer
        self.asked = 0
        self.hangs: asyncio.Event | None = None
        loop.getaddrinfo = self.look_up

    async def look_up(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if isinstance(self.answer, OSError):
            raise self.answer
        await asyncio.sleep(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.answer]


# --- names --------------------------------------------------------------------------------------------------


@both_loops
def test_a_name_is_reached(loop_name: str) -> None:
    async def scenario() -> None:
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://localhost:{upstream.port}") as origin:
            connection = await origin.acquire(5)
            assert (await ask(origin, connection))[0] == 200

    run(scenario, loop_name)


def test_an_address_that_does_not_answer_costs_little_where_there_is_another() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://fleet:{upstream.port}") as origin:
            Names(loop, ["127.0.0.2", "127.0.0.1"])  # nobody listens on the first
            for _ in range(3):  # each begins at another
                assert (await ask(origin, await origin.connect(5)))[0] == 200

    run(scenario, "asyncio")


def test_connections_are_spread_over_what_a_name_stands_for() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listeners = [socket.create_server(("127.0.0.1", 0))]
        port = listeners[0].getsockname()[1]
        listeners += [socket.create_server((f"127.0.0.{last}", port)) for last in (2, 3)]
        names = Names(loop, ["127.0.0.1", "127.0.0.2", "127.0.0.3"])
        with origin_at(f"http://fleet:{port}") as origin:
            made = [await origin.connect(5) for _ in range(6)]
            counts = []
            for listener in listeners:
                listener.setblocking(False)
                wires = [(await loop.sock_accept(listener))[0] for _ in range(2)]
                with pytest.raises(BlockingIOError):
                    listener.accept()
                counts.append(len(wires))
                for each in (*wires, listener):
                    each.close()
            assert (counts, names.asked, len(made)) == ([2, 2, 2], 6, 6)

    run(scenario, "asyncio")


def test_a_name_that_comes_to_stand_for_another_address_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        names = Names(loop, ["127.0.0.1"])
        with ThreadedUpstream(echo) as old:
            new = socket.create_server(("127.0.0.2", old.port))
            new.setblocking(False)
            with origin_at(f"http://fleet:{old.port}") as origin:
                young = await origin.connect(5)
                await ask(origin, young)
                assert origin.pop_idle() is young, "it serves again while it is young"
                monkeypatch.setattr(client_module, "AGE_MAX_S", 0.0)
                names.answer = ["127.0.0.2"]
                aged = await origin.connect(5)
                (await loop.sock_accept(new))[0].close()
                assert aged.reuse_until <= loop.time()
            new.close()

    run(scenario, "asyncio")


def test_an_old_connection_serves_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(client_module, "AGE_MAX_S", -2.0)  # older than the client's time is behind
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://localhost:{upstream.port}") as origin:
            await ask(origin, await origin.connect(5))
            assert origin.pop_idle() is None
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://127.0.0.1:{upstream.port}") as origin:
            connection = await origin.connect(5)
            await ask(origin, connection)
            assert origin.pop_idle() is connection, "an address stands for itself for ever"

    run(scenario)


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
def test_what_a_name_stood_for_serves_while_the_resolver_does_not(trouble: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        names = Names(loop, ["127.0.0.1"])
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://fleet:{upstream.port}") as origin:
            await origin.connect(5)
            if trouble == "fails":
                names.answer = socket.gaierror(-3, "Temporary failure in name resolution")
            else:
                names.hangs = asyncio.Event()
            assert (await ask(origin, await origin.connect(5)))[0] == 200
            if names.hangs is not None:
                names.hangs.set()
                await turn()

    run(scenario, "asyncio")


def test_a_resolver_that_hangs_delays_one_connection_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(dialing, "RESOLVE_MAX_S", 2.0)
        names = Names(loop, ["127.0.0.1"])
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://fleet:{upstream.port}") as origin:
            await origin.connect(5)
            names.hangs = asyncio.Event()
            await origin.connect(5)
            begun = loop.time()
            for _ in range(3):
                await origin.connect(5)
            assert loop.time() - begun < 3 * dialing.RESOLVE_MAX_S - 0.5
            names.hangs.set()
            await turn()
            names.answer = ["127.0.0.2"]
            with pytest.raises(ConnectFailed):
                await origin.connect(5)  # what it says is heard again

    run(scenario, "asyncio")


def test_a_name_that_was_never_known_fails_in_the_resolver_s_words() -> None:
    async def scenario() -> None:
        Names(asyncio.get_running_loop(), socket.gaierror(-2, "Name or service not known"))
        with origin_at("http://fleet:80") as origin:
            with pytest.raises(ConnectFailed, match="Name or service not known"):
                await origin.connect(5)

    run(scenario, "asyncio")


def test_a_herd_asks_the_resolver_once() -> None:
    async def scenario() -> None:
        names = Names(asyncio.get_running_loop(), ["127.0.0.1"])
        names.hangs = asyncio.Event()
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://fleet:{upstream.port}") as origin:
            tries = [asyncio.ensure_future(origin.connect(5)) for _ in range(10)]
            await turn()
            names.hangs.set()
            await asyncio.gather(*tries)
            assert names.asked == 1

    run(scenario, "asyncio")


def test_who_gives_up_waiting_takes_the_resolver_from_nobody() -> None:
    async def scenario() -> None:
        names = Names(asyncio.get_running_loop(), ["127.0.0.1"])
        names.hangs = asyncio.Event()
        with ThreadedUpstream(echo) as upstream, origin_at(f"http://fleet:{upstream.port}") as origin:
            hasty = asyncio.ensure_future(origin.connect(0.05))
            patient = asyncio.ensure_future(origin.connect(5))
            with pytest.raises(ConnectTimeout):
                await hasty
            names.hangs.set()
            assert await patient

    run(scenario, "asyncio")


def test_a_resolver_that_fails_when_nobody_waits_any_more_is_nobody_s_trouble() -> None:
    """And no traceback in the log, each time."""

    async def scenario() -> None:
        names = Names(asyncio.get_running_loop(), socket.gaierror(-2, "Name or service not known"))
        names.hangs = asyncio.Event()
        with origin_at("http://fleet:80") as origin:
            with pytest.raises(ConnectTimeout):
                await origin.connect(0.02)
            names.hangs.set()
            await turn()
            with pytest.raises(ConnectFailed):
                await origin.connect(5)  # asks anew
            gc.collect()

    run(scenario, "asyncio")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@both_loops
def test_an_ipv6_address_is_reached(loop_name: str) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        try:
            listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:
            pytest.skip("IPv6 is off on this machine")
        listener.setblocking(False)
        with origin_at(f"http://[::1]:{listener.getsockname()[1]}/v1") as origin:
            assert origin.name.startswith("http://[::1]:")
            await origin.connect(5)
            (await loop.sock_accept(listener))[0].close()
        listener.close()

    run(scenario, loop_name)


# --- proxies ------------------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_requests_go_through_a_tunnel(scheme: str, loop_name: str, tmp_path: Path) -> None:
    ca, tls = make_server_tls()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    async def scenario() -> None:
        settings = UpstreamSettings(tls=tls if scheme == "https" else None)
        with ThreadedUpstream(echo, settings) as upstream, TunnelProxy(authorization=BASIC) as proxy:
            files = {"tls_ca": str(tmp_path / "ca.pem")} if scheme == "https" else {}
            url = f"{scheme}://localhost:{upstream.port}/v1"
            with origin_at(url, proxy=parse_proxy(proxy.url, SECRET), **files) as origin:
                for _ in range(2):
                    assert (await ask(origin, await origin.acquire(5)))[0] == 200
            assert len(proxy.heads) == 1, "a tunnel serves again"
            place = f"localhost:{upstream.port}"
            expected = f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\nproxy-authorization: {BASIC}\r\n\r\n"
            assert proxy.heads[0] == expected.encode()
            assert all(each.header("proxy-authorization") is None for each in upstream.requests)

    run(scenario, loop_name)


@both_loops
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Authenticate\r\n\r\n", "wants credentials.*proxy_credentials"),
        (b"HTTP/1.0 403 Basic dXNlcjphLWNhbmFyeQ==\r\nx: y\r\n\r\n", "answers 403"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no HTTP proxy"),
        (b"x" * (ANSWER_MAX_BYTES + 1), "no HTTP proxy"),
        (b"HTTP/1.1 200 OK\r\n\r\nand more", "more than an answer"),
        (b"", "closed the connection"),
    ],
)
def test_a_proxy_that_makes_no_tunnel_says_why(answer: bytes, words: str, loop_name: str) -> None:
    async def scenario() -> None:
        with TunnelProxy(answer=answer) as proxy:
            with origin_at("https://api.example", proxy=parse_proxy(proxy.url, SECRET)) as origin:
                with pytest.raises(ConnectFailed, match=words) as caught:
                    await origin.connect(5)
                assert f"the proxy 127.0.0.1:{proxy.port}" in caught.value.message
                assert "canary" not in caught.value.message
                assert "dXNlcjph" not in caught.value.message
                assert origin.open_connections == 0

    run(scenario, loop_name)


@both_loops
def test_a_proxy_that_is_not_there_or_silent_is_given_up_in_time(loop_name: str) -> None:
    async def scenario() -> None:
        gone = Proxy(host="127.0.0.1", port=find_closed_port(keep=True))
        with origin_at("https://api.example", proxy=gone) as origin:
            with pytest.raises(ConnectFailed, match=r"[Rr]efused"):
                await origin.connect(5)
        with Blackhole() as hole:
            with origin_at("https://api.example", proxy=Proxy(host="127.0.0.1", port=hole.port)) as origin:
                with pytest.raises(ConnectTimeout):
                    await origin.connect(0.1)
        with TunnelProxy(answer=b"HTTP/1.1 2", stays=True) as proxy:
            with origin_at("https://api.example", proxy=parse_proxy(proxy.url)) as origin:
                with pytest.raises(ConnectTimeout):
                    await origin.connect(0.1)

    run(scenario, loop_name)


@pytest.mark.parametrize("url", ["https://proxy:1", "socks5://proxy:1", "proxy:3128", "http://"])
def test_what_is_no_http_proxy_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="HTTP proxy"):
        parse_proxy(url)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_answer_of_a_proxy_is_a_tunnel_or_refused_or_incomplete(data: bytes, cut: int) -> None:
    """And what refuses it in pieces refuses it as a whole."""
    try:
        whole = check_tunnel(data)
    except ProxyRefused:
        return
    if whole:
        assert data.endswith(b"\r\n\r\n")
        assert data.startswith(b"HTTP/1.")
        assert check_tunnel(data[: min(cut, len(data) - 4)]) is False


def test_a_proxy_s_credentials_are_in_no_representation() -> None:
    proxy = parse_proxy("http://proxy:3128", SECRET)
    address, _ = parse_address("https://api.example", proxy=proxy)
    assert proxy.authorization == BASIC
    assert BASIC[6:] not in repr(address)


# --- mutual TLS ---------------------------------------------------------------------------------------------


def make_server_tls(client_ca: trustme.CA | None = None) -> tuple[trustme.CA, ssl.SSLContext]:
    ca = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost", "127.0.0.1").configure_cert(tls)
    if client_ca is not None:
        client_ca.configure_trust(tls)
        tls.verify_mode = ssl.CERT_REQUIRED
    return ca, tls


@both_loops
@pytest.mark.parametrize("shape", ["two files", "one file"])
def test_a_certificate_is_shown_where_the_server_asks(shape: str, loop_name: str, tmp_path: Path) -> None:
    clients = trustme.CA()
    ca, tls = make_server_tls(clients)
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ours = clients.issue_cert("gateway.example")
    if shape == "one file":
        ours.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    else:
        ours.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
        ours.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    files = {"tls_ca": str(tmp_path / "ca.pem"), "tls_cert": str(tmp_path / "cert.pem")}
    if shape == "two files":
        files["tls_key"] = str(tmp_path / "key.pem")

    async def scenario() -> None:
        with ThreadedUpstream(echo, UpstreamSettings(tls=tls)) as upstream:
            url = f"https://127.0.0.1:{upstream.port}"
            with origin_at(url, **files) as origin:
                assert (await ask(origin, await origin.acquire(5)))[0] == 200
            with origin_at(url, tls_ca=files["tls_ca"]) as origin:
                with pytest.raises(ForebayError):
                    await ask(origin, await origin.acquire(5))

    run(scenario, loop_name)


def test_a_new_certificate_is_shown_once_its_file_has_changed(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    ca, tls = make_server_tls(new)
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cert = tmp_path / "cert.pem"
    old.issue_cert("gateway.example").private_key_and_cert_chain_pem.write_to_path(str(cert))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        client = Client(loop, Turn(loop, time.monotonic_ns))
        with ThreadedUpstream(echo, UpstreamSettings(tls=tls)) as upstream:
            url = f"https://127.0.0.1:{upstream.port}"
            address, _ = parse_address(url, str(tmp_path / "ca.pem"), str(cert))
            origin = client.origin(address, 10)
            with pytest.raises(ForebayError):
                await ask(origin, await origin.acquire(5))
            new.issue_cert("gateway.example").private_key_and_cert_chain_pem.write_to_path(str(cert))
            assert client.origin(address, 10) is origin
            assert (await ask(origin, await origin.acquire(5)))[0] == 200
        client.close()

    run(scenario)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    ours = trustme.CA().issue_cert("gateway.example")
    key = serialization.load_pem_private_key(ours.private_key_pem.bytes(), None)
    (tmp_path / "cert.pem").write_bytes(ours.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )

    async def scenario() -> None:
        with pytest.raises(ssl.SSLError):
            with origin_at(
                "https://a.example", tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")
            ):
                pass

    run(scenario)
