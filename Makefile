# The commands of the project.  `make setup` once, then any of the others.
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup setup-bench setup-ray setup-vllm run test test-ray test-vllm bench lock clean
help:  ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## create .venv with all that `make run` and `make test` need
	@bash scripts/setup.sh main

setup-bench:  ## create .venv-bench with the peers that the benchmarks compare with
	@bash scripts/setup.sh bench

setup-ray:  ## create .venv-ray with Ray, for `make test-ray`
	@bash scripts/setup.sh ray

setup-vllm: .venv/ready  ## build vLLM's environment for this machine's processor, in .forebay
	@$(PY) -m forebay env build vllm-cpu

# In single quotes make needs no shell, which would stand between Ctrl-C or a signal to make and what runs.
run: .venv/ready  ## start everything on this machine, ask the embedded model one question, stay until Ctrl-C
	@$(PY) scripts/run.py up --ask 'What is the capital of France?'

test: .venv/ready  ## all that CI checks
	@bash scripts/test.sh

test-ray: setup-ray  ## replicas on a Ray cluster of two nodes, which is started here
	@.venv-ray/bin/python -m pytest tests/with_ray

test-vllm: .venv/ready  ## the tests with a real vLLM, which takes minutes to start; after make setup-vllm
	@FOREBAY_TEST_VLLM=1 .venv/bin/pytest -s tests/vllm

bench: .venv/ready setup-bench  ## the benchmarks, one JSON line each
	@bash scripts/bench.sh

lock:  ## pin the requirement files anew, with hashes
	@bash scripts/lock.sh

# Made anew when a pull has changed what is pinned.
.venv/ready: $(wildcard requirements/*.txt) tests/node/package-lock.json pyproject.toml scripts/setup.sh scripts/uv.py
	@bash scripts/setup.sh main

clean:  ## remove the environments and caches (not the data in .forebay)
	rm -rf .venv .venv-bench .venv-ray tests/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
