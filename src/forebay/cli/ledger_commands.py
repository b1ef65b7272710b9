"""`forebay ledger`: its commands, their options and their help.  Imports as little as `main` does."""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

ledger_app = typer.Typer(
    help="How far back the ledger goes: show it, remove what is too old.", no_args_is_help=True
)


@ledger_app.command("show")
@guard
def ledger_show(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """Show what is kept, what was removed and what is too old.

    Records, and the totals of hours and days, each for as long as `ledger.retention` says.
    """
    from forebay.cli.ledger import show

    return show(find_file(context, config), as_json=as_json)


@ledger_app.command("compact")
@guard
def ledger_compact(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")
    ] = False,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Make the file anew as well: needs as much room again, and writers wait."
        ),
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Remove what is too old, and give the room back to the disk.

    What a running Forebay does by itself every ten minutes, at once. Bills stay as they are.
    """
    from forebay.cli.ledger import compact

    return compact(find_file(context, config), is_dry=dry_run, is_whole=whole, as_json=as_json)
