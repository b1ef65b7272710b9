"""`forebay inventory`: the command, its options and its help.  Imports as little as `main` does."""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard


@guard
def inventory(
    context: typer.Context,
    drifted: Annotated[
        bool, typer.Option("--drifted", help="Only what is not as its manifest asks.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show what runs where: models, engines with their versions, environments, hardware, and what has
    drifted.

    Asks the Forebay that runs here. With `--drifted`, exit status 1 if something has.
    """
    from forebay.cli.inventory import show_inventory

    return show_inventory(find_file(context, config), is_drifted=drifted, as_json=as_json)
