"""Whether the ledger is the upstream's own book, to the token, whatever is killed meanwhile.

A whole Forebay, an upstream that writes down what it answered under which request id, and callers that write
down whose end they have seen.  Workers and the control plane are killed at random moments.  A request that
was in flight in a killed worker has no record, and its caller has not seen its end: those are told apart, by
their ids, from records that are lost, doubled, invented or of other tokens, which are the difference.
"""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import measure
from forebay.app.supervisor_state import RunState, load_run_state
from measure import BenchError, Figure

CALLERS = 16
START_S = 120.0
KILLS_MAX = 24
REQUESTS_A_KILL_MIN = 400
ANSWER_MAX_S = 20.0
_SSE = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'


@dataclass(slots=True)
class Books:
    """What upstream and callers wrote down; tokens are of the prompt and of the answer."""

    answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    broken: int = 0  #: requests whose caller lost its connection
    told: Counter[int] = field(default_factory=Counter)  #: answers by status

    @property
    def ended(self) -> int:
        return self.told.total() + self.broken


# --- the upstream -------------------------------------------------------------------------------------------


def build_answer(number: int, *, stream: bool) -> tuple[bytes, tuple[int, int]]:
    """An answer whose tokens are those of no other near it."""
    tokens = 1 + number % 977, 1 + number % 1009
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = zip(names, (*tokens, sum(tokens)), strict=True)
    said = '"usage":{' + ",".join(f'"{name}":{count}' for name, count in counts) + "}"
    if not stream:
        message = (
            '"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]'
        )
        body = f'{{"id":"c","object":"chat.completion","created":1,"model":"m",{message},{said}}}'
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return (head + body).encode(), tokens
    delta = '"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}'
    end = '"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    payloads = [_CHUNK + delta, _CHUNK + end, f'{_CHUNK}"choices":[],{said}}}', "[DONE]"]
    events = "".join(f"data: {payload}\n\n" for payload in payloads)
    return f"{_SSE}{len(events):x}\r\n{events}\r\n0\r\n\r\n".encode(), tokens


async def serve_upstream(books: Books) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                body = await reader.readexactly(int(_find(head, b"content-length: ")))
                answer, tokens = build_answer(len(books.answered), stream=b'"stream":true' in body)
                books.answered[_find(head, b"x-request-id: ").decode()] = tokens
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def _find(head: bytes, name: bytes) -> bytes:
    return head.partition(name)[2].partition(b"\r\n")[0]


# --- the callers --------------------------------------------------------------------------------------------


async def call(books: Books, port: int, key: str, requests: int, *, stream: bool) -> None:
    """One request after the other, on one connection while it stands, until so many have ended in all."""
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]%s}' % (
        b',"stream":true' if stream else b""
    )
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body
    writer: asyncio.StreamWriter | None = None
    while books.ended < requests:
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            async with asyncio.timeout(ANSWER_MAX_S):
                await _take_answer(books, reader)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            books.broken += 1
            if writer is not None:
                writer.close()
                writer = None
            await asyncio.sleep(0.01)
    if writer is not None:
        writer.close()


async def _take_answer(books: Books, reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    if b"transfer-encoding: chunked" in head:
        await reader.readuntil(b"0\r\n\r\n")
    else:
        await reader.readexactly(int(_find(head, b"content-length: ")))
    books.told[status] += 1
    if status == 200:
        books.seen.add(_find(head, b"x-request-id: ").decode())


# --- Forebay ------------------------------------------------------------------------------------------------


@contextmanager
def run_whole(folder: Path, upstream_port: int) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "forebay.yaml").write_text(
        "gateway: {port: 0, workers: 2}\ncontrol: {port: 0}\n"
        "ledger: {segment_max_bytes: 262144, ingest_interval_s: 0.1}\n"
        "models: {m: {endpoints: [chat/completions],"
        f" targets: [{{url: 'http://127.0.0.1:{upstream_port}/v1'}}]}}}}\n"
        "limits: {rules: [{team: default, total_tokens: 1000000000000, per: month, window: calendar}]}\n"
    )
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*_FOREBAY, "up"], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_FOREBAY = (sys.executable, "-m", "forebay")


def read_state(folder: Path) -> RunState | None:
    return load_run_state(folder / ".forebay" / "run" / "state.json")


async def wait_ready(folder: Path) -> RunState:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        state = read_state(folder)
        if state is not None and state.ready:
            return state
        await asyncio.sleep(0.05)
    raise BenchError(f"Forebay did not come up: {(folder / 'log').read_text()[-500:]}")


async def kill_at_random(folder: Path, books: Books, every: int, luck: random.Random) -> None:
    """Workers and the control plane, one after so many requests on average, until it is cancelled.

    Not by the clock: who dies too often is started again only after a while, and nothing would be answered.
    """
    at = books.ended
    while True:
        at += int(every * luck.uniform(0.5, 1.5))
        while books.ended < at:
            await asyncio.sleep(0.005)
        state = read_state(folder)
        living = [child for child in state.children if child.pid] if state is not None else []
        if living:
            pid = luck.choice(living).pid
            assert pid is not None
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# --- the difference -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Requests of which ledger and upstream say different things, and what the tokens differ by in sum."""

    lost: int  #: whose end a caller has seen, and that have no record
    doubled: int
    invented: int  #: recorded as answered, though the upstream never answered them
    unequal: int  #: with other tokens than the upstream's
    tokens: int  #: ledger less upstream, over all that have a record or whose end was seen
    totals: int  #: requests in the hourly totals less records
    in_flight: int  #: answered by the upstream, no record, and no caller that has seen the end
    unexplained: int  #: of these, more than there were broken connections

    @property
    def requests(self) -> int:
        wrong = self.lost + self.doubled + self.invented + self.unequal + self.unexplained
        return wrong + abs(self.totals)


def compare(books: Books, rows: list[tuple[str, int, int]], hourly: int) -> Difference:
    """Rows: request id and tokens of each record that says it was answered well."""
    counted = Counter(request_id for request_id, _, _ in rows)
    known = {request_id: tokens for request_id, *tokens in rows}
    settled = (books.seen | set(known)) & set(books.answered)
    in_flight = len(set(books.answered) - set(known) - books.seen)
    return Difference(
        lost=len(books.seen - set(known)),
        doubled=len(rows) - len(counted),
        invented=len(set(known) - set(books.answered)),
        unequal=sum(tuple(known[each]) != books.answered[each] for each in set(known) & set(books.answered)),
        tokens=sum(a + b for _, a, b in rows) - sum(sum(books.answered[each]) for each in settled),
        totals=hourly - len(rows),
        in_flight=in_flight,
        unexplained=max(0, in_flight - books.broken),
    )


def read_ledger(folder: Path) -> tuple[list[tuple[str, int, int]], int]:
    """The records of good answers, and how many the hourly totals know, once all segments were taken in."""
    taken = subprocess.run([*_FOREBAY, "usage", "--since", "all"], cwd=folder, capture_output=True, text=True)
    if taken.returncode != 0:
        raise BenchError(f"forebay usage failed: {taken.stderr[-500:]}")
    with sqlite3.connect(folder / ".forebay" / "forebay.db") as database:
        rows = database.execute(
            "SELECT request_id, tokens_input, tokens_output FROM ledger_events WHERE outcome = 'ok'"
        ).fetchall()
        [(others,)] = database.execute("SELECT count(*) FROM ledger_events WHERE outcome != 'ok'")
        [(hourly,)] = database.execute("SELECT sum(requests) FROM ledger_usage_hourly")
    return rows, (hourly or 0) - others


async def take_load(folder: Path, requests: int, seed: int) -> tuple[Books, int]:
    books = Books()
    server = await serve_upstream(books)
    kills = 0
    with run_whole(folder, server.sockets[0].getsockname()[1]) as process:
        state = await wait_ready(folder)
        port = int(state.gateway_url.rpartition(":")[2])
        key = (folder / ".forebay" / "local.key").read_text().strip()
        every = max(REQUESTS_A_KILL_MIN, requests // KILLS_MAX)
        killer = asyncio.create_task(kill_at_random(folder, books, every, random.Random(seed)))
        async with asyncio.TaskGroup() as callers:
            for number in range(CALLERS):
                callers.create_task(call(books, port, key, requests, stream=bool(number % 2)))
        killer.cancel()
        ended = read_state(folder)
        kills = sum(child.restarts for child in ended.children) if ended is not None else 0
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
    server.close()
    return books, kills


def measure_ledger_difference(requests: int, seed: int = 1) -> list[Figure]:
    """Raises BenchError where so few were answered that nothing is shown."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        folder = Path(name)
        books, kills = asyncio.run(take_load(folder, requests, seed))
        found = compare(books, *read_ledger(folder))
    measure.console.print(
        f"ledger: {len(books.seen)} of {books.ended} answered, {kills} restarts, {found}", style="dim"
    )
    if len(books.seen) < requests // 2:
        raise BenchError(f"only {len(books.seen)} of {requests} requests were answered: {dict(books.told)}")
    return [
        Figure(name="ledger_difference", value=found.requests, unit="requests", target=0.0),
        Figure(name="ledger_difference_tokens", value=abs(found.tokens), unit="tokens", target=0.0),
        Figure(name="ledger_in_flight", value=found.in_flight, unit="requests"),
        Figure(name="ledger_kills", value=kills, unit="restarts"),
    ]


def main() -> int:
    try:
        measure.publish("ledger_difference", measure_ledger_difference(int([*sys.argv, "3000"][1])))
    except BenchError as error:
        return measure.fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
