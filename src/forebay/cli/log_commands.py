"""`forebay logs`, as Typer sees it.  What it does is in `logs`, which is imported only when it runs."""

from typing import Annotated

import typer

from forebay.cli.options import ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard


@guard
def logs(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A deployment or a replica; without, both are listed."),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=5000, help="So many, the newest.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show what replicas of a deployment have written, also those that are gone.

    Asks the Forebay that runs here; where none does, shows what its last run left on this machine.
    """
    from forebay.cli.logs import show_logs

    return show_logs(find_file(context, config), name, lines=lines, is_followed=follow)
