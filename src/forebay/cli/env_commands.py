"""`forebay env`: its commands, their options and their help.  Imports as little as `main` does."""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

env_app = typer.Typer(
    help="Environments of engines: built once from pinned packages, checked, shared by replicas.",
    no_args_is_help=True,
)
Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="Its digest, or how that begins.")]


@env_app.command("list")
@guard
def env_list(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List environments and the recipes that there are.

    With their size, when they were used last, and who uses them now.
    """
    from forebay.cli.env import list_environments

    return list_environments(find_file(context, config), as_json=as_json)


@env_app.command("build")
@guard
def env_build(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Such as `vllm-cpu`.")],
    no_smoke: Annotated[
        bool, typer.Option("--no-smoke", help="Do not start the engine to see that it answers.")
    ] = False,
    config: ConfigFile = None,
) -> Outcome:
    """Build the environment of a recipe, unless it is there.

    uv installs exactly what the recipe pins, and the engine in it has to answer a request before it counts.
    Prints the digest.
    """
    from forebay.cli.env import build

    return build(find_file(context, config), recipe, is_smoked=not no_smoke)


@env_app.command("show")
@guard
def env_show(
    context: typer.Context, digest: Digest, as_json: AsJson = False, config: ConfigFile = None
) -> Outcome:
    """Show one environment: what is in it, how it was built, who uses it."""
    from forebay.cli.env import show

    return show(find_file(context, config), digest, as_json=as_json)


@env_app.command("verify")
@guard
def env_verify(
    context: typer.Context,
    digest: Annotated[
        str | None,
        typer.Argument(
            metavar="DIGEST", help="Its digest, or how that begins; without it all are looked at."
        ),
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """See whether the files of environments are still those that were installed.

    By the hashes that packages have of their files; exit status 1 if one is changed, missing or added.
    """
    from forebay.cli.env import verify

    return verify(find_file(context, config), digest, as_json=as_json)


@env_app.command("gc")
@guard
def env_gc(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this it is only shown.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Remove environments that nobody uses and no deployment names.

    Only shows what would go, unless `--yes` is given.
    """
    from forebay.cli.env import collect_garbage

    return collect_garbage(find_file(context, config), is_meant=yes, as_json=as_json)


@env_app.command("dockerfile")
@guard
def env_dockerfile(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Such as `vllm-cpu`.")],
) -> Outcome:
    """Print a Dockerfile with the same packages and repairs as a recipe."""
    from forebay.cli.env import print_dockerfile

    return print_dockerfile(recipe)
