"""The commands about deployments: their options and their help.

Imports as little as `main` does.
"""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

Files = Annotated[
    list[str],
    typer.Option(
        "--file",
        "-f",
        metavar="PLACE",
        help="Manifest file, folder of such files (.yaml, .yml), or `-` for standard input; repeatable.",
    ),
]
AllowUntested = Annotated[
    bool,
    typer.Option(
        "--allow-untested", help="Run also what the version matrix does not know, and say what is unknown."
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until the change has ended or was stopped.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long `--wait` waits.")
]
Name = Annotated[str, typer.Argument(help="Name of the deployment.")]


@guard
def apply(
    context: typer.Context,
    places: Files,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and say what would change; change nothing.")
    ] = False,
    allow_untested: AllowUntested = False,
    wait: Wait = False,
    timeout_s: Timeout = 900.0,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Have deployments run as manifests say: all of them, or none where one has a mistake.

    A running Forebay takes the change within a second, another one when it starts. Replicas are replaced as
    the manifest's `rollout` says.
    """
    from forebay.cli.deploy import ApplyOptions, apply

    options = ApplyOptions(
        dry_run=dry_run, allow_untested=allow_untested, wait=wait, timeout_s=timeout_s, as_json=as_json
    )
    return apply(find_file(context, config), places, options)


@guard
def diff(
    context: typer.Context, places: Files, as_json: AsJson = False, config: ConfigFile = None
) -> Outcome:
    """Show what `apply` would change, setting by setting.

    Exit status 1 if anything would.
    """
    from forebay.cli.deploy import diff

    return diff(find_file(context, config), places, as_json=as_json)


@guard
def deployments(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Only this one, with its replicas.")] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Show what was applied under the name, and by whom.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show what is deployed, how much of it serves, and what the last change has come to."""
    from forebay.cli.deployments import show_all, show_history, show_one

    file = find_file(context, config)
    if history:
        return show_history(file, name, as_json=as_json)
    return show_all(file, as_json=as_json) if name is None else show_one(file, name, as_json=as_json)


@guard
def rollback(
    context: typer.Context,
    name: Name,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="GENERATION",
            min=1,
            help="Which one, of `forebay deployments NAME --history`; without it the last that was another.",
        ),
    ] = None,
    wait: Wait = False,
    timeout_s: Timeout = 900.0,
    config: ConfigFile = None,
) -> Outcome:
    """Have a deployment run again as it did before; it is rolled out as any other change."""
    from forebay.cli.deploy import roll_back

    return roll_back(find_file(context, config), name, to=to, wait=wait, timeout_s=timeout_s)


@guard
def delete(context: typer.Context, name: Name, config: ConfigFile = None) -> Outcome:
    """End a deployment that was applied.

    Its replicas end once the answers in flight have left; its history stays.
    """
    from forebay.cli.deploy import delete

    return delete(find_file(context, config), name)
