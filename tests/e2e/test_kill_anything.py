"""`kill -9` of any process, fifty times, under load: no written record is lost, none is counted twice, and no
request fails but those that were in flight in what was killed."""

import json
import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
from whole import Whole, launch, wait_until

from forebay.testing.openai import usage, well_behaved
from forebay.testing.threaded import ThreadedUpstream, find_closed_port

KILLS = 50
WORKERS = 2
CHATS, EMBEDDINGS = 6, 1
ANSWERED_MIN = 500
TOKENS_IN, TOKENS_OUT = 7, 3
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]%s}'
EMBEDDING = b'{"model":"e","input":"hello"}'


class Caller(threading.Thread):
    """Sends one request after the other on one connection, and remembers how each ended."""

    def __init__(self, port: int, key: str, path: str, body: bytes, pause_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.answered: list[str] = []  #: ids of requests that were answered to the last byte
        self.broken = 0  #: requests whose connection broke
        self.refused: list[tuple[float, float]] = []  #: when nobody listened: tried, and known
        self.told: list[str] = []  #: any answer but 200
        self.tokens: set[int] = set()  #: of the prompt, as whole JSON answers say
        self.stopping = threading.Event()
        self._port = port
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._path, self._body, self._pause_s = path, body, pause_s

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self.stopping.is_set():
            begun = time.monotonic()
            try:
                connection.request("POST", self._path, self._body, self._headers)
                answer = connection.getresponse()
                content = answer.read()
            except ConnectionRefusedError:
                self.refused.append((begun, time.monotonic()))
                connection.close()
                time.sleep(0.02)
                continue
            except (OSError, HTTPException):
                self.broken += 1
                connection.close()
                continue
            if answer.status != 200:
                self.told.append(f"{answer.status} {content[:200]!r}")
            elif content.startswith(b"{"):
                self.tokens.add(json.loads(content)["usage"]["prompt_tokens"])
                self.answered.append(answer.headers["x-request-id"])
            elif b"[DONE]" in content:
                self.answered.append(answer.headers["x-request-id"])
            else:
                self.told.append(f"half an answer: {content[-200:]!r}")
            time.sleep(self._pause_s)


def start_callers(whole: Whole) -> tuple[list[Caller], list[Caller]]:
    port = int(whole.url.rpartition(":")[2].removesuffix("/v1"))
    bodies = [CHAT % (b',"stream":true' if number % 2 else b"") for number in range(CHATS)]
    chats = [Caller(port, whole.key, "/v1/chat/completions", body) for body in bodies]
    embeddings = [Caller(port, whole.key, "/v1/embeddings", EMBEDDING, 0.02) for _ in range(EMBEDDINGS)]
    for caller in (*chats, *embeddings):
        caller.start()
    return chats, embeddings


@dataclass
class Killer:
    """Kills one process after the other, and brings everything up again where it was the supervisor."""

    whole: Whole
    draw: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    children: Counter[str] = field(default_factory=Counter)  #: killed so often, by name
    outages: list[tuple[float, float]] = field(default_factory=list)  #: in which nobody listens for a while

    def kill_until(self, number: int) -> None:
        """Only what lives counts: a process that has just been killed is none."""
        while self.kills.total() < number:
            time.sleep(self.draw.uniform(0.05, 0.5))
            if self.kills.total() % 10 == 9:
                self._kill_supervisor()
            else:
                self._kill_child()

    def _kill_child(self) -> None:
        living = [child for child in self.whole.state.children if child.pid and is_running(child.pid)]
        if living:
            self.draw.shuffle(living)
            victim = min(living, key=lambda child: self.children[child.name])  # so that each has its turn
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            self.children[victim.name] += 1
            self.kills[victim.name.partition("-")[0]] += 1

    def _kill_supervisor(self) -> None:
        started = time.monotonic()
        os.kill(self.whole.process.pid, signal.SIGKILL)
        self.kills["supervisor"] += 1
        self.whole.process.wait(60)
        self.whole = launch(self.whole.folder)
        self.whole.wait_ready()
        self.outages.append((started, time.monotonic()))


def is_running(pid: int) -> bool:
    """A zombie, which nobody has reaped yet, does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.e2e
def test_no_record_is_lost_or_counted_twice_and_only_what_was_in_flight_fails(tmp_path: Path) -> None:
    with ThreadedUpstream(
        well_behaved("Hello", tokens=usage(prompt=TOKENS_IN, completion=TOKENS_OUT))
    ) as upstream:
        (tmp_path / "forebay.yaml").write_text(
            f"gateway: {{port: {find_closed_port()}, workers: {WORKERS}, drain: {{deadline_s: 5}}}}\n"
            f"control: {{port: {find_closed_port()}}}\n"
            "ledger: {segment_max_bytes: 65536, ingest_interval_s: 0.1}\n"
            "engines: {e: {kind: minilm}}\n"
            "models:\n"
            f"  m: {{endpoints: [chat/completions], targets: [{{url: '{upstream.url}'}}]}}\n"
            "  e: {endpoints: [embeddings], targets: [{engine: e}]}\n"
        )
        killer = Killer(launch(tmp_path), random.Random(20))
        chats: list[Caller] = []
        embeddings: list[Caller] = []
        try:
            killer.whole.wait_ready()
            chats, embeddings = start_callers(killer.whole)
            killer.kill_until(KILLS)
            for callers, more, least in ((chats, 100, ANSWERED_MIN), (embeddings, 5, 0)):
                wanted = max(least, count_answers(callers) + more)
                wait_until(lambda c=callers, n=wanted: count_answers(c) > n, 120, "life goes on")
            for caller in (*chats, *embeddings):
                caller.stopping.set()
            for caller in (*chats, *embeddings):
                caller.join(90)
            killer.whole.stop()
        finally:
            for caller in (*chats, *embeddings):
                caller.stopping.set()
            if killer.whole.process.poll() is None:
                killer.whole.process.kill()
                killer.whole.process.wait()
        received = len(upstream.requests)
    assert killer.kills.total() == KILLS
    assert set(killer.kills) >= {"supervisor", "control", "worker", "engine"}  # and that of batches
    check_callers(chats, embeddings, killer)
    check_books(tmp_path / ".forebay" / "forebay.db", chats, embeddings, received)


def count_answers(callers: list[Caller]) -> int:
    return sum(len(caller.answered) for caller in callers)


def check_callers(chats: list[Caller], embeddings: list[Caller], killer: Killer) -> None:
    # A worker takes what it has in flight along: one request of each caller at most.  With the supervisor all
    # workers end, one after the other, and last the socket with whoever waits in its queue.
    breaks_max = killer.kills["worker"] + (WORKERS + 1) * killer.kills["supervisor"]
    for caller in (*chats, *embeddings):
        assert caller.broken <= breaks_max
        for tried, known in caller.refused:
            assert any(start <= known and tried <= end for start, end in killer.outages), (
                "the port was closed"
            )
    assert [told for caller in chats for told in caller.told] == [], "its target was never killed"
    for told in (told for caller in embeddings for told in caller.told):
        assert told.startswith(("502 ", "503 ")), "its engine was killed, and that is what it hears"


def check_books(path: Path, chats: list[Caller], embeddings: list[Caller], received: int) -> None:
    answered = [request for caller in (*chats, *embeddings) for request in caller.answered]
    assert len(answered) == len(set(answered)) > ANSWERED_MIN
    database = sqlite3.connect(path)
    recorded = [row[0] for row in database.execute("SELECT request_id FROM ledger_events")]
    assert len(recorded) == len(set(recorded)), "a record was counted twice"
    assert set(answered) - set(recorded) == set(), "a record was lost"
    [(of_target, of_none)] = database.execute(
        "SELECT sum(target != ''), sum(target = '') FROM ledger_events WHERE model = 'm'"
    )
    assert of_target <= received, "nothing is recorded that was never asked for"
    assert of_none == 0, "and all of it was sent on"
    [tokens] = set[int]().union(*(caller.tokens for caller in embeddings))
    for model, tokens_in, tokens_out in (("m", TOKENS_IN, TOKENS_OUT), ("e", tokens, None)):
        query = (
            "SELECT count(*), sum(tokens_input), sum(tokens_output) FROM ledger_events"
            " WHERE outcome = 'ok' AND model = ?"
        )
        [(ok, all_in, all_out)] = database.execute(query, (model,))
        assert (all_in, all_out or None) == (tokens_in * ok, tokens_out and tokens_out * ok)
    [(requests, hourly_in)] = database.execute(
        "SELECT sum(requests), sum(tokens_input) FROM ledger_usage_hourly"
    )
    assert requests == len(recorded), "the totals are those of the records"
    [(all_in,)] = database.execute("SELECT sum(tokens_input) FROM ledger_events")
    assert hourly_in == all_in
