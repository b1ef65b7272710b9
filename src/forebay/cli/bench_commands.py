"""The command `bench`: its options and their help.  Imports as little as `main` does."""

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import BadOption, Outcome, guard


@guard
def bench(
    context: typer.Context,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="A deployment, a pool, a model or an address; or `compare A B`, two saved results.",
        ),
    ],
    concurrency: Annotated[
        str,
        typer.Option(
            "--concurrency", metavar="N,…", help="Closed loop: so many requests at once, level by level."
        ),
    ] = "",
    rate: Annotated[
        str,
        typer.Option(
            "--rate", metavar="PER_S,…", help="Open loop: so many requests a second, level by level."
        ),
    ] = "",
    arrival: Annotated[
        str, typer.Option("--arrival", metavar="HOW", help="In an open loop: poisson or constant.")
    ] = "poisson",
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests", min=1, max=100_000, help="Of each level; default 4 × the concurrency, 20 at least."
        ),
    ] = None,
    warm_up: Annotated[
        int | None, typer.Option("--warm-up", min=0, help="Requests before, which do not count.")
    ] = None,
    input_tokens: Annotated[int, typer.Option("--input-tokens", min=1, help="Of a prompt, roughly.")] = 128,
    output_tokens: Annotated[int, typer.Option("--output-tokens", min=1, help="Of an answer.")] = 64,
    prefix_tokens: Annotated[
        int, typer.Option("--prefix-tokens", min=0, help="Of a prompt, which all prompts share.")
    ] = 0,
    spread: Annotated[
        float, typer.Option("--spread", min=0.0, max=1.0, help="Share by which lengths differ.")
    ] = 0.0,
    dataset: Annotated[
        Path | None,
        typer.Option("--dataset", metavar="FILE", help="Real prompts: JSON lines, or ShareGPT's form."),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            "--slo", metavar="NAME=TIME", help="For goodput: ttft=500ms, tpot=50ms, e2el=5s; repeatable."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed asks the same, at the same times.")] = 0,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="The model's name there.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", envvar="FOREBAY_BENCH_KEY", help="Sent as a bearer token."),
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="PATH", help="chat/completions or completions.")
    ] = "chat/completions",
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=0.1, help="For one request.")] = 600.0,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos", help="Have answers as long as asked, where the engine can."
        ),
    ] = True,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw latency over throughput as SVG.")
    ] = None,
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="Keep the result in the data folder.")
    ] = True,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Measure a deployment, a pool, a model or an address under load; or compare two results.

    Without --concurrency and --rate, with 1, 4 and 16 requests at once.
    """
    from forebay.cli.bench import BenchOptions, compare_benches
    from forebay.cli.bench import bench as run_bench

    file = find_file(context, config)
    if what[0] == "compare":
        if len(what) != 3:
            raise BadOption("`compare` takes two results", hint="forebay bench compare A B")
        return compare_benches(file, what[1], what[2], as_json=as_json)
    if len(what) != 1:
        raise BadOption("one target at a time", hint="forebay bench TARGET, or forebay bench compare A B")
    if endpoint not in ("chat/completions", "completions"):
        raise BadOption(f"--endpoint {endpoint!r} is neither chat/completions nor completions")
    options = BenchOptions(
        concurrency=concurrency,
        rate=rate,
        arrival=arrival,
        requests=requests,
        warm_up=warm_up,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        prefix_tokens=prefix_tokens,
        spread=spread,
        dataset=dataset,
        slo=tuple(slo or ()),
        seed=seed,
        model=model,
        key=key,
        endpoint=endpoint,
        timeout_s=timeout_s,
        ignores_end=ignore_eos,
        plot=plot,
        saves=save,
        as_json=as_json,
    )
    return run_bench(file, what[0], options)
