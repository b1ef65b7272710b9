"""Workers under limits for the benchmarks of admission: started, killed, replaced, asked by many callers."""

import http.client
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import peers
from forebay.app.supervisor_socket import open_listener
from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.core.routes import Snapshot, encode_snapshot
from forebay.ledger.segment import list_segments, read_frames
from measure import BenchError
from workload import MODEL, build_request


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers on one socket."""

    port: int
    folder: Path
    processes: list[subprocess.Popen[bytes]]

    def read_records(self) -> int:
        return sum(1 for path in list_segments(self.folder / "ledger") for _ in read_frames(path))


@contextmanager
def run_fleet(
    folder: Path, snapshot: Snapshot, count: int, core: int | None, host: str = "127.0.0.1"
) -> Iterator[tuple[Fleet, socket.socket]]:
    run = folder / "run"
    run.mkdir(parents=True, exist_ok=True)
    (run / "snapshot.msgpack").write_bytes(encode_snapshot(snapshot))
    with ExitStack() as stack:
        listener = stack.enter_context(open_listener(host, 0, section="gateway"))
        fleet = Fleet(listener.getsockname()[1], folder, [])
        for index in range(count):
            fleet.processes.append(start_worker(run, index, listener, core))
        try:
            wait_ready(fleet)
            yield fleet, listener
        finally:
            for process in fleet.processes:
                process.kill()
                process.wait()


def start_worker(run: Path, index: int, listener: socket.socket, core: int | None) -> subprocess.Popen[bytes]:
    fd = listener.fileno()
    command = [sys.executable, "-m", "forebay.app.worker", "--run-dir", str(run)]
    command += ["--index", str(index), "--listen-fd", str(fd)]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    log = (run / f"log-{index}").open("ab")
    return subprocess.Popen(command, pass_fds=(fd,), stdout=log, stderr=log, cwd=peers.ROOT)


def wait_ready(fleet: Fleet) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if peers.answers(fleet.port, "/readyz"):
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    raise BenchError("the workers did not come up")


def limit_keys(snapshot: Snapshot, limits: Sequence[Limit], workers: int) -> Snapshot:
    ids = tuple(limit.id for limit in limits)
    keys = tuple(msgspec.structs.replace(key, limits=ids) for key in snapshot.keys)
    return msgspec.structs.replace(snapshot, keys=keys, quotas=tuple(limits), quota_workers=workers)


def count_admitted(places: Sequence[tuple[str, int]], asked: int, callers: int) -> int:
    """Asks so many times over some callers at once, at each place in turn; how many answers were 200."""
    body = build_request(MODEL, stream=False)
    admitted = [0] * callers
    left = itertools.count()

    def call(number: int) -> None:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {peers.KEY}"}
        connection = http.client.HTTPConnection(*places[number % len(places)], timeout=10)
        while next(left) < asked:
            try:
                connection.request("POST", peers.CHAT, body, headers)
                answer = connection.getresponse()
                answer.read()
                admitted[number] += answer.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
        connection.close()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(admitted)


def make_limit(amount: int) -> Limit:
    """So many requests in one long period: none come back while it is measured."""
    return Limit(
        id="x",
        owner="key bench",
        measure=Measure.REQUESTS,
        amount=amount,
        period=Period.MONTH,
        kind=Kind.CALENDAR,
    )


def kill_workers(fleet: Fleet, listener: socket.socket, ended: threading.Event) -> None:
    """Kills one worker after the other, and starts another in its place."""
    for index in itertools.count():
        if ended.wait(0.3):
            return
        at = index % len(fleet.processes)
        fleet.processes[at].send_signal(signal.SIGKILL)
        fleet.processes[at].wait()
        fleet.processes[at] = start_worker(fleet.folder / "run", at, listener, None)
        wait_ready(fleet)  # a lone worker that is killed before it serves measures nothing
