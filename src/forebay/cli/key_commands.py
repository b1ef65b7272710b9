"""`forebay keys`: its commands, their options and their help.  Imports as little as `main` does."""

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

keys_app = typer.Typer(help="Callers' keys: make, show, change, rotate, revoke.", no_args_is_help=True)
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The id that `forebay keys list` shows.")]


@keys_app.command("create")
@guard
def keys_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    project: Annotated[str, typer.Option("--project", help="Project that the usage belongs to.")] = "default",
    team: Team = "default",
    model: Models = None,
    endpoint: Endpoints = None,
    region: Regions = None,
    tier_max: TierMax = None,
    context_max: ContextMax = None,
    output_max: OutputMax = None,
    priority: Annotated[
        str,
        typer.Option("--priority", metavar="CLASS", help="Of its requests: interactive, standard or batch."),
    ] = "standard",
    expires: Expires = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Make a key and print it once: only its hash is kept.

    What is not limited here its project may limit; the narrower of both holds.
    """
    from forebay.cli.keys import NewKeyOptions, create
    from forebay.cli.tenancy import RightsOptions

    rights = RightsOptions(
        models=model,
        endpoints=endpoint,
        regions=region,
        tier_max=tier_max,
        context_max_tokens=context_max,
        output_max_tokens=output_max,
    )
    options = NewKeyOptions(
        name=name, project=project, team=team, rights=rights, priority=priority, expires=expires
    )
    return create(find_file(context, config), options, as_json=as_json)


@keys_app.command("list")
@guard
def keys_list(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List all keys, revoked ones too."""
    from forebay.cli.keys import list_keys

    return list_keys(find_file(context, config), as_json=as_json)


@keys_app.command("show")
@guard
def keys_show(
    context: typer.Context, key_id: KeyId, as_json: AsJson = False, config: ConfigFile = None
) -> Outcome:
    """Show one key with its rights and those of its project."""
    from forebay.cli.keys import show

    return show(find_file(context, config), key_id, as_json=as_json)


@keys_app.command("set")
@guard
def keys_set(
    context: typer.Context,
    key_id: KeyId,
    name: Annotated[str | None, typer.Option("--name", help="What the key is for.")] = None,
    model: Models = None,
    endpoint: Endpoints = None,
    region: Regions = None,
    tier_max: TierMax = None,
    context_max: ContextMax = None,
    output_max: OutputMax = None,
    priority: Annotated[
        str | None,
        typer.Option("--priority", metavar="CLASS", help="Of its requests: interactive, standard or batch."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="WHEN", help="After 90m, 24h, 7d, 2w, at a date like 2027-01-31, or never."
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Change what a key may do. What is not named stays; its project bounds it as before.

    An empty text, or 0 tokens, lifts a limit: `--region ""`.
    """
    from forebay.cli.keys import KeyChangeOptions, change
    from forebay.cli.tenancy import RightsOptions

    rights = RightsOptions(
        models=model,
        endpoints=endpoint,
        regions=region,
        tier_max=tier_max,
        context_max_tokens=context_max,
        output_max_tokens=output_max,
    )
    options = KeyChangeOptions(name=name, rights=rights, priority=priority, expires=expires)
    return change(find_file(context, config), key_id, options, as_json=as_json)


@keys_app.command("rotate")
@guard
def keys_rotate(
    context: typer.Context,
    key_id: KeyId,
    overlap: Annotated[
        str,
        typer.Option("--overlap", metavar="AGE", help="How long the old one still works: 0, 90m, 24h."),
    ] = "24h",
    expires: Expires = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Make a key in the place of another, with the same rights, and print it once.

    The old one ends with the overlap. Without `--expires` the new one ends when the old one would have.
    """
    from forebay.cli.keys import rotate

    return rotate(find_file(context, config), key_id, overlap=overlap, expires=expires, as_json=as_json)


@keys_app.command("revoke")
@guard
def keys_revoke(context: typer.Context, key_id: KeyId, config: ConfigFile = None) -> Outcome:
    """End a key: a running gateway refuses it within a second."""
    from forebay.cli.keys import revoke

    return revoke(find_file(context, config), key_id)
