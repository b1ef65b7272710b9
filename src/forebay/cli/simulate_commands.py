"""The command `simulate`: its options and their help.  Imports as little as `main` does."""

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.options import AsJson, ConfigFile, find_file
from forebay.cli.terminal import BadOption, Outcome, guard


@guard
def simulate(
    context: typer.Context,
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A model; or `calibrate RESULT`, a file of `forebay bench` or a target with one.",
        ),
    ],
    rate: Annotated[
        str,
        typer.Option("--rate", metavar="PER_S,…", help="So many requests a second come, level by level."),
    ] = "",
    duration_s: Annotated[
        float, typer.Option("--duration-s", min=0.1, max=604_800, help="For which they come.")
    ] = 60.0,
    ramp_s: Annotated[
        float, typer.Option("--ramp-s", min=0.0, help="In which the rate grows from none to all of it.")
    ] = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="A recorded load instead: CSV or JSON lines."),
    ] = None,
    input_tokens: Annotated[int, typer.Option("--input-tokens", min=1, help="Of a prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option("--output-tokens", min=1, help="Of an answer.")] = 64,
    spread: Annotated[
        float, typer.Option("--spread", min=0.0, max=1.0, help="Share by which lengths differ.")
    ] = 0.0,
    priority: Annotated[
        str, typer.Option("--class", metavar="CLASS", help="interactive, standard or batch.")
    ] = "standard",
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="POOL=RESULT",
            help="The benchmark that says how fast a pool is, a file or a target; repeatable.",
        ),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--replicas", metavar="POOL=N", help="As if a pool had so many; repeatable."),
    ] = None,
    slo: Annotated[
        str,
        typer.Option("--slo", metavar="NAME=MOST,…", help="Such as ttft_p99=500ms,tpot_p99=50ms,refused=1%."),
    ] = "",
    find_replicas: Annotated[
        str | None,
        typer.Option("--find-replicas", metavar="POOL", help="Find the least replicas that meet --slo."),
    ] = None,
    hold_out: Annotated[
        str,
        typer.Option(
            "--hold-out", metavar="N,…", help="With calibrate: levels that are predicted, not fitted."
        ),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same.")] = 0,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw latency over throughput as SVG.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> Outcome:
    """Say how a fleet would do under a load, without sending any; or calibrate with a benchmark.

    The gateway's own policies choose; engines are arithmetic, as fast as `forebay bench` saw them.
    Exit status 1 where --slo is not met.
    """
    from forebay.cli.simulate import SimulateOptions, calibrate, simulate

    file = find_file(context, config)
    if what[0] == "calibrate":
        if len(what) != 2:
            raise BadOption("`calibrate` takes one result", hint="forebay simulate calibrate RESULT")
        return calibrate(file, what[1], hold_out=hold_out, as_json=as_json)
    if len(what) != 1:
        raise BadOption("one model at a time", hint="forebay simulate MODEL; a --trace may name several")
    options = SimulateOptions(
        rate=rate,
        duration_s=duration_s,
        ramp_s=ramp_s,
        trace=trace,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        spread=spread,
        priority=priority,
        profile=tuple(profile or ()),
        replicas=tuple(replicas or ()),
        slo=slo,
        find_replicas=find_replicas,
        seed=seed,
        plot=plot,
        as_json=as_json,
    )
    return simulate(file, what[0], options)
