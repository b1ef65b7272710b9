#!/usr/bin/env bash
# All that CI checks; ends with pytest's summaries.  Arguments go to pytest.
# Most tests wait for sockets and processes more than they compute, so without arguments two halves run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
step() { printf '\033[1m== %s\033[0m\n' "$*"; }
step ruff;         ruff check .
                   ruff format --check .
step mypy;         mypy
step import-linter; lint-imports
if [ $# -gt 0 ]; then step pytest; exec pytest "$@"; fi
half=(tests/gateway tests/providers tests/net)
log=$(mktemp)
other=0
trap '[ "$other" = 0 ] || kill "$other" 2>/dev/null || true; rm -f "$log"' EXIT
step "pytest: ${half[*]} beside all others"
pytest -p no:cacheprovider "${half[@]}" >"$log" 2>&1 </dev/null &
other=$!
failed=0
pytest "${half[@]/#/--ignore=}" || failed=1
wait "$other" || failed=1
step "pytest: ${half[*]}"
cat "$log"
exit $failed
