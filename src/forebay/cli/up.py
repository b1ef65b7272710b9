"""`forebay up`: reads the configuration and hands over to the supervisor."""

from pathlib import Path

from forebay.app.config import load_config
from forebay.app.up import run_up
from forebay.cli.terminal import Outcome


def up(file: Path | None, ask: str | None) -> Outcome:
    return Outcome(run_up(load_config(file), ask=ask))
