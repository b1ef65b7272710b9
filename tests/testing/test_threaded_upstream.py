"""The upstream in a thread, for tests that block; and addresses that fail to connect."""

import random
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import httpx
import pytest

from forebay.testing.answers import echo, json_answer
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Send, Stall, Wait
from forebay.testing.threaded import Blackhole, ThreadedUpstream, find_closed_port
from forebay.testing.upstream import UpstreamSettings


def test_it_serves_a_caller_that_blocks() -> None:
    with ThreadedUpstream(echo) as upstream, httpx.Client() as client:
        assert client.get(upstream.origin + "/a").json()["target"] == "/a"
        upstream.enqueue(json_answer("queued"))
        assert client.get(upstream.url).json() == "queued"
        upstream.wait_requests(2)
        assert [request.path for request in upstream.requests] == ["/a", "/v1"]
        assert upstream.connections_open == len(upstream.connections) == 1
        client.close()
        upstream.wait_until(lambda: upstream.connections_open == 0)


def test_a_gate_opens_from_another_thread() -> None:
    gate = Gate()
    with ThreadedUpstream([Wait(gate), *json_answer("passed")]) as upstream:
        opener = threading.Thread(target=lambda: (upstream.wait_requests(1), gate.open()))
        opener.start()
        assert httpx.get(upstream.url).json() == "passed"
        opener.join()


def test_leaving_it_ends_its_thread_and_closes_its_port_whatever_is_open() -> None:
    before = threading.active_count()
    with ThreadedUpstream([Send(b"HTTP/1.1 200 OK\r\n"), Stall()]) as upstream:
        sock = socket.create_connection(("127.0.0.1", upstream.port), timeout=30)
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(5) == b"HTTP/"
    assert threading.active_count() == before
    sock.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", upstream.port), timeout=30)


def test_a_port_in_use_is_an_error_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"), ThreadedUpstream(settings=UpstreamSettings(port=port)):
            pass
    assert threading.active_count() == before


def test_an_error_in_a_handler_fails_the_test_that_blocks() -> None:
    def broken(_: RecordedRequest) -> Script:
        raise ZeroDivisionError("in the handler")

    with pytest.raises(ZeroDivisionError), ThreadedUpstream(broken) as upstream:
        with pytest.raises(httpx.TransportError):
            httpx.get(upstream.url)


def test_new_connections_are_refused_once_it_stopped_listening() -> None:
    with ThreadedUpstream(echo) as upstream:
        upstream.stop_listening()
        with pytest.raises(httpx.ConnectError):
            httpx.get(upstream.url)


def test_a_blackhole_never_lets_a_connect_end() -> None:
    with Blackhole() as hole:
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", hole.port), timeout=0.2)


def test_a_closed_port_refuses() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", find_closed_port()), timeout=30)


def test_a_closed_port_is_given_to_nobody_else() -> None:
    code = "import random; from forebay.testing.threaded import find_closed_port as find; random.seed(5)"
    command = [sys.executable, "-c", code + "; print(find(), flush=True); input()"]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=-1, stdout=-1, text=True)) for _ in range(2)
        ]
        ports = [process.stdout.readline() for process in started if process.stdout]
        assert len(set(ports)) == 2, "both draw the same numbers"
        for process in started:
            process.communicate("\n", timeout=60)
    state = random.getstate()
    try:
        found = []
        for _ in range(3):
            random.seed(5)
            found.append(find_closed_port())
        assert len(set(found)) == 3
    finally:
        random.setstate(state)
