"""Options that many commands share.  Imports nothing but Typer, as `main` does and why."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Use this file instead of ./forebay.yaml."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Mirrors = Annotated[
    bool, typer.Option("--mirrors", help="Count the copies that mirrors had, instead of requests.")
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="NAME=VALUE",
        help="Only of this key (its id), model, version, experiment, variant or tag:NAME; repeatable.",
    ),
]
Team = Annotated[str, typer.Option("--team", help="Team that the project belongs to.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", metavar="PATTERN", help="What may be called, such as `gpt-*`; repeatable."),
]
Endpoints = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="PATH", help="Such as `chat/completions`; repeatable."),
]
Regions = Annotated[
    list[str] | None,
    typer.Option("--region", metavar="NAME", help="Where requests may be sent; repeatable."),
]
TierMax = Annotated[
    str | None,
    typer.Option(
        "--tier-max",
        metavar="TIER",
        help="Last tier that requests may spill to: provisioned, autoscaled, quantized, provider.",
    ),
]
ContextMax = Annotated[
    int | None, typer.Option("--context-max", metavar="TOKENS", help="Longest prompt of a request.")
]
OutputMax = Annotated[
    int | None,
    typer.Option("--output-max", metavar="TOKENS", help="Longest output of a request, all choices together."),
]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="WHEN", help="After 90m, 24h, 7d, 2w, or at a date like 2027-01-31."),
]


def find_file(context: typer.Context, own: Path | None) -> Path | None:
    """The file named after the command, else the one named before it."""
    root = context.find_root().params.get("config")
    return own or (root if isinstance(root, Path) else None)
