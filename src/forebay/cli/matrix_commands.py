"""`forebay matrix`: its commands, their options and their help.  Imports as little as `main` does."""

from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

matrix_app = typer.Typer(
    help="The version matrix: which combinations of model, engine and hardware were tried.",
    no_args_is_help=True,
)
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Public name of the model.")]
ModelVersion = Annotated[str, typer.Option("--model-version", metavar="VERSION", help="Of the model.")]
EngineKind = Annotated[str | None, typer.Option("--engine", metavar="KIND", help="Such as `vllm`.")]
EngineVersion = Annotated[str, typer.Option("--engine-version", metavar="VERSION", help="Of the engine.")]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", metavar="CLASS", help="Such as `cuda-h100`; without it that of this machine."),
]
Precision = Annotated[str, typer.Option("--precision", metavar="NAME", help="Such as `bf16`.")]


@matrix_app.command("list")
@guard
def matrix_list(
    context: typer.Context,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Only of this model.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All trials, not only the newest of each combination.")
    ] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """List combinations that were tried, with the newest outcome of each."""
    from forebay.cli.matrix import list_trials

    return list_trials(find_file(context, config), model=model, is_every=every, as_json=as_json)


@matrix_app.command("show")
@guard
def matrix_show(
    context: typer.Context,
    model: ModelName,
    engine: EngineKind = None,
    model_version: ModelVersion = "",
    engine_version: EngineVersion = "",
    hardware: Hardware = None,
    precision: Precision = "",
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Say whether a combination is tested, and if not, what is unknown of it.

    Exit status 1 where it is not tested.
    """
    from forebay.cli.matrix import make_combination, show

    wanted = make_combination(model, model_version, engine, engine_version, hardware, precision)
    return show(find_file(context, config), wanted, as_json=as_json)


@matrix_app.command("record")
@guard
def matrix_record(
    context: typer.Context,
    model: ModelName,
    outcome: Annotated[
        str | None,
        typer.Option("--outcome", metavar="WORD", help="`passed` or `failed`; with --bench what that says."),
    ] = None,
    bench: Annotated[
        str | None,
        typer.Option(
            "--bench",
            metavar="NAME",
            help="Take what is not given here from this result of `forebay bench`: its file, or its target "
            "for the newest.",
        ),
    ] = None,
    engine: EngineKind = None,
    model_version: ModelVersion = "",
    engine_version: EngineVersion = "",
    hardware: Hardware = None,
    precision: Precision = "",
    figure: Annotated[
        list[str] | None,
        typer.Option("--figure", metavar="NAME=NUMBER", help="What was measured; repeatable."),
    ] = None,
    environment: Annotated[
        str, typer.Option("--environment", metavar="DIGEST", help="The engine's environment.")
    ] = "",
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What else is to be known.")] = "",
    config: ConfigFile = None,
) -> Outcome:
    """Record that a combination was tried, and how it went."""
    from forebay.cli.matrix import Given, record

    return record(
        find_file(context, config),
        Given(
            model=model,
            outcome=outcome,
            bench=bench,
            engine=engine,
            model_version=model_version,
            engine_version=engine_version,
            hardware=hardware,
            precision=precision,
            figures=tuple(figure or ()),
            environment=environment,
            note=note,
        ),
    )


@matrix_app.command("forget")
@guard
def matrix_forget(context: typer.Context, model: ModelName, config: ConfigFile = None) -> Outcome:
    """Remove all trials of a model."""
    from forebay.cli.matrix import forget

    return forget(find_file(context, config), model)
