#!/usr/bin/env bash
# All that CI checks; ends with pytest's summaries.  Arguments go to pytest.
# Most tests wait for sockets and processes more than they compute, so without arguments parts of them run side by
# side, each in a process of its own.  What fails beside others is asked once more when all have ended, alone: many
# tests start processes and wait for them, and a machine that stands still for seconds can spoil any of them.  The
# summary names each; more than `again_most` of them are no accident, and nor is one that fails again.
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
again_most=3
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
  pytest -o "cache_dir=$logs/cache-$1" ${parts[$1]} >"$logs/$1" 2>&1 </dev/null &
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
failed=0 again=() count=0
for number in "${!parts[@]}"; do
  case "$(cat "$logs/$number.code" 2>/dev/null)" in
    0) ;;
    1) again+=("$number"); count=$((count + $(grep -cE "^(FAILED|ERROR) " "$logs/$number" || true))) ;;
    *) failed=1 ;;
  esac
done
if [ ${#again[@]} -gt 0 ] && [ $failed = 0 ] && [ $count -gt 0 ] && [ $count -le $again_most ]; then
  step "pytest: once more, alone"
  for number in "${again[@]}"; do
    # shellcheck disable=SC2086 - the words of a part
    pytest -o "cache_dir=$logs/cache-$number" --last-failed --last-failed-no-failures none ${parts[$number]} \
      </dev/null || failed=1
  done
  [ $failed = 1 ] || passed_again=" (passed alone)"
elif [ ${#again[@]} -gt 0 ]; then
  failed=1
fi
step "pytest: all parts"
for number in "${!parts[@]}"; do
  grep -hE '^(FAILED|ERROR) ' "$logs/$number" | sed "s/\$/${passed_again:-}/" || true
  printf '%s: %s\n' "${parts[$number]}" "$(tail -n 1 "$logs/$number")"
done
[ -z "${passed_again:-}" ] || printf '%d failed beside others and passed alone: mend them\n' "$count"
exit $failed
