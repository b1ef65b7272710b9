"""What tests of the registry stand on: a database and a folder of its own, without the rest of Forebay."""

import functools
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from forebay.registry.disk import ContentStore
from forebay.registry.model import Author, Registered
from forebay.registry.repo import RegistryRepo, Told
from forebay.registry.service import Registry, Wanted
from forebay.store.database import Database

AUTHOR = Author(id="tester", name="tester")


class Ticking:
    def __init__(self) -> None:
        self.now_ns = 1000

    def wall_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.wall_ns()


class Scene:
    """A registry in a folder; several may be open at the same time."""

    def __init__(self, folder: Path, *, lock_wait_s: float = 60.0) -> None:
        self.folder = folder
        self.told: list[Told] = []
        location = folder / "forebay.db"
        if not location.exists():
            folder.mkdir(parents=True, exist_ok=True)
            location.write_bytes(_make_database())
        self.database = Database.open(location, busy_timeout_s=60)
        self.store = ContentStore(folder / "models", lock_wait_s=lock_wait_s)
        self.repo = RegistryRepo(self.database, Ticking(), self._tell)
        self.registry = Registry(self.repo, self.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.database.close()

    def register(self, name: str, path: Path, *, alias: str = "", link: bool = False) -> Registered:
        wanted = Wanted(name=name, path=path, alias=alias, link=link)
        found = self.registry.look(wanted)
        return self.registry.register(wanted, found, AUTHOR, ignore)

    def is_whole(self, digest: str) -> bool:
        return self.store.verify(digest, ignore).is_whole

    def list_files(self) -> set[str]:
        """All that lies in the folder of models, but the lock and empty folders."""
        root = self.store.folder
        return {
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_file() and path.name != "lock"
        }

    def _tell(self, _connection: Connection, _author: Author, told: Told, _now_ns: int) -> None:
        self.told.append(told)


@functools.cache
def _make_database() -> bytes:
    """One with all tables; making them takes longer than all else in a test."""
    with tempfile.TemporaryDirectory() as folder:
        location = Path(folder) / "forebay.db"
        database = Database.open(location)
        database.migrate()
        database.close()
        return location.read_bytes()


def ignore(_count: int, _name: str) -> None:
    """A report that nobody reads."""


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
