"""The commands about alerts: their options and their help.

Imports as little as `main` does.
"""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

alerts_app = typer.Typer(help="Alerts of limits: list them, test the webhooks.", no_args_is_help=True)


@alerts_app.command("list")
@guard
def alerts_list(
    context: typer.Context,
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="OWNER", help="Only of this owner, such as `team growth`."),
    ] = None,
    event: Annotated[
        str | None,
        typer.Option(
            "--event",
            metavar="KIND",
            help="Only of this kind: share_reached, exceeded, grace_entered, grace_ended.",
        ),
    ] = None,
    delivery: Annotated[
        str | None,
        typer.Option(
            "--delivery",
            metavar="STATE",
            help="Only those of which a delivery is waiting, delivered or failed.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many, at most.")] = 50,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """List what was told of limits, the newest first, and whether it has reached the webhooks."""
    from forebay.cli.alerts import AlertOptions, list_alerts

    options = AlertOptions(owner=owner, event=event, delivery=delivery, limit=limit, as_json=as_json)
    return list_alerts(find_file(context, config), options)


@alerts_app.command("test")
@guard
def alerts_test(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """Send a test event to each webhook and show what came back.

    Asks the Forebay that runs here; exit status 1 if one did not arrive.
    """
    from forebay.cli.alerts import test_webhooks

    return test_webhooks(find_file(context, config), as_json=as_json)
