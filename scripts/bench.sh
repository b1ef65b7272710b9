#!/usr/bin/env bash
# All benchmarks, one after the other: tables on stderr, one JSON line each on stdout.
# usage: bench.sh [--quick]   quick: smaller runs, to see that they work rather than to publish figures
set -euo pipefail
cd "$(dirname "$0")/.."
gateway=() memory=() health=() admission=() bill=() routing=() regions=() herd=() engines=()
if [ "${1:-}" = --quick ]; then
  gateway=(--seconds 1 --repeats 1) memory=(--quick) health=(--seconds 5) admission=(--quick) bill=(--quick)
  routing=(--quick) regions=(--quick) herd=(--quick) engines=(--quick)
fi
# Each one is tried, so that one failure does not hide the figures of the others.
status=0
.venv/bin/python bench/gateway.py "${gateway[@]}" || status=$?
.venv/bin/python bench/memory.py "${memory[@]}" || status=$?
.venv/bin/python bench/health.py "${health[@]}" || status=$?
.venv/bin/python bench/admission.py "${admission[@]}" || status=$?
.venv/bin/python bench/bill.py "${bill[@]}" || status=$?
.venv/bin/python bench/routing.py "${routing[@]}" || status=$?
.venv/bin/python bench/regions.py "${regions[@]}" || status=$?
.venv/bin/python bench/herd.py "${herd[@]}" || status=$?
.venv/bin/python bench/engines.py "${engines[@]}" || status=$?
exit "$status"
