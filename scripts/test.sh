#!/usr/bin/env bash
# All that CI checks; ends with pytest's summaries.  Arguments go to pytest.
# Most tests wait for sockets and processes more than they compute, so without arguments parts of them run side by
# side, each in a process of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
step() { printf '\033[1m== %s\033[0m\n' "$*"; }
step ruff;         ruff check .
                   ruff format --check .
step mypy;         mypy
step import-linter; lint-imports
if [ $# -gt 0 ]; then step pytest; exec pytest "$@"; fi

at_once=3
# What takes longest begins first, so that all end at about the same time.  The last part is whatever no other names.
named=(tests/e2e tests/app tests/gateway tests/cli tests/ledger tests/store tests/engines tests/net)
parts=(
  "tests/e2e"
  "tests/app"
  "tests/gateway/test_[a-c]*.py"
  "tests/gateway/test_[d-h]*.py"
  "tests/cli"
  "tests/gateway/test_[i-r]*.py"
  "tests/gateway/test_[!a-r]*.py"
  "tests/ledger tests/store"
  "tests/engines tests/net"
  "tests ${named[*]/#/--ignore=}"
)
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$logs"' EXIT
run_part() {  # NUMBER; tells all when it has ended, and leaves its exit status
  local code=0
  # shellcheck disable=SC2086 - the words of a part
  pytest -p no:cacheprovider ${parts[$1]} >"$logs/$1" 2>&1 </dev/null &
  trap "kill $! 2>/dev/null; exit 143" TERM
  wait $! || code=$?
  { step "pytest ${parts[$1]}"; cat "$logs/$1"; } >"$logs/$1.shown"
  cat "$logs/$1.shown"
  echo "$code" >"$logs/$1.code"
}
step "pytest: ${#parts[@]} parts, $at_once at once"
for number in "${!parts[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n || true; done
  run_part "$number" &
done
wait
failed=0
step "pytest: all parts"
for number in "${!parts[@]}"; do
  [ "$(cat "$logs/$number.code" 2>/dev/null)" = 0 ] || failed=1
  grep -hE '^(FAILED|ERROR) ' "$logs/$number" || true
  printf '%s: %s\n' "${parts[$number]}" "$(tail -n 1 "$logs/$number")"
done
exit $failed
