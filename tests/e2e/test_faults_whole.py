"""Known faults that only a whole Forebay can show: what a request costs, and a database that is away."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from whole import Whole, running, wait_until

from forebay.testing.answers import chunk, sse_head
from forebay.testing.openai import chat_stream, completion_stream, usage, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Stall
from forebay.testing.threaded import ThreadedUpstream
from postgres_server import PostgresServer

LATE_S = 60.0
STREAMS = {"chat/completions": chat_stream, "completions": completion_stream}


def answer(request: RecordedRequest) -> Script:
    """Five chunks and no end for a stream that is asked to stall, else all that a good server does."""
    asked = request.json()
    path = request.path.removeprefix("/v1/")
    if asked.get("user") != "stall":
        return well_behaved("Hello", tokens=usage(7, 3))(request)
    events = STREAMS[path]([f"part{number} " for number in range(5)], include_usage=False, done=False)
    end = next(number for number, event in enumerate(events) if b"part4" in event)
    return [*sse_head(), *map(chunk, events[: end + 1]), Stall()]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(answer) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def whole(upstream: ThreadedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with running(tmp_path_factory.mktemp("whole"), make_config(upstream.url)) as whole:
        yield whole


def make_config(url: str) -> str:
    target = f"targets: [{{url: '{url}'}}]"
    return (
        "gateway: {port: 0, workers: 2}\ncontrol: {port: 0}\nledger: {ingest_interval_s: 0.1}\n"
        f"models: {{m: {{endpoints: [chat/completions, completions, embeddings], {target}}}}}\n"
        "prices: {book: [{model: m, usd_per_mtok: {input: 1000, output: 2000}}]}\n"
        "limits: {rules: [{each: key, concurrent_requests: 2},"
        " {team: default, total_tokens: 100000, per: month, window: calendar}]}\n"
    )


def admin(whole: Whole, path: str, token: str = "") -> httpx.Response:
    token = token or (whole.data / "admin.token").read_text().strip()
    url = f"{whole.state.control_url}/admin/v1{path}"
    return httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=60)


def read_left(whole: Whole) -> dict[str, int]:
    return {limit["measure"]: limit["left"] for limit in admin(whole, "/limits").json()["data"]}


def ask(whole: Whole, path: str = "chat/completions", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {whole.key}"}
    body = {"model": "m", "messages": [], "prompt": "Hi", "input": "Hi"} | more
    return httpx.post(f"{whole.url}/{path}", json=body, headers=headers, timeout=60)


@pytest.mark.e2e
@pytest.mark.parametrize("path", STREAMS)
def test_S1_a_caller_that_leaves_after_five_chunks_pays_for_what_it_saw(
    whole: Whole, upstream: ThreadedUpstream, path: str
) -> None:
    wait_until(lambda: read_left(whole)["concurrent_requests"] == 2, LATE_S, "all places are free")
    before = read_left(whole)["total_tokens"]
    body = {"model": "m", "messages": [], "prompt": "Hi", "stream": True, "user": "stall", "max_tokens": 90}
    seen = b""
    with httpx.stream(
        "POST", f"{whole.url}/{path}", json=body, headers={"authorization": f"Bearer {whole.key}"}, timeout=30
    ) as stream:
        assert stream.status_code == 200, stream.read()
        for data in stream.iter_raw():
            seen += data
            if b"part4" in seen:
                break
        request_id = stream.headers["x-request-id"]
    left_at = time.monotonic()
    connection = upstream.connections[upstream.requests[-1].connection]
    upstream.wait_until(lambda: connection.closed_by_peer_at_s is not None, LATE_S)
    assert connection.closed_by_peer_at_s is not None
    assert connection.closed_by_peer_at_s - left_at < 30.0, "a second, on a machine that is not busy"

    rows: list[tuple[Any, ...]] = []

    def is_recorded() -> bool:
        with sqlite3.connect(whole.data / "forebay.db") as database:
            rows[:] = database.execute(
                "SELECT status, outcome, usage_source, tokens_input, tokens_output, cost_nano_usd"
                " FROM ledger_events WHERE request_id = ?",
                (request_id,),
            ).fetchall()
        return bool(rows)

    wait_until(is_recorded, LATE_S, "the record is in the ledger")
    [(status, outcome, source, tokens_in, tokens_out, cost)] = rows
    assert (status, outcome, source, tokens_out) == (499, "abandoned", "estimated", 5)
    assert tokens_in > 0
    assert cost == tokens_in * 1_000_000 + 5 * 2_000_000
    wait_until(lambda: read_left(whole)["concurrent_requests"] == 2, LATE_S, "its place is free again")
    # What was made beyond what was seen nobody knows, so nothing of the reservation comes back.
    wait_until(lambda: read_left(whole)["total_tokens"] == before - tokens_in - 90, LATE_S, "charged")


@contextmanager
def take_database_away(url: str) -> Iterator[None]:
    """A PostgreSQL that takes no connection, or an SQLite file that somebody else keeps locked."""
    if url.startswith("sqlite"):
        database = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        yield
        database.close()
        return
    name = sa.make_url(url).database
    engine = sa.create_engine(sa.make_url(url).set(database="template1"), isolation_level="AUTOCOMMIT")
    with engine.connect() as server:
        server.execute(sa.text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        server.execute(
            sa.text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        )
        yield
        server.execute(sa.text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
    engine.dispose()


@pytest.mark.e2e
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_O7_traffic_goes_on_while_the_database_is_away(
    tmp_path: Path,
    upstream: ThreadedUpstream,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
) -> None:
    url, data = f"sqlite:///{tmp_path / '.forebay' / 'forebay.db'}", ""
    if store == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url, data = server.create("template1"), "data: {database: 'env:TEST_O7_DATABASE'}\n"
        monkeypatch.setenv("TEST_O7_DATABASE", url)
    with running(tmp_path, data + make_config(upstream.url)) as whole:
        early = json.loads(whole.command("keys", "create", "early", "--json").stdout)["key"]
        wait_until(lambda: see_models(whole, early).status_code == 200, LATE_S, "the key is known")
        with take_database_away(url):
            if store == "postgresql":
                # An admin's token is looked up there: nobody can say that it is wrong.
                unknown = admin(whole, "/keys", "fba-" + "x" * 43)
                assert unknown.status_code == 503, unknown.text
                assert unknown.headers["retry-after"]
            answered = ask_all(whole, 30)
            # A caller's key is not: workers know all there are, so one that they don't know is nobody's.
            assert see_models(whole, "fb-nobody").status_code == 401
            assert see_models(whole, early).status_code == 200
            assert httpx.get(whole.url.removesuffix("/v1") + "/readyz", timeout=60).status_code == 200
        wait_until(
            lambda: count_records(url, answered) == 30, 2 * LATE_S, "what was served is in the ledger, once"
        )
        assert ask(whole).status_code == 200


def ask_all(whole: Whole, count: int) -> list[str]:
    """The ids of so many requests of all kinds, each of which must be served."""
    chat = "chat/completions"
    kinds = [(chat, False), (chat, True), ("completions", True), ("embeddings", False)]
    served = [ask(whole, path, stream=stream) for path, stream in (kinds[n % 4] for n in range(count))]
    assert {answer.status_code for answer in served} == {200}
    return [answer.headers["x-request-id"] for answer in served]


def see_models(whole: Whole, key: str) -> httpx.Response:
    return httpx.get(f"{whole.url}/models", headers={"authorization": f"Bearer {key}"}, timeout=60)


def count_records(url: str, request_ids: list[str]) -> int:
    engine = sa.create_engine(url)
    with engine.connect() as database:
        found = [row[0] for row in database.execute(sa.text("SELECT request_id FROM ledger_events"))]
    engine.dispose()
    return sum(found.count(each) for each in request_ids)
