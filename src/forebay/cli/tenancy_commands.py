"""`forebay teams`, `projects`, `tokens` and `audit`: their options and their help.

Imports as little as `main` does.
"""

from typing import Annotated

import typer

from forebay.cli.options import (
    AsJson,
    ConfigFile,
    ContextMax,
    Endpoints,
    Expires,
    Models,
    OutputMax,
    Regions,
    Team,
    TierMax,
    find_file,
)
from forebay.cli.terminal import Outcome, guard

teams_app = typer.Typer(help="Teams: make, list.", no_args_is_help=True)
projects_app = typer.Typer(help="Projects of teams, and what their keys may do.", no_args_is_help=True)
tokens_app = typer.Typer(help="Tokens of the admin API: make, list, revoke.", no_args_is_help=True)


@teams_app.command("create")
@guard
def teams_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The team's name; it stays.")],
    config: ConfigFile = None,
) -> Outcome:
    """Make a team; one that exists stays as it is."""
    from forebay.cli.teams import create_team

    return create_team(find_file(context, config), name)


@teams_app.command("list")
@guard
def teams_list(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List all teams and how many projects and keys they have."""
    from forebay.cli.teams import list_teams

    return list_teams(find_file(context, config), as_json=as_json)


@projects_app.command("create")
@guard
def projects_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The project's name; it stays.")],
    team: Team = "default",
    model: Models = None,
    endpoint: Endpoints = None,
    region: Regions = None,
    tier_max: TierMax = None,
    context_max: ContextMax = None,
    output_max: OutputMax = None,
    config: ConfigFile = None,
) -> Outcome:
    """Make a project of a team. What it may do, no key of it exceeds."""
    from forebay.cli.teams import create_project
    from forebay.cli.tenancy import RightsOptions

    rights = RightsOptions(
        models=model,
        endpoints=endpoint,
        regions=region,
        tier_max=tier_max,
        context_max_tokens=context_max,
        output_max_tokens=output_max,
    )
    return create_project(find_file(context, config), team, name, rights)


@projects_app.command("set")
@guard
def projects_set(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The project's name.")],
    team: Team = "default",
    model: Models = None,
    endpoint: Endpoints = None,
    region: Regions = None,
    tier_max: TierMax = None,
    context_max: ContextMax = None,
    output_max: OutputMax = None,
    config: ConfigFile = None,
) -> Outcome:
    """Change what a project's keys may do. What is not named stays.

    An empty text, or 0 tokens, lifts a limit: `--region ""`.
    """
    from forebay.cli.teams import set_project
    from forebay.cli.tenancy import RightsOptions

    rights = RightsOptions(
        models=model,
        endpoints=endpoint,
        regions=region,
        tier_max=tier_max,
        context_max_tokens=context_max,
        output_max_tokens=output_max,
    )
    return set_project(find_file(context, config), team, name, rights)


@projects_app.command("list")
@guard
def projects_list(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List all projects with what their keys may do at most."""
    from forebay.cli.teams import list_projects

    return list_projects(find_file(context, config), as_json=as_json)


@tokens_app.command("create")
@guard
def tokens_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Who or what holds it.")],
    role: Annotated[
        str,
        typer.Option(
            "--role",
            help="viewer reads, operator changes keys and projects, owner everything; reporter only reports "
            "signals.",
        ),
    ] = "viewer",
    expires: Expires = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Make a token for the admin API and print it once: only its hash is kept."""
    from forebay.cli.tokens import create

    return create(find_file(context, config), name, role=role, expires=expires, as_json=as_json)


@tokens_app.command("list")
@guard
def tokens_list(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List all tokens, revoked ones too."""
    from forebay.cli.tokens import list_tokens

    return list_tokens(find_file(context, config), as_json=as_json)


@tokens_app.command("revoke")
@guard
def tokens_revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `forebay tokens list` shows.")],
    config: ConfigFile = None,
) -> Outcome:
    """End a token at once."""
    from forebay.cli.tokens import revoke

    return revoke(find_file(context, config), token_id)


@guard
def audit(
    context: typer.Context,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="ID", help="Only changes of this id or name.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, at most.")] = 50,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show who changed what, the newest first: keys, projects, teams, tokens."""
    from forebay.cli.audit import show_audit

    return show_audit(find_file(context, config), subject=subject, limit=limit, as_json=as_json)
