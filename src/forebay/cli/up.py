"""`forebay up`: reads the configuration and hands over to the supervisor."""

from pathlib import Path

from forebay.app.config import load_config
from forebay.app.up import run_up


def up(file: Path | None, ask: str | None) -> int:
    """The exit status, once all of it has ended."""
    return run_up(load_config(file), ask=ask)
