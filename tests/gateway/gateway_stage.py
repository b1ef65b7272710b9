"""One worker, two upstreams and a blackhole for all tests here; each test says what the upstreams do."""

import http.client
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from raw_caller import RawCaller

from forebay.core.routes import Endpoint, FillerRules, GatewayLimits, Masking, Route, Timeouts
from forebay.testing.gateway import GatewayProcess, make_key, make_route
from forebay.testing.openai import well_behaved
from forebay.testing.recorded import RecordedConnection, RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import Blackhole, ThreadedUpstream, find_closed_port
from forebay.testing.upstream import Answer

CLOSED_MAX_S = 30.0  #: at once, but on a machine that is busy with something else
UPSTREAM_SECRET = "sk-canary-upstream-0123456789"
NARROW_KEY = "fb-test-key-for-few-models"
CLOSED = find_closed_port(keep=True)
RESTLESS = Masking(keep_alive_s=0.1, filler=FillerRules(after_s=0.1, texts=("Well… ",)))


class Stage:
    """An upstream that outlives a test, and what it is to do during one."""

    def __init__(self) -> None:
        self.answer: Answer = well_behaved("Hel", "lo")
        self.next: deque[Answer] = deque()  #: used up first
        self.upstream = ThreadedUpstream(self._choose)

    def _choose(self, request: RecordedRequest) -> Script:
        answer = self.next.popleft() if self.next else self.answer
        return answer(request) if callable(answer) else answer

    def reset(self) -> None:
        self.answer = well_behaved("Hel", "lo")
        self.next.clear()
        self.upstream.requests.clear()

    @property
    def url(self) -> str:
        return self.upstream.url

    @property
    def requests(self) -> list[RecordedRequest]:
        return self.upstream.requests

    @property
    def request(self) -> RecordedRequest:
        """The only request of the test."""
        assert len(self.requests) == 1, self.requests
        return self.requests[0]

    def connection_of(self, request: RecordedRequest) -> RecordedConnection:
        return self.upstream.connections[request.connection]

    def wait_request(self, count: int = 1) -> RecordedRequest:
        self.upstream.wait_requests(count)
        return self.requests[count - 1]

    def wait_closed(self, request: RecordedRequest, timeout_s: float = CLOSED_MAX_S) -> None:
        """Returns once the gateway has closed the connection of a request; TimeoutError if it does not."""
        record = self.connection_of(request)
        self.upstream.wait_until(lambda: record.closed_by_peer_at_s is not None, timeout_s)

    def wait_let_go(self, gateway: GatewayProcess, request: RecordedRequest, seconds: float = 1.0) -> None:
        """The same, within some seconds by what the worker does (`wait_by_work`)."""
        record = self.connection_of(request)
        wait_by_work(gateway, lambda: record.closed_by_peer_at_s is not None, seconds)


def wait_by_work(gateway: GatewayProcess, is_so: Callable[[], bool], seconds: float = 1.0) -> None:
    """Returns once it is so; TimeoutError if a worker has answered a hundred questions for each second first.

    They are a hundredth of a second apart, so on a quiet machine it is a matter of seconds; where the worker
    stands still, so does this clock.
    """
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    try:
        for _ in range(round(100 * seconds)):
            if is_so():
                return
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            time.sleep(0.01)
    finally:
        connection.close()
    raise TimeoutError(f"it was not so within {seconds} s of the worker's work")


@pytest.fixture(scope="session")
def _stages() -> Iterator[tuple[Stage, Stage]]:
    first, second = Stage(), Stage()
    with first.upstream, second.upstream:
        yield first, second


@pytest.fixture
def upstream(_stages: tuple[Stage, Stage]) -> Iterator[Stage]:
    """The first target of every route."""
    _stages[0].reset()
    yield _stages[0]
    _stages[0].reset()


@pytest.fixture
def fallback(_stages: tuple[Stage, Stage]) -> Iterator[Stage]:
    """The second target of routes that have two."""
    _stages[1].reset()
    yield _stages[1]
    _stages[1].reset()


def make_routes(first: str, second: str, hole: str) -> list[Route]:
    closed = f"http://127.0.0.1:{CLOSED}/v1"
    brief = Timeouts(connect_s=0.3, first_token_s=0.4, idle_s=0.4, total_s=20)
    hasty = Timeouts(connect_s=0.3, first_token_s=0.3, idle_s=0.3, total_s=1.0)
    return [
        make_route("m", first),
        make_route("alias", first, target_model="the-name-there"),
        make_route("two", first, second),
        make_route("brief", first, timeouts=brief),
        make_route("steady", first, timeouts=Timeouts(idle_s=2, total_s=30)),
        make_route("brief-two", first, second, timeouts=brief),
        make_route("hasty", first, timeouts=hasty, target_model="the-name-there"),
        make_route("hasty-two", first, second, timeouts=hasty, api_key="env:TEST_UPSTREAM_SECRET"),
        make_route("hasty-dead-first", closed, first, timeouts=hasty),
        msgspec.structs.replace(make_route("restless-two", first, second, timeouts=hasty), masking=RESTLESS),
        make_route("total", first, second, timeouts=Timeouts(total_s=0.6, first_token_s=5, idle_s=5)),
        make_route("secret", first, api_key="env:TEST_UPSTREAM_SECRET"),
        make_route("secret-two", first, second, api_key="env:TEST_UPSTREAM_SECRET"),
        make_route("no-secret", first, api_key="env:TEST_UPSTREAM_MISSING"),
        make_route("dead", closed),
        make_route("dead-first", closed, first),
        make_route("hole", hole, timeouts=Timeouts(connect_s=8)),
        make_route("hole-total", hole, first, timeouts=Timeouts(connect_s=8, total_s=0.3)),
        make_route("hole-first", hole, first, timeouts=brief),
        make_route("hole-brief", hole, timeouts=brief),
        # Another name of the same machine is another pool.
        make_route("one-connection", first.replace("127.0.0.1", "localhost"), connections_max=1),
        make_route("embed/only", first, endpoints=[Endpoint.EMBEDDINGS]),
        Route(model="waits", endpoints=(Endpoint.CHAT,), targets=()),
    ]


@pytest.fixture(scope="session")
def _gateway(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    first, second = _stages
    with Blackhole() as hole:
        process = GatewayProcess(
            make_routes(first.url, second.url, f"http://127.0.0.1:{hole.port}/v1"),
            folder=folder,
            keys=[make_key(), make_key(NARROW_KEY, id="narrow", models=["m", "embed/*"])],
            limits=GatewayLimits(event_max_bytes=1 << 20, connections_max=512),
            environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET},
        )
        with process:
            yield process


@pytest.fixture
def gateway(_gateway: GatewayProcess) -> Iterator[GatewayProcess]:
    """The shared worker.  It must survive each test, and must have met no error of its own."""
    before = len(_gateway.log)
    yield _gateway
    log = _gateway.log[before:]
    assert _gateway.process.poll() is None, log
    assert "Traceback" not in log, log


@pytest.fixture(scope="session")
def _client(_gateway: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {_gateway.key}"}
    with httpx.Client(base_url=_gateway.url, headers=headers, timeout=60, verify=False) as client:
        yield client


@pytest.fixture
def client(gateway: GatewayProcess, _client: httpx.Client) -> httpx.Client:
    return _client


@pytest.fixture
def caller(gateway: GatewayProcess) -> Iterator[RawCaller]:
    with RawCaller(gateway.port) as caller:
        yield caller


@pytest.fixture
def fresh(client: httpx.Client, upstream: Stage, fallback: Stage) -> Callable[[str], str]:
    """Gives the name of a model with two targets once the first has answered well: what it did in tests
    before, some times in a row or with a refusal, would put it behind the second."""

    def give(model: str) -> str:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            before = len(upstream.requests), len(fallback.requests)
            for stage in (upstream, fallback):
                stage.next.appendleft(well_behaved("Well"))
            answer = client.post("/chat/completions", json={"model": model, "messages": []})
            is_first = len(upstream.requests) > before[0]
            (fallback if is_first else upstream).next.popleft()
            for stage, count in zip((upstream, fallback), before, strict=True):
                del stage.requests[count:]
            if is_first and answer.status_code == 200:
                return model
            time.sleep(0.05)
        raise TimeoutError(f"the first target of {model} is not asked any more")

    return give
