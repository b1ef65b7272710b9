"""The commands, their options and their help: the tree that `docs/cli.md` describes.

Nothing but Typer is imported here at the top: `forebay --help` and completion must be quick, so every command
imports its own module when it runs.  That is the one exception to imports at the top; this file and those
that it takes commands from (`*_commands`) are its only place.

Exit status: 0 all went well, 1 there is a problem, 2 the command was not used rightly, 130 Ctrl-C.
"""

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.alert_commands import alerts_app
from forebay.cli.batch_commands import batch_app
from forebay.cli.bench_commands import bench
from forebay.cli.deployment_commands import apply, delete, deployments, diff, rollback
from forebay.cli.env_commands import env_app
from forebay.cli.inventory_command import inventory
from forebay.cli.key_commands import keys_app
from forebay.cli.ledger_commands import ledger_app
from forebay.cli.log_commands import logs
from forebay.cli.matrix_commands import matrix_app
from forebay.cli.models_commands import models_app
from forebay.cli.options import AsJson, ConfigFile, Mirrors, Where, find_file
from forebay.cli.route_commands import fleet, render, route_app
from forebay.cli.signal_commands import signals_app
from forebay.cli.simulate_commands import simulate
from forebay.cli.tenancy_commands import audit, projects_app, teams_app, tokens_app
from forebay.cli.terminal import Outcome, guard, is_plain, make_streams_lenient, print_error

app = typer.Typer(
    name="forebay",
    help="AI inference at scale over your own machines and the clouds, behind one gateway.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None if is_plain() else "markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Check and show forebay.yaml.", no_args_is_help=True)
app.add_typer(config_app, name="config")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from forebay.version import __version__

        typer.echo(f"forebay {__version__}")
        raise typer.Exit


@app.callback()
def main(
    config: ConfigFile = None,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """One gateway on one machine, in front of every model that you run there or rent elsewhere."""


@app.command()
@guard
def up(
    context: typer.Context,
    config: ConfigFile = None,
    ask: Annotated[
        str | None,
        typer.Option(metavar="QUESTION", help="Ask this through the gateway once everything is ready."),
    ] = None,
) -> int:
    """Start everything here and stay until Ctrl-C.

    Stays in the foreground. SIGTERM or Ctrl-C lets requests in flight finish, within a deadline.
    """
    from forebay.cli.up import up

    return up(find_file(context, config), ask)


@app.command()
@guard
def chat(
    context: typer.Context,
    message: Annotated[
        str | None,
        typer.Argument(help="What to say; `-` reads it from standard input. Without it: a conversation."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Public name of the model.")] = None,
    system: Annotated[
        str, typer.Option("--system", "-s", help="System message; an empty one sends none.")
    ] = "You are a helpful assistant.",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="End the answer after so many tokens.")
    ] = 1000,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0,
            max=2,
            help="0 is the most certain answer. Without it 0.2 for models on this machine, else theirs.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Gateway to talk to instead of the one that runs here.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Key to use instead of FOREBAY_API_KEY or the data folder's local.key."),
    ] = None,
    config: ConfigFile = None,
) -> Outcome:
    """Talk to a model through the running gateway.

    The answer comes as it is made. Without a message, and in a terminal, it is a conversation.
    """
    from forebay.cli.chat import ChatOptions, chat

    return chat(
        ChatOptions(
            config_file=find_file(context, config),
            message=message,
            model=model,
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
            url=url,
            key=key,
        )
    )


@app.command()
@guard
def usage(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="LIST",
            help="Group by key, model, hour, day, target, status, team, project, pool, tier, region, "
            "kind, version, experiment, variant, tag:NAME.",
        ),
    ] = "key,model",
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="AGE", help="How far back: 90m, 24h, 7d, 2w, all, or from a date on."
        ),
    ] = "24h",
    where: Where = None,
    mirrors: Mirrors = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="First add the totals up anew, from the records.")
    ] = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show tokens by key, model and hour.

    A row for each key and model, with a line that shows its hours; `--by key,model,hour` gives every hour a
    row. Current to the second, whether Forebay runs or not. Hours and days are UTC.
    """
    from forebay.cli.usage import usage

    return usage(
        find_file(context, config),
        by=by,
        since=since,
        where=where or (),
        mirrors=mirrors,
        as_json=as_json,
        as_csv=as_csv,
        rebuild=rebuild,
    )


@app.command()
@guard
def bill(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="LIST",
            help="Tell apart by team, project, key, model, pool, tier, region, kind, version, experiment, "
            "variant, day, tag:NAME.",
        ),
    ] = "team,project,model",
    month: Annotated[
        str | None, typer.Option("--month", metavar="MONTH", help="Such as 2026-11. Without it: this month.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DATE", help="Begin at this date instead.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="DATE", help="End before this date instead.")
    ] = None,
    where: Where = None,
    mirrors: Mirrors = False,
    as_json: AsJson = False,
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write CSV; `-` is standard output.")
    ] = None,
    parquet_file: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="Write Parquet; needs pyarrow.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="First price the records of this time anew.")
    ] = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show what the requests of a month cost.

    By the prices in forebay.yaml that were in force when each request began. What has no price is unknown,
    and in no sum. Months and days are UTC.
    """
    from forebay.cli.bill import BillOptions, bill

    return bill(
        BillOptions(
            config_file=find_file(context, config),
            by=by,
            month=month,
            since=since,
            until=until,
            where=where or (),
            mirrors=mirrors,
            as_json=as_json,
            csv_file=csv_file,
            parquet_file=parquet_file,
            recompute=recompute,
        )
    )


@app.command()
@guard
def mirrors(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Only requests of this model; default: all.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="AGE", help="How far back: 90m, 24h, 7d, 2w, all, or from a date on."
        ),
    ] = "24h",
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    config: ConfigFile = None,
) -> Outcome:
    """Compare mirrors with the requests that they had copies of.

    Error rates, times, tokens and costs of both sides. Current to the second, whether Forebay runs or not.
    """
    from forebay.cli.mirrors import mirrors

    return mirrors(find_file(context, config), model=model, since=since, as_json=as_json, as_csv=as_csv)


@app.command()
@guard
def prices(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """List the prices in force and to come.

    Those of forebay.yaml, and the list prices that come with Forebay where it asks for them.
    """
    from forebay.cli.prices import prices

    return prices(find_file(context, config), as_json=as_json)


@app.command()
@guard
def limits(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """Show what is left of each limit, the tightest first.

    Asks the Forebay that runs here.
    """
    from forebay.cli.limits import show_limits

    return show_limits(find_file(context, config), as_json=as_json)


@app.command()
@guard
def restart(context: typer.Context, config: ConfigFile = None) -> Outcome:
    """Start the workers of the Forebay that runs here anew, one after the other.

    Each new one is ready before its predecessor drains, so no request fails.
    """
    from forebay.cli.restart import restart

    return restart(find_file(context, config))


@app.command()
@guard
def doctor(context: typer.Context, as_json: AsJson = False, config: ConfigFile = None) -> Outcome:
    """See whether all that Forebay needs is there.

    Says how to mend what is not; exit status 1 if something failed.
    """
    from forebay.cli.doctor import doctor

    return doctor(find_file(context, config), as_json=as_json)


@app.command()
@guard
def version() -> Outcome:
    """Print the version."""
    from forebay.version import __version__

    typer.echo(f"forebay {__version__}")
    return Outcome.OK


@config_app.command("check")
@guard
def config_check(context: typer.Context, config: ConfigFile = None) -> Outcome:
    """Report every mistake in forebay.yaml at once.

    Each with file, line, key, what is wrong and how to mend it; exit status 1 if there is one.
    """
    from forebay.cli.config import check

    return check(find_file(context, config))


@config_app.command("show")
@guard
def config_show(context: typer.Context, config: ConfigFile = None) -> Outcome:
    """Print all settings as they apply, defaults included."""
    from forebay.cli.config import show

    return show(find_file(context, config))


@config_app.command("schema")
@guard
def config_schema() -> Outcome:
    """Print the JSON schema of forebay.yaml, for editors."""
    from forebay.cli.config import schema

    return schema()


app.add_typer(batch_app, name="batch")
app.add_typer(keys_app, name="keys")
app.add_typer(signals_app, name="signals")
app.add_typer(teams_app, name="teams")
app.add_typer(projects_app, name="projects")
app.add_typer(ledger_app, name="ledger")
app.add_typer(tokens_app, name="tokens")
app.command()(audit)
app.add_typer(alerts_app, name="alerts")
app.add_typer(route_app, name="route")
app.add_typer(env_app, name="env")
app.add_typer(matrix_app, name="matrix")
app.add_typer(models_app, name="models")
app.command()(fleet)
app.command()(render)
app.command()(bench)
app.command()(simulate)
app.command()(logs)
for command in (apply, diff, deployments, rollback, delete):
    app.command()(command)
app.command()(inventory)


def run() -> None:
    """The entry point."""
    make_streams_lenient()
    try:
        app()
    except KeyboardInterrupt:  # while a command's module was still being imported
        raise SystemExit(Outcome.INTERRUPTED) from None
    except OSError as error:  # while help was printed
        print_error(f"{error.filename or 'input or output'}: {error.strerror or error}")
        raise SystemExit(Outcome.PROBLEM) from None
