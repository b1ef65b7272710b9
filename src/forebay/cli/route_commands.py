"""The commands about routes, the fleet and deployments as objects: their options and their help.

Imports as little as `main` does.
"""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

route_app = typer.Typer(help="Routes: explain where a request would go.", no_args_is_help=True)


@route_app.command("explain")
@guard
def route_explain(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The name that callers use.")],
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="ID", help="Whose request it is, such as key_0123456789abcdef."),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option("--class", metavar="CLASS", help="interactive, standard or batch; default the key's."),
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="PATH", help="The path below /v1/.")
    ] = "chat/completions",
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Tokens of the prompt.")] = 0,
    needs: Annotated[
        list[str] | None,
        typer.Option(
            "--needs", metavar="WHAT", help="tools, images, audio, documents or json_schema; repeatable."
        ),
    ] = None,
    draw: Annotated[
        float, typer.Option("--draw", min=0.0, max=0.999999, help="The random number that decides.")
    ] = 0.5,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show which targets a request would be sent to, and why the others are none.

    Asks the Forebay that runs here. It decides by what its workers, engines and providers said of late.
    """
    from forebay.cli.route import Question, explain_route

    question = Question(
        model=model,
        key=key,
        priority=priority,
        endpoint=endpoint,
        tokens=tokens,
        needs=tuple(needs or ()),
        draw=draw,
    )
    return explain_route(find_file(context, config), question, as_json=as_json)


@guard
def fleet(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show the replicas of all pools: their state, what their engines say of their load, and their warm-up.

    Asks the Forebay that runs here.
    """
    from forebay.cli.fleet import show_fleet

    return show_fleet(find_file(context, config), is_watched=watch, as_json=as_json)


@guard
def render(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[DEPLOYMENT]...", help="Which; all without any.")
    ] = None,
    form: Annotated[
        str,
        typer.Option("--as", metavar="FORM", help="`kubernetes`, `kserve` or `kserve-llm`."),
    ] = "kubernetes",
    config: ConfigFile = None,
) -> Outcome:
    """Print deployments as objects of Kubernetes or KServe, in YAML.

    For whoever applies them by other means; `launcher: kubernetes` has Forebay do it.
    """
    from forebay.cli.render import render as run

    return run(find_file(context, config), names or [], form)
