"""Runs uv in this environment with the package index that pip is set up for: see
`forebay.engines.package_index`.

It works before anything is installed, Forebay itself included.

usage: .venv/bin/python scripts/uv.py UV-ARGUMENT...
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from forebay.engines.package_index import (
    compose_environment,
    list_options,
    load_pip_settings,
    read_pip_settings,
    translate,
)

__all__ = ["read_pip_settings", "translate"]


def main() -> None:
    settings = load_pip_settings()
    program = str(Path(sys.prefix, "bin", "uv"))
    os.execve(
        program,
        [program, *sys.argv[1:], *list_options(settings)],
        {**compose_environment(settings), "VIRTUAL_ENV": sys.prefix},
    )


if __name__ == "__main__":
    main()
