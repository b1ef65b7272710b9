"""`forebay teams` and `forebay projects`: who keys belong to, and what bounds them."""

from collections import Counter
from pathlib import Path

from forebay.cli.tables import Column, Table, print_table
from forebay.cli.tenancy import (
    RightsOptions,
    describe_rights,
    find_actor,
    format_day,
    format_moment,
    format_rights,
    open_repos,
    print_json,
)
from forebay.cli.terminal import Failure, Outcome, print_line
from forebay.gateway.tenancy import ProjectNotFound, ProjectRecord


def create_team(file: Path | None, name: str) -> Outcome:
    with open_repos(file, create=True) as repos:
        record = repos.teams.create_team(name, find_actor())
    print_line(f"team {record.name}")
    return Outcome.OK


def list_teams(file: Path | None, *, as_json: bool) -> Outcome:
    with open_repos(file) as repos:
        records = repos.teams.list_teams()
        projects = Counter(project.team for project in repos.teams.list_projects())
        keys = Counter(entry.team for entry in repos.keys.list_live())
    if as_json:
        print_json(
            [
                {
                    "name": record.name,
                    "projects": projects[record.name],
                    "keys": keys[record.name],
                    "created_at": format_moment(record.created_ns),
                }
                for record in records
            ]
        )
        return Outcome.OK
    columns = (
        Column(title="Team"),
        Column(title="Projects", align="right", kind="whole"),
        Column(title="Live keys", align="right", kind="whole"),
        Column(title="Made", kind="whole", rank=1),
    )
    rows = [
        (each.name, str(projects[each.name]), str(keys[each.name]), format_day(each.created_ns))
        for each in records
    ]
    print_table(Table(columns=columns, rows=rows))
    return Outcome.OK


def create_project(file: Path | None, team: str, name: str, rights: RightsOptions) -> Outcome:
    with open_repos(file, create=True) as repos:
        try:
            repos.teams.get_project(team, name)
        except ProjectNotFound:
            record = repos.teams.put_project(team, name, rights.make(), find_actor())
        else:
            raise Failure(
                f"the team {team!r} has a project {name!r} already",
                hint="`forebay projects set` changes what its keys may do",
            )
    return _print_project(record)


def set_project(file: Path | None, team: str, name: str, rights: RightsOptions) -> Outcome:
    with open_repos(file) as repos:
        record = repos.teams.change_project(team, name, rights.apply, find_actor())
    return _print_project(record)


def _print_project(record: ProjectRecord) -> Outcome:
    print_line(f"project {record.name} of team {record.team}: {format_rights(record.rights) or 'unlimited'}")
    return Outcome.OK


def list_projects(file: Path | None, *, as_json: bool) -> Outcome:
    with open_repos(file) as repos:
        records = repos.teams.list_projects()
    if as_json:
        print_json(
            [
                {
                    "team": record.team,
                    "name": record.name,
                    **describe_rights(record.rights),
                    "created_at": format_moment(record.created_ns),
                }
                for record in records
            ]
        )
        return Outcome.OK
    columns = (
        Column(title="Team"),
        Column(title="Project"),
        Column(title="What its keys may do at most", kind="prose"),
        Column(title="Made", kind="whole", rank=1),
    )
    rows = [
        (each.team, each.name, format_rights(each.rights) or "unlimited", format_day(each.created_ns))
        for each in records
    ]
    print_table(Table(columns=columns, rows=rows))
    return Outcome.OK
