"""`forebay models`: its commands, their options and their help.  Imports as little as `main` does."""

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

models_app = typer.Typer(
    help="The registry: versions of models, their aliases and tags, for deployments to name.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the registered model.")]
Reference = Annotated[str, typer.Argument(metavar="REFERENCE", help="Such as `chat@3` or `chat@champion`.")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="NAME=VALUE", help="Something to know it by; repeatable."),
]
Description = Annotated[
    str | None, typer.Option("--description", metavar="TEXT", help="What it is, in words.")
]


@models_app.command("register")
@guard
def models_register(
    context: typer.Context,
    name: Name,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A file such as a GGUF, or a folder with all its files.")
    ],
    alias: Annotated[
        str, typer.Option("--alias", metavar="ALIAS", help="Have this alias mean it from now on.")
    ] = "",
    tags: Tags = None,
    description: Description = None,
    link: Annotated[
        bool,
        typer.Option(
            "--link",
            help="Give the files further names instead of copying them: nobody may write to them again.",
        ),
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Make a version of what lies at a path, with the next number of that name.

    What is there already under the same name keeps its number. Nothing is left of one that does not succeed.
    """
    from forebay.cli.models import RegisterOptions, register

    options = RegisterOptions(
        name=name,
        path=path,
        alias=alias,
        tags=tags or (),
        description=description,
        link=link,
        as_json=as_json,
    )
    return register(find_file(context, config), options)


@models_app.command("list")
@guard
def models_list(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List registered models, with their newest version and their aliases."""
    from forebay.cli.models import list_models

    return list_models(find_file(context, config), as_json=as_json)


@models_app.command("show")
@guard
def models_show(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REFERENCE", help="A model, such as `chat`, or one version, such as `chat@3`."
        ),
    ],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show the versions of a model, or one of them: its content, who made it, who uses it."""
    from forebay.cli.models import show

    return show(find_file(context, config), reference, as_json=as_json)


@models_app.command("edit")
@guard
def models_edit(
    context: typer.Context,
    reference: Reference,
    tags: Tags = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--untag", metavar="NAME", help="Take this tag away; repeatable."),
    ] = None,
    description: Description = None,
    config: ConfigFile = None,
) -> Outcome:
    """Say something else of a version. Its content never changes."""
    from forebay.cli.models import edit

    return edit(
        find_file(context, config), reference, tags=tags or (), without=without or (), description=description
    )


@models_app.command("alias")
@guard
def models_alias(
    context: typer.Context,
    name: Name,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as `champion`.")],
    version: Annotated[
        int | None,
        typer.Argument(metavar="VERSION", min=1, help="That it is to mean; without it: what it has meant."),
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Have it mean what it meant before.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take it away; its history stays.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Have an alias mean another version, or show which it has meant.

    What runs stays as it was applied: `forebay diff` shows what the alias means now, `forebay apply` rolls it
    out.
    """
    from forebay.cli.models import AliasChange, change_alias

    change = AliasChange(name=name, alias=alias, version=version, rollback=rollback, remove=remove)
    return change_alias(find_file(context, config), change, as_json=as_json)


@models_app.command("verify")
@guard
def models_verify(
    context: typer.Context,
    reference: Annotated[
        str | None, typer.Argument(metavar="REFERENCE", help="Only this version, or those of this model.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """See whether the contents on this machine are still those that were registered.

    Reads all of their files; exit status 1 if one is changed, missing or added.
    """
    from forebay.cli.models_care import verify

    return verify(find_file(context, config), reference, as_json=as_json)


@models_app.command("delete")
@guard
def models_delete(context: typer.Context, reference: Reference, config: ConfigFile = None) -> Outcome:
    """Forget a version that no alias means and no deployment uses.

    Its number is not given again. Its content goes with the next `forebay models gc`.
    """
    from forebay.cli.models import delete

    return delete(find_file(context, config), reference)


@models_app.command("gc")
@guard
def models_gc(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this it is only shown.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Remove contents from this machine that no version has.

    Only shows what would go, unless `--yes` is given.
    """
    from forebay.cli.models_care import collect_garbage

    return collect_garbage(find_file(context, config), is_meant=yes, as_json=as_json)
