"""What holds for all tests."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from ssl import SSLContext
from typing import Any

import httpx
import httpx._transports.default as httpx_transports
import pytest
from hypothesis import HealthCheck, settings

import redis_server as redis_servers
from postgres_server import NoPostgres, PostgresServer, start, use
from redis_server import RedisServer

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: the tests of
# Ctrl-C would depend on how the suite was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_read_authorities = httpx_transports.create_ssl_context
_authorities: dict[tuple[object, ...], SSLContext] = {}


def _share_authorities(verify: Any = True, cert: Any = None, trust_env: bool = True) -> SSLContext:
    """Has httpx read the authorities that it trusts once, and not for each client.

    That is 25 ms of computing, and tests that ask until something is so would do little else.
    """
    if verify is not True or cert is not None:
        return _read_authorities(verify=verify, cert=cert, trust_env=trust_env)
    key = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    if key not in _authorities:
        _authorities[key] = _read_authorities(trust_env=trust_env)
    return _authorities[key]


httpx_transports.create_ssl_context = _share_authorities

# Upstreams, boards and authorities of tests are threads beside the callers, which must not keep them waiting;
# and calls whose time is not said are as patient as the rest.
sys.setswitchinterval(0.0005)
for _name in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _name, 60.0)

# The same examples in each run, so that a change is what makes a run fail; FOREBAY_TEST_EXPLORE=1 looks for
# new ones.  How long it takes to make up examples says something of the machine and nothing of Forebay.
settings.register_profile(
    "forebay",
    deadline=None,
    derandomize="FOREBAY_TEST_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.load_profile("forebay")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has each test of a contract run over the database that its name says.

    pytest forgets a fixture that `pytest_generate_tests` adds to a test once it has made the test's variants.
    """
    for item in items:
        params = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        if "store" in params and "store" not in item.fixturenames:
            item.fixturenames.insert(0, "store")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for all tests of a run; they are skipped where it can't be started."""
    try:
        with start() as server:
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kind of database in which the tests of a contract make theirs, `sqlite` or `postgresql`."""
    is_postgres = request.param == "postgresql"
    with use(request.getfixturevalue("postgres_server") if is_postgres else None):
        yield


@pytest.fixture(scope="session", params=["valkey", "redis"])
def redis_program(request: pytest.FixtureRequest) -> Path:
    """Each of the servers that speak Redis's language; skipped where it is not installed."""
    program = redis_servers.find_programs().get(request.param)
    if program is None:
        pytest.skip(f"there is no {request.param}-server; on Debian: apt-get install {request.param}-server")
    return program


@pytest.fixture(scope="session")
def redis_server(redis_program: Path) -> Iterator[RedisServer]:
    """One for all tests of a run that do it no harm."""
    with redis_servers.run(redis_program) as server:
        yield server
