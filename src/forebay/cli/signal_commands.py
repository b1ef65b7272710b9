"""`forebay signals`: its commands, their options and their help.  Imports as little as `main` does."""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, Team, find_file
from forebay.cli.terminal import Outcome, guard

signals_app = typer.Typer(
    help="Load that applications report, for limits that follow it.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="The signal, by the name that `limits.signals` gives it.")]
Project = Annotated[str, typer.Option("--project", help="Project whose load it is.")]


@signals_app.command("list")
@guard
def signals_list(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List what was reported last, for every project."""
    from forebay.cli.signals import list_signals

    return list_signals(find_file(context, config), as_json=as_json)


@signals_app.command("set")
@guard
def signals_set(
    context: typer.Context,
    name: Name,
    value: Annotated[float, typer.Argument(help="What there is now, from 0 on.")],
    project: Project = "default",
    team: Team = "default",
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl", metavar="AGE", help="How long it holds: 90s, 5m, 2h; else as `limits.signals` says."
        ),
    ] = None,
    config: ConfigFile = None,
) -> Outcome:
    """Report a signal, as an application does."""
    from forebay.cli.signals import set_signal

    return set_signal(find_file(context, config), (team, project, name), value, ttl)


@signals_app.command("remove")
@guard
def signals_remove(
    context: typer.Context,
    name: Name,
    project: Project = "default",
    team: Team = "default",
    config: ConfigFile = None,
) -> Outcome:
    """Forget a signal, as if it had never been reported."""
    from forebay.cli.signals import remove_signal

    return remove_signal(find_file(context, config), (team, project, name))
