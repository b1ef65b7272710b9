#!/usr/bin/env bash
# All that CI checks; ends with pytest's summary.  Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
step() { printf '\033[1m== %s\033[0m\n' "$*"; }
step ruff;         ruff check .
                   ruff format --check .
step mypy;         mypy
step import-linter; lint-imports
step pytest;       exec pytest "$@"
