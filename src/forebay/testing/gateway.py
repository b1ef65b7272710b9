"""A real gateway worker for tests: one process on a socket of its own, in front of the targets of a test.

It starts `forebay.app.worker` as the supervisor does, without a control plane: the test writes the snapshot.
It reads what the worker leaves behind (records, metrics, log) and never reaches into the process.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from forebay.core.events import Finished, decode_event
from forebay.core.keys import KeyEntry, compute_key_digest
from forebay.core.routes import (
    Endpoint,
    ForcedCalls,
    GatewayLimits,
    Route,
    RouteTable,
    Snapshot,
    Target,
    Timeouts,
    encode_snapshot,
)
from forebay.core.usage_rules import UsageRule
from forebay.gateway.metrics import Collector
from forebay.ledger.segment import list_segments, read_frames
from forebay.testing.upstream import WAIT_MAX_S

TEST_KEY = "fb-test-key-that-may-call-every-model"
START_MAX_S = 60.0
STOP_MAX_S = 30.0
POLL_S = 0.01
Found = TypeVar("Found")


def make_key(key: str = TEST_KEY, *, models: Sequence[str] = ("*",), id: str = "k1") -> KeyEntry:
    """A snapshot's entry for a key."""
    return KeyEntry(
        id=id, digest=compute_key_digest(key), name=id, prefix=key[:6], models=tuple(models), project="test"
    )


def make_route(
    model: str,
    *urls: str,
    target_model: str | None = None,
    endpoints: Sequence[Endpoint] = tuple(Endpoint),
    timeouts: Timeouts | None = None,
    api_key: str | None = None,
    connections_max: int = 1024,
    usage: Sequence[UsageRule] = (),
    dialect: str = "openai",
    forced_tools: ForcedCalls = ForcedCalls.NATIVE,
) -> Route:
    """A route to one target for each base URL, tried in that order.

    Args:
        urls: up to and including `/v1`, as `ThreadedUpstream.url` is.
        target_model: the model's name there; the public one if None.
        api_key: a reference, `env:NAME` or `file:PATH`.
        usage: rules by which each target's answers are counted.
        dialect: what the targets speak.
        forced_tools: how they meet a forced call of a tool.
    """
    targets = tuple(
        Target(
            id=f"{model}-{number}",
            pool=f"pool-{number}",
            dialect=dialect,
            url=url,
            model=target_model or model,
            api_key=api_key,
            connections_max=connections_max,
            timeouts=timeouts or Timeouts(),
            usage=tuple(usage),
            forced_tools=forced_tools,
        )
        for number, url in enumerate(urls)
    )
    return Route(model=model, endpoints=tuple(endpoints), targets=targets)


class GatewayProcess:
    """One gateway worker.

        with ThreadedUpstream(well_behaved("Hello")) as upstream:
            with GatewayProcess([make_route("m", upstream.url)], folder=tmp_path) as gateway:
                client = OpenAI(base_url=gateway.url, api_key=gateway.key)

    Args:
        folder: the data folder; workers that share one share records and metrics.
        keys: who may call; by default `TEST_KEY`, which may call everything.
        environment: variables on top of this process's.
        listener: a listening socket to share with other workers; it stays open when this one ends.
        constants: of the worker's modules, as `forebay.gateway.mirrors.LAG_MAX_S`, with what they are to be
            instead: a busy machine may stand still for longer than a worker has patience.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        folder: Path,
        keys: Sequence[KeyEntry] | None = None,
        limits: GatewayLimits | None = None,
        environment: Mapping[str, str] | None = None,
        index: int = 0,
        listener: socket.socket | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        self.folder = folder
        self.key = TEST_KEY
        self.snapshot = Snapshot(
            table=RouteTable(routes=tuple(routes)),
            keys=(make_key(),) if keys is None else tuple(keys),
            limits=limits or GatewayLimits(),
        )
        self.process: subprocess.Popen[bytes]
        self._own_listener = listener is None
        self._listener = listener or _listen()
        self._environment = dict(environment or {})
        self._index = index
        self._constants = dict(constants or {})
        self._read_to: dict[Path, int] = {}
        self._records: list[Finished] = []

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the worker and returns once it serves.  Raises RuntimeError with its log if it can't."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.write_snapshot(self.snapshot)
        fd = self._listener.fileno()
        arguments = ("--run-dir", self.run_dir, "--index", self._index, "--listen-fd", fd)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._list_code(), *map(str, arguments)],
                pass_fds=(fd,),
                env=os.environ | self._environment,
                stdout=log,
                stderr=log,
            )
        self.until(self._has_started, START_MAX_S)

    def _list_code(self) -> list[str]:
        """What Python is to run."""
        if not self._constants:
            return ["-m", "forebay.app.worker"]
        places = [(name.rpartition(".")[0], name, value) for name, value in self._constants.items()]
        lines = [
            f"import {module}; assert hasattr({module}, {name.rpartition('.')[2]!r}); {name} = {value!r}"
            for module, name, value in places
        ]
        return ["-c", "\n".join([*lines, "from forebay.app.worker import main; raise SystemExit(main())"])]

    def _has_started(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the worker ended with {self.process.returncode}:\n{self.log}")
        # A worker takes care of SIGTERM just before it serves.  To ask it over the socket might ask another.
        caught = int(self._read_status("SigCgt"), 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def terminate(self) -> None:
        """SIGTERM: the worker drains."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def wait(self, timeout_s: float = STOP_MAX_S) -> int:
        """The exit status; raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Ends the worker however far it is, and gives its socket up if it is its own."""
        if self.process.poll() is None:
            self.kill()
        if self._own_listener:
            self._listener.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what a test asks -----------------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def log_path(self) -> Path:
        return self.run_dir / f"worker-{self._index}.log"

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def origin(self) -> str:
        """`http://127.0.0.1:PORT`"""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL for an OpenAI client: the origin and `/v1`."""
        return self.origin + "/v1"

    @property
    def rss_bytes(self) -> int:
        """The worker's resident memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def rss_peak_bytes(self) -> int:
        """The most resident memory that the worker has ever had."""
        return int(self._read_status("VmHWM")) * 1024

    def get(self, path: str, timeout_s: float = WAIT_MAX_S) -> tuple[int, bytes]:
        """Status and body of a GET without a key."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def records(self) -> list[Finished]:
        """All that the ledger of the data folder holds, oldest first within a worker."""
        for path in list_segments(self.folder / "ledger"):
            for payload, offset in read_frames(path, self._read_to.get(path, 0)):
                self._records.append(decode_event(payload))
                self._read_to[path] = offset
        return list(self._records)

    def wait_record(self, request_id: str, timeout_s: float = WAIT_MAX_S) -> Finished:
        """The record of a request; raises TimeoutError if none comes, AssertionError for more than one."""
        return self.wait_for(lambda record: record.request_id == request_id, timeout_s)

    def wait_for(self, is_wanted: Callable[[Finished], bool], timeout_s: float = WAIT_MAX_S) -> Finished:
        """The one record of which the condition holds; raises as `wait_record` does."""
        found = self.until(lambda: [r for r in self.records() if is_wanted(r)], timeout_s)
        assert len(found) == 1, f"one request was recorded more than once: {found}"
        return found[0]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels, 0.0 when there is none.

        Read where all workers keep them: the page of `/metrics` is rendered once in a while only.
        """
        for _ in range(2):  # the worker has counted what came before
            self.get("/healthz")
        families, rows = Collector(self.run_dir / "metrics").add_up()
        stem, _, end = name.rpartition("_")
        assert end != "bucket", "of a histogram there are the count and the sum"
        family = families.get(name) or families.get(stem)
        if family is None:
            return 0.0
        return sum(
            sum(values[:-1]) if end == "count" and family.kind == "histogram" else values[-1]
            for row, values in rows.get(family.name, {}).items()
            if labels.items() <= dict(zip(family.labels, row, strict=True)).items()
        )

    def wait_idle(self, timeout_s: float = WAIT_MAX_S) -> None:
        """Returns once no request is in flight."""
        self.until(lambda: self.metric("forebay_requests_in_flight") == 0, timeout_s)

    def _read_status(self, name: str) -> str:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next((line.split()[1] for line in lines if line.startswith(f"{name}:")), "0")

    # --- snapshots ------------------------------------------------------------------------------------------

    def write_snapshot(self, snapshot: Snapshot | bytes) -> None:
        """Puts a snapshot, or bytes that are none, where the worker looks for it."""
        data = snapshot if isinstance(snapshot, bytes) else encode_snapshot(snapshot)
        temporary = self.run_dir / f"snapshot.{time.monotonic_ns()}.new"
        temporary.write_bytes(data)
        temporary.replace(self.run_dir / "snapshot.msgpack")

    def until(self, find: Callable[[], Found], timeout_s: float = WAIT_MAX_S) -> Found:
        """What `find` returns once it is true; raises TimeoutError with the worker's log if it never is."""
        for _ in _ticks(timeout_s):
            found = find()
            if found:
                return found
        raise TimeoutError(f"not within {timeout_s} s; the worker's log:\n{self.log}")


def _ticks(timeout_s: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_S)


def _listen() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    return listener
