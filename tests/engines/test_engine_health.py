"""Probes tell an engine that works from everything else that may be at an address."""

import asyncio
import socket
import threading

import msgspec
import pytest
from engine_process import Engine

from forebay.engines.health import probe_generation, probe_health
from forebay.engines.model import EngineSpec, LaunchPlan
from forebay.engines.plan import Place, plan_engine
from forebay.net.probe import Health, Healthy, Unhealthy
from forebay.testing.threaded import find_closed_port


def plan_at(port: int) -> LaunchPlan:
    return plan_engine(EngineSpec(name="m", kind="minilm"), Place(port=port))


def probe_answer(answer: bytes | None, timeout_s: float = 5.0) -> Health:
    """Probes a server that gives these bytes, or accepts and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                if answer is None:
                    connection.recv(1)  # until the probe gives up
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        health = asyncio.run(probe_health(plan_at(server.getsockname()[1]), timeout_s=timeout_s))
        thread.join(30)
    return health


@pytest.mark.parametrize("name", ["llama", "embedder"])
def test_a_ready_engine_is_healthy_and_its_model_answers(name: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = request.getfixturevalue(name)
    assert isinstance(asyncio.run(probe_health(engine.plan)), Healthy)
    health = asyncio.run(probe_generation(engine.plan))
    assert isinstance(health, Healthy)
    assert health.elapsed_s > 0


def test_a_model_that_refuses_is_unhealthy(embedder: Engine) -> None:
    other = msgspec.structs.replace(embedder.plan, probe_body=b'{"model":"gpt-7","input":"x"}')
    health = asyncio.run(probe_generation(other))
    assert isinstance(health, Unhealthy)
    assert "answered 404" in health.reason
    assert "gpt-7" in health.reason


def test_a_closed_port_is_unhealthy() -> None:
    health = asyncio.run(probe_health(plan_at(find_closed_port(keep=True))))
    assert isinstance(health, Unhealthy)
    assert "can't be reached" in health.reason


def test_silence_is_unhealthy_after_the_timeout() -> None:
    health = probe_answer(None, timeout_s=0.3)
    assert isinstance(health, Unhealthy)
    assert "did not answer within 0.3 s" in health.reason
    assert 0.25 < health.elapsed_s < 15


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 7\r\n\r\nLoading", "answered 503: Loading"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "answered 204"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1\r\n\r\n", "does not speak HTTP"),
        (b"\xff\xfe\r\n\r\n", "does not speak HTTP"),
        (b"", "broke off"),
        (b"x" * (2 << 20), "does not speak HTTP"),
    ],
)
def test_anything_but_200_is_unhealthy_in_words(answer: bytes, reason: str) -> None:
    health = probe_answer(answer)
    assert isinstance(health, Unhealthy)
    assert reason in health.reason


def test_200_is_healthy() -> None:
    assert isinstance(probe_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), Healthy)
