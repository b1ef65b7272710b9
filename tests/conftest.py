"""What holds for all tests."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from postgres_server import NoPostgres, PostgresServer, start, use

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: the tests of
# Ctrl-C would depend on how the suite was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in each run, so that a change is what makes a run fail; FOREBAY_TEST_EXPLORE=1 looks for
# new ones.  How long it takes to make up examples says something of the machine and nothing of Forebay.
settings.register_profile(
    "forebay",
    deadline=None,
    derandomize="FOREBAY_TEST_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.load_profile("forebay")


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
