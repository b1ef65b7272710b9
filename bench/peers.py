"""The servers of a benchmark: the upstream that answers, Forebay, and the peers that it is compared with.

Each is started on one core, in a folder of its own that goes away with it, and listens on 127.0.0.1 alone.
A gateway has two addresses here, since some peers can't send two models to two upstreams from one.
"""

import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import measure
from forebay.app.supervisor_socket import open_listener
from forebay.core.keys import KeyEntry, compute_key_digest
from forebay.core.routes import Endpoint, Route, RouteTable, Snapshot, Target, encode_snapshot
from measure import BenchError
from workload import MODEL, STREAMED_MODEL, build_answer, build_request, build_stream

ROOT = Path(__file__).parent.parent
PEER_COMMANDS = ROOT / ".venv-bench" / "bin"
CHAT = "/v1/chat/completions"
KEY = "fb-" + secrets.token_urlsafe(32)
READY_S = 30.0
STOP_S = 10.0

SETUP = "make setup-bench"
NEEDS = {
    "upstream": (("nginx", SETUP), ("wrk", SETUP), ("taskset", "apt-get install util-linux")),
    "vllm_router": ((str(PEER_COMMANDS / "vllm-router"), SETUP),),
    "envoy": ((str(PEER_COMMANDS / "envoy"), SETUP),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Where the fixed answers come from: one nginx, two ports."""

    pid: int
    json_port: int
    stream_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running server that is measured."""

    name: str
    pid: int
    json_port: int
    stream_port: int

    def url(self, *, stream: bool) -> str:
        return f"http://127.0.0.1:{self.stream_port if stream else self.json_port}{CHAT}"


# --- processes ----------------------------------------------------------------------------------------------


def pick_port() -> int:
    """A port that is free now.  Servers that can't be handed a socket take it a moment later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def run_pinned(
    command: Sequence[str], *, core: int, log: Path, pass_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A process group on one core, its output in `log`; it is ended, all of it, on the way out."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,
            cwd=ROOT,
        )
    try:
        yield process
    finally:
        # A server that has ended leaves a group that may be empty.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(STOP_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def wait_ready(process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    """Raises `BenchError` with the end of the log if the server ends or does not answer in time."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            if is_ready():
                return
        except (OSError, http.client.HTTPException):
            pass
        if process.poll() is not None:
            break
        time.sleep(0.05)
    tail = log.read_text(errors="replace")[-2000:]
    raise BenchError(f"the server did not come up: {process.args!r}\n{tail}")


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One request with the key of this run: status and body, the latter without its chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def answers(port: int, path: str) -> bool:
    """Whether a server says that it is ready."""
    return ask(port, "GET", path)[0] == 200


def check_answers(gateway: Gateway) -> None:
    """Raises `BenchError` unless both answers come through byte for byte."""
    for port, model, stream, expected in (
        (gateway.json_port, MODEL, False, build_answer()),
        (gateway.stream_port, STREAMED_MODEL, True, build_stream()),
    ):
        status, body = ask(port, "POST", CHAT, build_request(model, stream=stream))
        if (status, body) != (200, expected):
            raise BenchError(f"{gateway.name} answers {model} wrongly: {status} {body[:500]!r}")


# --- the upstream -------------------------------------------------------------------------------------------

# SSI takes the length off a file, so that the stream goes out chunked; a POST to a file needs the error page.
_NGINX = """
daemon off; worker_processes 1; pid nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; tcp_nodelay on;
  client_max_body_size 64m; client_body_buffer_size 16m;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
  scgi_temp_path scgi; open_file_cache max=16; open_file_cache_valid 1h;
  server {{
    listen 127.0.0.1:{json_port} backlog=4096; default_type application/json;
    location / {{ return 200 '{answer}'; }}
  }}
  server {{
    listen 127.0.0.1:{stream_port} backlog=4096; default_type text/event-stream;
    location = {chat} {{ root {folder}; error_page 405 =200 /stream; try_files /stream =404; }}
    location = /stream {{ root {folder}; ssi on; ssi_types text/event-stream; }}
    location / {{ return 200 ''; }}
  }}
}}
"""


@contextmanager
def run_upstream(cores: measure.Cores) -> Iterator[Upstream]:
    """One nginx that answers every path of one port with the JSON, and chat of the other with the stream."""
    json_port, stream_port = pick_port(), pick_port()
    nginx = measure.find_command("nginx")
    assert nginx is not None, "require_commands comes first"
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "stream").write_bytes(build_stream())
        text = _NGINX.format(
            json_port=json_port,
            stream_port=stream_port,
            answer=build_answer().decode(),
            chat=CHAT,
            folder=folder,
        )
        (folder / "nginx.conf").write_text(text)
        log = folder / "log"
        command = [nginx, "-e", "stderr", "-p", name, "-c", str(folder / "nginx.conf")]
        with run_pinned(command, core=cores.load, log=log) as process:
            wait_ready(process, log, partial(answers, json_port, "/health"))
            check_answers(
                Gateway(name="the upstream", pid=process.pid, json_port=json_port, stream_port=stream_port)
            )
            yield Upstream(pid=process.pid, json_port=json_port, stream_port=stream_port)


# --- Forebay ------------------------------------------------------------------------------------------------


def build_snapshot(upstream: Upstream) -> Snapshot:
    """Two models on two targets, and one key that may call both."""

    def route(model: str, port: int) -> Route:
        target = Target(id=model, pool="bench", url=f"http://127.0.0.1:{port}/v1", model=model)
        return Route(model=model, endpoints=(Endpoint.CHAT,), targets=(target,))

    routes = (route(MODEL, upstream.json_port), route(STREAMED_MODEL, upstream.stream_port))
    key = KeyEntry(id="bench", digest=compute_key_digest(KEY), name="bench", prefix=KEY[:7])
    return Snapshot(table=RouteTable(routes=routes), keys=(key,))


@contextmanager
def run_forebay(upstream: Upstream, cores: measure.Cores) -> Iterator[Gateway]:
    """One gateway worker as the supervisor starts it: key check, routes, records and metrics are on."""
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name, ExitStack() as stack:
        data = Path(name)
        run, log = data / "run", data / "log"
        run.mkdir()
        (run / "snapshot.msgpack").write_bytes(encode_snapshot(build_snapshot(upstream)))
        listener = stack.enter_context(open_listener("127.0.0.1", 0, section="gateway"))
        fd, port = listener.fileno(), listener.getsockname()[1]
        command = [sys.executable, "-m", "forebay.app.worker"]
        command += ["--run-dir", str(run), "--index", "0", "--listen-fd", str(fd)]
        process = stack.enter_context(run_pinned(command, core=cores.server, log=log, pass_fds=(fd,)))
        wait_ready(process, log, partial(answers, port, "/readyz"))
        yield Gateway(name="forebay", pid=process.pid, json_port=port, stream_port=port)


# --- peers --------------------------------------------------------------------------------------------------


@contextmanager
def run_vllm_router(upstream: Upstream, cores: measure.Cores) -> Iterator[Gateway]:
    """One router with one upstream that answers JSON, and one with the stream: it can't route by model."""
    # Both are started by one shell so that one process tree holds them; only one is under load at a time.
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        log = Path(name) / "log"
        ports, parts = [], []
        for target in (upstream.json_port, upstream.stream_port):
            port = pick_port()
            ports.append(port)
            parts.append(
                f"{PEER_COMMANDS}/vllm-router --host 127.0.0.1 --port {port} --policy round_robin "
                f"--worker-urls http://127.0.0.1:{target} --prometheus-port {pick_port()} "
                "--prometheus-host 127.0.0.1 --log-level warning &"
            )
        command = ["sh", "-c", "\n".join([*parts, "wait"])]
        with run_pinned(command, core=cores.server, log=log) as process:
            for port in ports:
                wait_ready(process, log, partial(answers, port, "/health"))
            yield Gateway(name="vllm_router", pid=process.pid, json_port=ports[0], stream_port=ports[1])


_ENVOY_TYPES = "type.googleapis.com/envoy.extensions.filters"
_ENVOY_LISTENER = """
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {name}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [ {{ match: {{ prefix: "/" }}, route: {{ cluster: {name}, timeout: 0s }} }} ]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": {types}.http.router.v3.Router }}
"""
_ENVOY_CLUSTER = """
  - name: {name}
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: {name}
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}
"""


@contextmanager
def run_envoy(upstream: Upstream, cores: measure.Cores) -> Iterator[Gateway]:
    """One thread that forwards everything: no access log, no filter but the router."""
    json_port, stream_port = pick_port(), pick_port()
    config = "static_resources:\n  listeners:"
    config += _ENVOY_LISTENER.format(types=_ENVOY_TYPES, name="json", port=json_port)
    config += _ENVOY_LISTENER.format(types=_ENVOY_TYPES, name="stream", port=stream_port)
    config += "  clusters:"
    config += _ENVOY_CLUSTER.format(name="json", port=upstream.json_port)
    config += _ENVOY_CLUSTER.format(name="stream", port=upstream.stream_port)
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        folder = Path(name)
        (folder / "envoy.yaml").write_text(config)
        log = folder / "log"
        command = [str(PEER_COMMANDS / "envoy"), "-c", str(folder / "envoy.yaml"), "--concurrency", "1"]
        command += ["-l", "warning", "--disable-hot-restart"]
        with run_pinned(command, core=cores.server, log=log) as process:
            wait_ready(process, log, partial(answers, json_port, "/health"))
            yield Gateway(name="envoy", pid=process.pid, json_port=json_port, stream_port=stream_port)


@contextmanager
def run_floor(upstream: Upstream, cores: measure.Cores) -> Iterator[Gateway]:
    """Bare forwarding on Forebay's own foundations; `floor.py` explains it."""
    port = pick_port()
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as name:
        log = Path(name) / "log"
        command = [sys.executable, str(ROOT / "bench" / "floor.py"), str(port)]
        command += [str(upstream.json_port), str(upstream.stream_port)]
        with run_pinned(command, core=cores.server, log=log) as process:
            wait_ready(process, log, partial(answers, port, "/health"))
            yield Gateway(name="floor", pid=process.pid, json_port=port, stream_port=port)


RUNNERS = {"forebay": run_forebay, "vllm_router": run_vllm_router, "envoy": run_envoy, "floor": run_floor}


@contextmanager
def run_gateways(names: Sequence[str], upstream: Upstream, cores: measure.Cores) -> Iterator[list[Gateway]]:
    """All of them at once, checked; an idle one costs next to nothing beside the one under load."""
    with ExitStack() as stack:
        gateways = [stack.enter_context(RUNNERS[name](upstream, cores)) for name in names]
        for gateway in gateways:
            check_answers(gateway)
        yield gateways
