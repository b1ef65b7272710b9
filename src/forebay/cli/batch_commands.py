"""`forebay batch`: its commands, their options and their help.  Imports as little as `main` does."""

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import Outcome, guard

batch_app = typer.Typer(help="Many requests that wait for idle capacity.", no_args_is_help=True)
BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch, as `forebay batch list` shows it.")]
Url = Annotated[
    str | None, typer.Option("--url", help="Gateway to talk to instead of the one that runs here.")
]
Key = Annotated[
    str | None,
    typer.Option("--key", help="Key to use instead of FOREBAY_API_KEY or the data folder's local.key."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until it has ended, and show how far it is.")]


@batch_app.command("submit")
@guard
def batch_submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="JSON lines, a request each.")],
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="What the requests are for, such as /v1/embeddings.")
    ] = "/v1/chat/completions",
    wait: Wait = False,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Upload a file of requests and begin a batch of it."""
    from forebay.cli.batch import open_batches

    batches = open_batches(find_file(context, config), url, key, as_json=as_json)
    return batches.submit(file, endpoint, wait=wait)


@batch_app.command("list")
@guard
def batch_list(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="How many, the newest first.")] = 20,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """List the batches of the key's project."""
    from forebay.cli.batch import open_batches

    return open_batches(find_file(context, config), url, key, as_json=as_json).list_newest(limit)


@batch_app.command("show")
@guard
def batch_show(
    context: typer.Context,
    id: BatchId,
    wait: Wait = False,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Show one batch: its state, its lines, its files, and what is wrong."""
    from forebay.cli.batch import open_batches

    return open_batches(find_file(context, config), url, key, as_json=as_json).show(id, wait=wait)


@batch_app.command("cancel")
@guard
def batch_cancel(
    context: typer.Context,
    id: BatchId,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """End a batch; what is answered already can be had."""
    from forebay.cli.batch import open_batches

    return open_batches(find_file(context, config), url, key, as_json=as_json).cancel(id)


@batch_app.command("results")
@guard
def batch_results(
    context: typer.Context,
    id: BatchId,
    errors: Annotated[bool, typer.Option("--errors", help="The lines that failed instead.")] = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
) -> Outcome:
    """Print the answers of a batch, JSON lines, in the order in which they came."""
    from forebay.cli.batch import open_batches

    return open_batches(find_file(context, config), url, key).results(id, errors=errors)
