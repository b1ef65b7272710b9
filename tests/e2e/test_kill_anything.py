"""`kill -9` of any process, fifty times, under load: no written record is lost, none is counted twice."""

import os
import random
import signal
import socket
import sqlite3
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
from whole import Whole, launch, wait_until

from forebay.testing.openai import usage, well_behaved
from forebay.testing.threaded import ThreadedUpstream

KILLS = 50
CALLERS = 6
TOKENS_IN, TOKENS_OUT = 7, 3
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]%s}'


class Caller(threading.Thread):
    """Sends one request after the other, and remembers which were answered to the last byte."""

    def __init__(self, port: int, key: str, number: int) -> None:
        super().__init__(daemon=True)
        self.answered: list[str] = []
        self.broken = 0
        self.wrong: list[str] = []
        self.stopping = threading.Event()
        self._port = port
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._body = BODY % (b',"stream":true' if number % 2 else b"")

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=20)
        while not self.stopping.is_set():
            try:
                connection.request("POST", "/v1/chat/completions", self._body, self._headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, HTTPException):
                # In flight in a process that was killed, or nobody listens at this moment.
                connection.close()
                self.broken += 1
                time.sleep(0.02)
                continue
            if answer.status == 200 and (b"[DONE]" in content or b'"finish_reason"' in content):
                self.answered.append(answer.headers["x-request-id"])
            elif answer.status != 503:
                self.wrong.append(f"{answer.status} {content[:200]!r}")


def choose_victim(whole: Whole, draw: random.Random, turn: int) -> tuple[str, int]:
    if turn % 10 == 9:
        return "supervisor", whole.process.pid
    living = [(child.name, child.pid) for child in whole.state.children if child.pid is not None]
    return draw.choice(living) if living else ("supervisor", whole.process.pid)


def kill_once(whole: Whole, draw: random.Random, turn: int, seen: set[str]) -> Whole:
    name, pid = choose_victim(whole, draw, turn)
    seen.add(name.partition("-")[0])
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return whole  # it had just been restarted
    if name != "supervisor":
        return whole
    whole.process.wait(10)
    return launch(whole.folder)


@pytest.mark.e2e
def test_no_record_is_lost_or_counted_twice(tmp_path: Path) -> None:
    draw = random.Random(20)
    with ThreadedUpstream(
        well_behaved("Hello", tokens=usage(prompt=TOKENS_IN, completion=TOKENS_OUT))
    ) as upstream:
        (tmp_path / "forebay.yaml").write_text(
            f"gateway: {{port: {find_port()}, workers: 2, drain: {{deadline_s: 5}}}}\n"
            f"control: {{port: {find_port()}}}\n"
            "ledger: {segment_max_bytes: 65536, ingest_interval_s: 0.1}\n"
            f"models: {{m: {{endpoints: [chat/completions], targets: [{{url: '{upstream.url}'}}]}}}}\n"
        )
        whole = launch(tmp_path)
        callers: list[Caller] = []
        seen: set[str] = set()
        try:
            whole.wait_ready()
            port = int(whole.url.rpartition(":")[2].removesuffix("/v1"))
            callers = [Caller(port, whole.key, number) for number in range(CALLERS)]
            for caller in callers:
                caller.start()
            for turn in range(KILLS):
                time.sleep(draw.uniform(0.05, 0.5))
                whole = kill_once(whole, draw, turn, seen)
                if turn % 10 == 9:
                    whole.wait_ready()
            whole.wait_ready()
            before = sum(len(caller.answered) for caller in callers)
            wait_until(
                lambda: sum(len(caller.answered) for caller in callers) > before + 100, 30, "life goes on"
            )
            for caller in callers:
                caller.stopping.set()
            for caller in callers:
                caller.join(30)
            whole.stop()
        finally:
            for caller in callers:
                caller.stopping.set()
            if whole.process.poll() is None:
                whole.process.kill()
                whole.process.wait()
        received = len(upstream.requests)
    assert seen == {"supervisor", "control", "worker"}
    assert [wrong for caller in callers for wrong in caller.wrong] == []
    answered = [request for caller in callers for request in caller.answered]
    assert len(answered) == len(set(answered)) > 500
    check_books(whole.data / "forebay.db", answered, received)


def check_books(path: Path, answered: list[str], received: int) -> None:
    database = sqlite3.connect(path)
    recorded = [row[0] for row in database.execute("SELECT request_id FROM ledger_events")]
    assert len(recorded) == len(set(recorded)), "a record was counted twice"
    assert set(answered) - set(recorded) == set(), "a record was lost"
    assert len(recorded) <= received + sum(
        row[0] for row in database.execute("SELECT count(*) FROM ledger_events WHERE target = ''")
    ), "nothing is recorded that was never asked for"
    [(ok, tokens_in, tokens_out)] = database.execute(
        "SELECT count(*), sum(tokens_input), sum(tokens_output) FROM ledger_events WHERE outcome = 'ok'"
    )
    assert (tokens_in, tokens_out) == (TOKENS_IN * ok, TOKENS_OUT * ok)
    [(requests, hourly_in)] = database.execute(
        "SELECT sum(requests), sum(tokens_input) FROM ledger_usage_hourly"
    )
    assert requests == len(recorded), "the totals are those of the records"
    [(all_in,)] = database.execute("SELECT sum(tokens_input) FROM ledger_events")
    assert hourly_in == all_in


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
