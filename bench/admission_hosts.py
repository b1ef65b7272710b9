"""Whether limits hold over two machines: each in a network namespace of its own, over one Redis or Valkey.

Where namespaces can't be made (that takes root and `ip`), two data folders on this machine stand for them,
and a line says so.  As a program it is one of the machines, and does what its standard input says:

usage: python bench/admission_hosts.py FOLDER URL ADDRESS AMOUNT WORKERS
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import measure
import peers
from admission_fleet import count_admitted, kill_workers, limit_keys, make_limit, run_fleet
from forebay.app.clock import SystemClock
from forebay.app.quota_redis import RedisAuthority
from forebay.app.quota_server import QuotaServer
from forebay.core.limits import Limit
from measure import BenchError

sys.path.append(str(peers.ROOT / "tests"))
from redis_server import RedisServer, find_programs

HOSTS = 2
CALLERS = 16
KEY_VARIABLE = "FOREBAY_BENCH_KEY"  #: the callers' key, which each process would make up anew
LONG = 100_000  #: a limit of so much is measured calm, and with the most workers alone


# --- one machine --------------------------------------------------------------------------------------------


@contextmanager
def run_authority(folder: Path, url: str, limits: Sequence[Limit]) -> Iterator[None]:
    """The control plane's part, in a thread of this process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    authority = RedisAuthority(lambda: url, "bench", folder.name, SystemClock())
    server = QuotaServer(folder / "run" / "quota.sock", authority, SystemClock())

    async def start() -> None:
        server.set_limits(limits)
        await server.start()
        async with asyncio.timeout(20):
            while not authority.is_there:
                await asyncio.sleep(0.02)

    asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(server.close)


def serve(folder: Path, url: str, address: str, amount: int, workers: int) -> None:
    """Says its port, then kills workers once its standard input says so."""
    peers.KEY = os.environ[KEY_VARIABLE]
    limit = make_limit(amount)
    cores = measure.choose_cores(set(range(2)))
    with peers.run_upstream(cores) as upstream:
        snapshot = limit_keys(peers.build_snapshot(upstream), (limit,), HOSTS * workers)
        (folder / "run").mkdir()
        with (
            run_authority(folder, url, (limit,)),
            run_fleet(folder, snapshot, workers, None, address) as (fleet, listener),
        ):
            print(fleet.port, flush=True)
            ended = threading.Event()
            killer = threading.Thread(target=kill_workers, args=(fleet, listener, ended))
            for _ in sys.stdin:
                killer.start()
                break
            sys.stdin.read()
            ended.set()
            if killer.is_alive():
                killer.join()


# --- both ---------------------------------------------------------------------------------------------------


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one machine is.

    Attributes:
        prefix: what to put before a command that is to run there.
        listen: the address at which it listens.
        address: that at which it is reached from here.
        server: that at which it reaches this machine.
    """

    prefix: list[str]
    listen: str
    address: str
    server: str


@contextmanager
def make_namespaces() -> Iterator[list[Place]]:
    names = [f"forebay{at}" for at in range(1, HOSTS + 1)]
    remove_namespaces()  # of a run that was killed
    try:
        for at, name in enumerate(names, 1):
            run_ip("netns", "add", name)
            run_ip("link", "add", f"fb{at}", "type", "veth", "peer", "name", f"fb{at}in", "netns", name)
            run_ip("addr", "add", f"10.213.{at}.1/24", "dev", f"fb{at}")
            run_ip("link", "set", f"fb{at}", "up")
            for words in (
                f"addr add 10.213.{at}.2/24 dev fb{at}in",
                f"link set fb{at}in up",
                "link set lo up",
            ):
                run_ip("netns", "exec", name, "ip", *words.split())
        yield [
            Place(["ip", "netns", "exec", name], "0.0.0.0", f"10.213.{at}.2", f"10.213.{at}.1")
            for at, name in enumerate(names, 1)
        ]
    finally:
        remove_namespaces()


def remove_namespaces() -> None:
    for at in range(1, HOSTS + 1):
        for words in (f"link del fb{at}", f"netns del forebay{at}"):
            with suppress(subprocess.CalledProcessError):
                run_ip(*words.split())


@contextmanager
def make_places() -> Iterator[list[Place]]:
    with ExitStack() as stack:
        try:
            if shutil.which("ip") is None:
                raise OSError("there is no `ip`")
            places = stack.enter_context(make_namespaces())
        except (OSError, subprocess.CalledProcessError) as error:
            measure.console.print(f"no network namespaces, two data folders stand for them: {error}")
            places = [Place([], "127.0.0.1", "127.0.0.1", "127.0.0.1")] * HOSTS
        yield places


def measure_once(
    places: list[Place], port: int, amount: int, workers: int, asked: int, *, kills: bool
) -> int:
    """How many of so many requests were let in, with so many workers on each machine."""
    with ExitStack() as stack:
        hosts = []
        for at, place in enumerate(places):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"forebay-host{at}-"))
            words = [folder, f"redis://{place.server}:{port}/0", place.listen, str(amount), str(workers)]
            host = subprocess.Popen(
                [*place.prefix, sys.executable, __file__, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=peers.ROOT,
                env=os.environ | {KEY_VARIABLE: peers.KEY},
            )
            stack.callback(stop, host)
            hosts.append(host)
        ports = [_read_port(host) for host in hosts]
        for host in hosts:
            if kills and host.stdin is not None:
                print("kill", file=host.stdin, flush=True)
        addresses = [(place.address, found) for place, found in zip(places, ports, strict=True)]
        return count_admitted(addresses, asked, CALLERS)


def _read_port(host: "subprocess.Popen[str]") -> int:
    assert host.stdout is not None
    line = host.stdout.readline()
    if not line:
        raise BenchError("a machine of the bench did not start")
    return int(line)


def stop(host: "subprocess.Popen[str]") -> None:
    if host.stdin is not None:
        with suppress(OSError):
            host.stdin.close()
    try:
        host.wait(30)
    except subprocess.TimeoutExpired:
        host.kill()
        host.wait()


def measure_over_hosts(amount: int, workers: Sequence[int], asked: int) -> float:
    """The worst excess over a limit of so many requests in one period on two machines, in percent of it."""
    programs = find_programs()
    if not programs:
        raise BenchError("there is neither Valkey nor Redis here: `make setup` installs one")
    name, program = next(iter(programs.items()))
    is_long = amount >= LONG
    worst = 0.0
    with make_places() as places, ExitStack() as stack:
        addresses = sorted({"127.0.0.1", *(place.server for place in places)})
        server = RedisServer(program, "--protected-mode", "no", "--bind", *addresses)
        stack.callback(server.close)
        server.start()
        for count in workers[-1:] if is_long else workers:
            each = max(1, count // HOSTS)
            for kills in (False,) if is_long else (False, True):
                with server.connect() as client:
                    client.flushall()
                admitted = measure_once(places, server.port, amount, each, asked, kills=kills)
                who = f"2 machines over {name}, {each} workers each{', killed' if kills else ''}"
                told = f"{amount} requests, {who}: {admitted} of {asked} admitted"
                measure.console.print(told, style="dim")
                if not kills and admitted < amount // 2:
                    raise BenchError(f"much less is let in than there is: {told}")
                worst = max(worst, 100.0 * (admitted - amount) / amount)
    return max(0.0, worst)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
