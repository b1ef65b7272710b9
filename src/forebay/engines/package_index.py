"""Hands the package index that pip is set up for on to uv, which does not read pip's settings.

A machine behind a mirror would need each of them twice.  They are handed on in uv's environment variables
alone: never on a command line, where others can see a password, and never in a file.  A variable of uv's
own that is set already stays as it is.  Needs the standard library alone: it works before anything is
installed.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PIP_TIMEOUT_S: Final = 60.0
#: pip's scopes for what `pip install` reads, the strongest last.
SCOPES = ("global.", "install.", ":env:.")


def read_pip_settings(listing: str) -> dict[str, str]:
    """Settings by name, from the lines of `pip config list`: `SCOPE.NAME='VALUE'`."""
    settings: dict[str, str] = {}
    for scope in SCOPES:
        for line in listing.splitlines():
            name, is_setting, value = line.removeprefix(scope).partition("=")
            if line.startswith(scope) and is_setting:
                settings[name.lstrip(".")] = str(ast.literal_eval(value))
    return settings


def is_there(place: str) -> bool:
    """Whether a folder exists; any other address is taken to.  pip passes an absent one by, uv fails."""
    return "://" in place.removeprefix("file://") or Path(place.removeprefix("file://")).exists()


def translate(settings: Mapping[str, str]) -> dict[str, str]:
    """uv's environment variables for pip's settings."""
    indexes = [place for place in settings.get("extra-index-url", "").split() if is_there(place)]
    links = [place for place in settings.get("find-links", "").split() if is_there(place)]
    timeout = settings.get("timeout", settings.get("default-timeout", ""))
    variables = {
        "UV_DEFAULT_INDEX": settings.get("index-url", ""),
        "UV_INDEX": " ".join(indexes),
        # pip takes a version from any of its indexes; the hashes say that it is the right one.
        "UV_INDEX_STRATEGY": "unsafe-best-match" if indexes else "",
        "UV_FIND_LINKS": ",".join(links),
        "UV_INSECURE_HOST": settings.get("trusted-host", ""),
        "UV_HTTP_TIMEOUT": timeout if timeout.isdecimal() else "",
        "SSL_CERT_FILE": settings.get("cert", ""),
        "HTTPS_PROXY": settings.get("proxy", ""),
    }
    return {name: value for name, value in variables.items() if value}


def load_pip_settings() -> dict[str, str]:
    """What pip would go by here; nothing where this Python has no pip."""
    try:
        listing = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            check=True,
            timeout=PIP_TIMEOUT_S,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return read_pip_settings(listing)


def compose_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of uv."""
    given = {name: value for name, value in os.environ.items() if value}
    return {**translate(settings), **given}


def list_options(settings: Mapping[str, str]) -> list[str]:
    """What uv has no variable for."""
    is_alone = settings.get("no-index", "").casefold() in ("1", "true", "yes", "on")
    return ["--no-index"] if is_alone else []
