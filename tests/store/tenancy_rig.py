"""What tests of keys, teams, tokens and the audit stand on: a database, and a clock that steps."""

from pathlib import Path
from types import TracebackType
from typing import Self

from forebay.gateway.repo import KeyRepo
from forebay.gateway.repo_audit import AuditRepo
from forebay.gateway.repo_teams import TeamRepo
from forebay.gateway.repo_tokens import TokenRepo
from forebay.gateway.tenancy import Actor
from forebay.store.database import Database
from postgres_server import make_location, remove_location

ACTOR = Actor(id="tok_0123456789abcdef", name="tester")


class SteppingClock:
    """Goes on by one nanosecond with each look."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def wall_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.wall_ns()


class Tenancy:
    def __init__(self, folder: Path) -> None:
        self.clock = SteppingClock()
        self.location = make_location(folder)
        self.database = Database.open(self.location)
        self.database.migrate()
        self.keys = KeyRepo(self.database, self.clock)
        self.teams = TeamRepo(self.database, self.clock)
        self.tokens = TokenRepo(self.database, self.clock)
        self.audit = AuditRepo(self.database)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.database.close()
        remove_location(self.location)
