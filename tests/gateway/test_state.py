"""What a worker makes of a snapshot, without a worker."""

import asyncio
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from routing_fleets import make_pool
from routing_fleets import make_route as make_fleet_route

from forebay.core.keys import KeyEntry
from forebay.core.routes import RouteTable, Snapshot
from forebay.gateway.compiling import ReadSecret, build_state, list_problems
from forebay.gateway.loads import Loads
from forebay.gateway.metrics import Cells
from forebay.gateway.metrics_layout import compute_layout
from forebay.gateway.model import State
from forebay.net.client import Client
from forebay.net.turn import Turn
from forebay.providers import openai
from forebay.providers.translators import find_way
from forebay.testing.gateway import make_route


@pytest.fixture
def client() -> Iterator[Client]:
    loop = asyncio.new_event_loop()
    client = Client(loop, Turn(loop, time.monotonic_ns))
    yield client
    client.close()
    loop.close()


def build(
    snapshot: Snapshot,
    client: Client,
    folder: Path,
    loads: Loads | None = None,
    read_secret: ReadSecret = str,
) -> State:
    cells = Cells(folder, f"w{time.monotonic_ns()}", compute_layout(snapshot.table))
    return build_state(
        snapshot,
        client=client,
        cells=cells,
        read_secret=read_secret,
        dialect=openai,
        find_way=find_way,
        loads=loads,
    )


def make_entry(number: int, models: tuple[str, ...]) -> KeyEntry:
    digest = hashlib.sha256(str(number).encode()).digest()
    return KeyEntry(id=f"k{number}", digest=digest, name="n", prefix="fb-", models=models)


def test_ten_thousand_keys_keep_no_request_waiting(client: Client, tmp_path: Path) -> None:
    routes = tuple(make_route(f"model-{number}", "http://127.0.0.1:1/v1") for number in range(100))
    keys = tuple(make_entry(number, (f"model-{number}*", "gpt-*", "x")) for number in range(10_000))
    snapshot = Snapshot(table=RouteTable(routes=routes), keys=keys)
    took = []
    for _ in range(3):  # the round that was disturbed least
        begun = time.process_time()
        state = build(snapshot, client, tmp_path)
        took.append(time.process_time() - begun)
    assert min(took) < 0.3, took
    key = state.find_key(keys[7].digest)
    assert key is not None
    assert key.entry is keys[7]
    assert set(key.routes) == {"model-7", *(f"model-7{digit}" for digit in range(10))}


def test_keys_with_the_same_patterns_share_what_they_may_call(client: Client, tmp_path: Path) -> None:
    routes = (make_route("a", "http://127.0.0.1:1/v1"), make_route("b", "http://127.0.0.1:1/v1"))
    keys = tuple(make_entry(number, (("*",), ("a",), ())[number % 3]) for number in range(6))
    state = build(Snapshot(table=RouteTable(routes=routes), keys=keys), client, tmp_path)
    found = [state.find_key(entry.digest) for entry in keys]
    assert [key and set(key.routes) for key in found] == [{"a", "b"}, {"a"}, set()] * 2
    for one, other in zip(found[:3], found[3:], strict=True):
        assert one is not None
        assert other is not None
        assert one.routes is other.routes
    assert state.find_key(b"unknown") is None


def test_targets_at_one_address_have_limits_and_pools_of_their_own(client: Client, tmp_path: Path) -> None:
    url = "http://127.0.0.1:1/v1"
    routes = [make_route("a", url, connections_max=1), make_route("b", url, connections_max=50)]
    state = build(Snapshot(table=RouteTable(routes=tuple(routes)), keys=()), client, tmp_path)
    first, second = (state.routes[name].targets[0].origin for name in ("a", "b"))
    assert first is not second
    assert (first.connections_max, second.connections_max) == (1, 50)
    routes = [make_route("a", url, connections_max=7), routes[1]]
    state = build(Snapshot(table=RouteTable(routes=tuple(routes)), keys=()), client, tmp_path)
    assert [state.routes[name].targets[0].origin for name in ("a", "b")] == [first, second], "pools survive"
    assert (first.connections_max, second.connections_max) == (7, 50)


def test_a_dialect_of_a_newer_version_is_told_as_such(client: Client, tmp_path: Path) -> None:
    routes = (
        make_route("m", "http://127.0.0.1:1/v1", dialect="klingon"),
        make_route("n", "http://127.0.0.1:1/v1"),
    )
    state = build(Snapshot(table=RouteTable(routes=routes), keys=()), client, tmp_path)
    assert list_problems(state) == ["the target m-0 speaks `klingon`, which this Forebay does not know"]


def test_a_snapshot_that_fails_leaves_the_counts_of_the_one_in_force_alone(
    client: Client, tmp_path: Path
) -> None:
    def make_snapshot(requests_max: int) -> Snapshot:
        pools = make_pool("p", 2, requests_max=requests_max, api_key="env:broken"), make_pool("q", 1)
        return Snapshot(table=RouteTable(routes=(make_fleet_route(*pools),)), keys=())

    def fail(name: str) -> str:
        raise RuntimeError(name)

    loads = Loads()
    served = build(make_snapshot(8), client, tmp_path, loads)
    group = served.routes["m"].groups[0]
    replica = group.members[0].load
    replica.begin(100, 1.0)
    with pytest.raises(RuntimeError, match="broken"):
        build(make_snapshot(9), client, tmp_path, loads, fail)
    replica.end(100, 2.0)
    assert (replica.requests, group.load.requests, group.load.used) == (0, 0, 0)
    replica.begin(100, 3.0)
    assert group.load.requests == 1
