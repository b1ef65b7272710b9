"""Teams and projects at rest.  A project belongs to a team, and no key of it may do more than it.

Neither is ever removed or renamed: records bear their names.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec
from sqlalchemy import Connection, RowMapping, select
from sqlalchemy.exc import IntegrityError

from forebay.core.clock import Clock
from forebay.core.keys import Rights
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.repo_tables import projects, teams
from forebay.gateway.tenancy import (
    Actor,
    ProjectNotFound,
    ProjectRecord,
    TeamNotFound,
    TeamRecord,
    check_owner,
    check_rights,
    describe_project,
)
from forebay.store.database import Database

_LISTS = ("models", "endpoints", "regions")
Made = TypeVar("Made")


class TeamRepo:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def list_teams(self) -> tuple[TeamRecord, ...]:
        """In the order of their names."""
        with self._database.read() as connection:
            rows = connection.execute(select(teams)).mappings().all()
        return tuple(sorted((TeamRecord(**row) for row in rows), key=lambda team: team.name))

    def list_projects(self) -> tuple[ProjectRecord, ...]:
        """In the order of their teams' names and their own."""
        with self._database.read() as connection:
            rows = connection.execute(select(projects)).mappings().all()
        return tuple(sorted(map(_make_project, rows), key=lambda project: (project.team, project.name)))

    def get_project(self, team: str, name: str) -> ProjectRecord:
        """Raises TeamNotFound, ProjectNotFound."""
        with self._database.read() as connection:
            return _load_project(connection, team, name)

    def create_team(self, name: str, actor: Actor) -> TeamRecord:
        """The team, made unless it exists.  Raises InvalidValue."""
        check_owner("team", name)
        return make_or_find(lambda: self._create_team(name, actor))

    def _create_team(self, name: str, actor: Actor) -> TeamRecord:
        now_ns = self._clock.wall_ns()
        with self._database.begin() as connection:
            row = connection.execute(select(teams).where(teams.c.name == name)).mappings().one_or_none()
            if row is not None:
                return TeamRecord(**row)
            connection.execute(teams.insert().values(name=name, created_ns=now_ns))
            append_audit(
                connection, actor, Change(action="team.create", subject=name, after={"name": name}), now_ns
            )
        return TeamRecord(name=name, created_ns=now_ns)

    def put_project(self, team: str, name: str, rights: Rights, actor: Actor) -> ProjectRecord:
        """The project with these rights: made, or changed, or as it was.

        Raises InvalidValue, TeamNotFound.
        """
        check_owner("project", name)
        check_rights(rights)
        return make_or_find(lambda: self._put_project(team, name, rights, actor))

    def _put_project(self, team: str, name: str, rights: Rights, actor: Actor) -> ProjectRecord:
        now_ns = self._clock.wall_ns()
        with self._database.begin() as connection:
            try:
                old = _load_project(connection, team, name, to_change=True)
            except ProjectNotFound:
                connection.execute(
                    projects.insert().values(team=team, name=name, created_ns=now_ns, **encode_rights(rights))
                )
                new = _load_project(connection, team, name)
                change = Change(
                    action="project.create", subject=f"{team}/{name}", after=describe_project(new)
                )
                append_audit(connection, actor, change, now_ns)
                return new
            return _change_project(connection, old, rights, actor, now_ns)

    def change_project(
        self, team: str, name: str, edit: Callable[[Rights], Rights], actor: Actor
    ) -> ProjectRecord:
        """The project with other rights.  What stays as it was leaves no event.

        Args:
            edit: pure; is given the rights as they are, within the transaction, so that of two changes at
                once neither undoes what the other names.

        Raises InvalidValue, TeamNotFound, ProjectNotFound.
        """
        now_ns = self._clock.wall_ns()
        with self._database.begin() as connection:
            old = _load_project(connection, team, name, to_change=True)
            rights = edit(old.rights)
            check_rights(rights)
            return _change_project(connection, old, rights, actor, now_ns)


def make_or_find(act: Callable[[], Made]) -> Made:
    """What a transaction gives that makes a row unless it is there.

    PostgreSQL has several writers at a time: where another one made the row a moment ago, `act` is called
    again, and finds it.
    """
    try:
        return act()
    except IntegrityError:
        return act()


def check_project_exists(connection: Connection, team: str, name: str, *, to_change: bool = False) -> None:
    """With `to_change`, others who ask so wait until the transaction ends.

    Raises TeamNotFound, ProjectNotFound.
    """
    _load_project(connection, team, name, to_change=to_change)


def encode_rights(rights: Rights) -> Mapping[str, object]:
    """As columns: lists are JSON."""
    columns = msgspec.structs.asdict(rights)
    return columns | {name: msgspec.json.encode(columns[name]).decode() for name in _LISTS}


def make_rights(row: RowMapping, prefix: str = "") -> Rights:
    """Of columns whose names begin with `prefix`."""
    lists = {name: _decode_list(row[prefix + name]) for name in _LISTS}
    return Rights(
        **lists,
        tier_max=row[f"{prefix}tier_max"],
        context_max_tokens=row[f"{prefix}context_max_tokens"],
        output_max_tokens=row[f"{prefix}output_max_tokens"],
    )


@lru_cache(maxsize=4096)  # of many keys, most lists are alike
def _decode_list(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _change_project(
    connection: Connection, old: ProjectRecord, rights: Rights, actor: Actor, now_ns: int
) -> ProjectRecord:
    if old.rights == rights:
        return old
    place = (projects.c.team == old.team) & (projects.c.name == old.name)
    connection.execute(projects.update().where(place).values(**encode_rights(rights)))
    new = _load_project(connection, old.team, old.name)
    change = Change(
        action="project.change",
        subject=f"{old.team}/{old.name}",
        before=describe_project(old),
        after=describe_project(new),
    )
    append_audit(connection, actor, change, now_ns)
    return new


def _load_project(connection: Connection, team: str, name: str, *, to_change: bool = False) -> ProjectRecord:
    query = select(projects).where((projects.c.team == team) & (projects.c.name == name))
    if to_change:
        query = query.with_for_update()  # where there is more than one writer at a time
    row = connection.execute(query).mappings().one_or_none()
    if row is not None:
        return _make_project(row)
    if connection.execute(select(teams.c.name).where(teams.c.name == team)).first() is None:
        raise TeamNotFound(f"there is no team {team[:100]!r}: `forebay teams create` makes one", param="team")
    raise ProjectNotFound(
        f"the team {team!r} has no project {name[:100]!r}: `forebay projects create` makes one",
        param="project",
    )


def _make_project(row: RowMapping) -> ProjectRecord:
    return ProjectRecord(
        team=row["team"], name=row["name"], rights=make_rights(row), created_ns=row["created_ns"]
    )
