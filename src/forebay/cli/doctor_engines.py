"""Checks of the engines that the configuration starts: can they be loaded, and are their weights there."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from forebay.app.config import Config
from forebay.app.config_model import EngineConfig, LlamaCppEngine
from forebay.cli.finding import Finding, Verdict
from forebay.engines.model import EngineRefused
from forebay.engines.weights import MINILM_ONNX, MINILM_TOKENIZER, find_gguf, find_packaged_file

IMPORT_TIMEOUT_S: Final = 120.0
_MODULES: Final = {"llamacpp": ("xllamacpp",), "minilm": ("onnxruntime", "tokenizers")}
_INSTALL: Final = "run `make setup`"


def check_engines(config: Config) -> Iterator[Finding]:
    kinds = {engine.kind for engine in config.engines.values()}
    problems = {kind: find_import_problem(_MODULES[kind]) for kind in kinds}
    for name, engine in config.engines.items():
        what = f"engine {name}"
        if (problem := problems[engine.kind]) is not None:
            yield Finding(name=what, verdict=Verdict.FAIL, message=problem, hint=_INSTALL)
            continue
        try:
            files = find_weights(engine)
        except EngineRefused as refused:
            yield Finding(name=what, verdict=Verdict.FAIL, message=refused.message, hint=_INSTALL)
            continue
        size = sum(file.stat().st_size for file in files)
        yield Finding(name=what, verdict=Verdict.OK, message=f"{engine.kind}, {size / 1e6:.0f} MB of weights")


def find_weights(engine: EngineConfig) -> tuple[Path, ...]:
    """The files that the engine loads.  Raises EngineRefused where one is not there or not usable."""
    if isinstance(engine, LlamaCppEngine):
        return (find_gguf(engine.model),)
    return find_packaged_file(MINILM_ONNX), find_packaged_file(MINILM_TOKENIZER)


def find_import_problem(modules: tuple[str, ...]) -> str | None:
    """Why the modules can't be loaded; None when they can.

    Asked in a process of its own, because a library built for another processor ends the one that loads it.
    """
    absent = [module for module in modules if find_spec(module) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(f"import {module}" for module in modules)],
            capture_output=True,
            timeout=IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{', '.join(modules)} took more than {IMPORT_TIMEOUT_S:.0f} s to load"
    if done.returncode < 0:
        return f"{', '.join(modules)} ended its process with signal {-done.returncode}"
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"{', '.join(modules)} can't be loaded: {' '.join(last)}"
    return None
