"""Watches a llama.cpp server from inside its process: is it busy, is it stuck, has it sent all it has.

llama.cpp answers `/health` from another thread than the one that runs the model, so a model that hangs (a
JSON schema whose `pattern` explodes is enough) stays "healthy" for ever.  `/metrics` goes through the model's
queue: it tells the load, and its silence tells a hang.

Each question wakes all threads that wait for a result, and those look whether their caller has left only
after a whole second of silence.  So questions are seconds apart, except while draining.
"""

import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

WATCH_INTERVAL_S: Final = 5.0
DRAIN_INTERVAL_S: Final = 0.1
ASK_TIMEOUT_S: Final = 1.0
_LOAD: Final = ("llamacpp:requests_processing ", "llamacpp:requests_deferred ")
_ESTABLISHED: Final = "01"
_CLOSE_WAIT: Final = "08"


def fetch_load(host: str, port: int, timeout_s: float) -> int | None:
    """Requests that the model works on or that wait for a slot; None when no answer came in time."""
    connection = HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics", headers={"connection": "close"})
        lines = connection.getresponse().read().decode(errors="replace").splitlines()
        return sum(int(float(line.split(" ")[1])) for line in lines if line.startswith(_LOAD))
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()


def has_unsent_bytes(port: int) -> bool:
    """Whether a connection to that port still has bytes that its other end did not take."""
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            local, state, queues = fields[1], fields[3], fields[4]
            unsent = int(queues.partition(":")[0], 16)
            if unsent and state in (_ESTABLISHED, _CLOSE_WAIT) and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def drain(host: str, port: int, deadline_s: float, hurry: threading.Event) -> bool:
    """Waits until every answer in flight has left, seen twice; False when the deadline came first."""
    deadline = time.monotonic() + deadline_s
    quiet = 0
    while quiet < 2:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or hurry.is_set():
            return False
        busy = fetch_load(host, port, min(ASK_TIMEOUT_S, left_s)) != 0 or has_unsent_bytes(port)
        quiet = 0 if busy else quiet + 1
        hurry.wait(min(DRAIN_INTERVAL_S, left_s))
    return True


def wait_for_stall(host: str, port: int, stall_s: float, stop: threading.Event) -> bool:
    """Returns True once the model has answered nothing for `stall_s`, and False when `stop` is set."""
    answered = time.monotonic()
    while not stop.wait(min(WATCH_INTERVAL_S, stall_s)):
        if fetch_load(host, port, stall_s) is not None:
            answered = time.monotonic()
        elif time.monotonic() - answered >= stall_s:
            return not stop.is_set()
    return False
