"""A database of the version before keeps its keys: what they named becomes rows, and they still open."""

from pathlib import Path

from migration_rig import migrate_to
from sqlalchemy import text
from tenancy_rig import ACTOR, SteppingClock

from forebay.core.keys import Rights
from forebay.gateway.repo import KeyRepo
from forebay.gateway.repo_teams import TeamRepo
from forebay.gateway.tenancy import NewKey
from forebay.store.database import Database


def add_old_key(database: Database, number: int, team: str, project: str, revoked_ns: int | None) -> None:
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO gateway_keys (id, digest, name, prefix, project, team, models, created_ns, "
                "revoked_ns) "
                "VALUES (:id, :digest, :name, 'fb-abcde', :project, :team, :models, :at, :revoked)"
            ),
            {
                "id": f"key_{number:016x}",
                "digest": bytes([number]) * 32,
                "name": f"n{number}",
                "project": project,
                "team": team,
                "models": '["gpt-*"]',
                "at": 1000 + number,
                "revoked": revoked_ns,
            },
        )


def test_keys_of_the_version_before_work_on_in_projects_that_exist(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "forebay.db")
    with database.begin() as connection:
        migrate_to(connection, "0001")
    owners = [
        ("default", "default"),
        ("web", "search"),
        ("web", "ads"),
        ("infra", "search"),
        ("web", "search"),
    ]
    for number, (team, project) in enumerate(owners):
        add_old_key(database, number, team, project, revoked_ns=2000 if number == 2 else None)
    database.migrate()
    clock = SteppingClock()
    keys, teams = KeyRepo(database, clock), TeamRepo(database, clock)
    records = keys.list()
    assert [(record.entry.team, record.entry.project) for record in records] == owners
    assert [record.revoked_ns for record in records] == [None, None, 2000, None, None]
    for number, record in enumerate(records):
        assert record.entry.digest == bytes([number]) * 32
        assert record.rights == Rights(models=("gpt-*",))
        assert (record.entry.priority, record.entry.expires_ns) == ("standard", None)
    assert len(keys.list_live()) == 4
    assert [team.name for team in teams.list_teams()] == ["default", "infra", "web"]
    assert [(each.team, each.name, each.rights) for each in teams.list_projects()] == [
        ("default", "default", Rights()),
        ("infra", "search", Rights()),
        ("web", "ads", Rights()),
        ("web", "search", Rights()),
    ]
    assert teams.list_teams()[2].created_ns == 1001, "as old as its first key"
    made, _ = keys.create(NewKey(name="new", team="web", project="ads"), ACTOR)
    assert keys.get(made.entry.id) == made
    database.close()


def test_a_new_database_has_the_default_team_and_project(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "forebay.db")
    database.migrate()
    teams = TeamRepo(database, SteppingClock())
    assert [team.name for team in teams.list_teams()] == ["default"]
    assert [(each.team, each.name) for each in teams.list_projects()] == [("default", "default")]
    database.close()
