"""What the gateway adds before a real engine, how soon the embedded engine is up, and n-gram speculation.

usage: python bench/engines.py [--quick] [--only NAMES] [--data FOLDER] [--vllm-model FOLDER]

Parts: `start`, the embedded engine from its start to its first 200, as the supervisor starts it; `llamacpp`,
one gateway worker before it (`engine_gateway.py`); `ngram`, its speed with n-gram speculation and without
(`engine_speculation.py`); `vllm`, one gateway worker before vLLM, where `--data` names a data folder with its
environment (`make setup-vllm` builds one), on a tiny model with random weights unless `--vllm-model` names
another.

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import measure
from engine_gateway import STREAMS, Size, compare_with_gateway
from engine_speculation import measure_speculation
from forebay.engines.model import EngineSpec
from forebay.engines.tiny_model import make_tiny_model
from measure import BenchError, Cores, Figure
from real_engine import run_engine, start_engine
from vllm_environment import find_python

START_MAX_S = 5.0
PARTS = ("start", "llamacpp", "ngram", "vllm")


def measure_start(folder: Path, repeats: int) -> list[Figure]:
    spec = EngineSpec(name="smollm2-135m", kind="llamacpp", context_tokens=2048)
    times = []
    for _ in range(repeats):
        with run_engine(spec, folder) as (_, seconds):
            times.append(seconds)
    return [
        Figure(name="embedded_engine_start_s", value=round(median(times), 2), unit="s", target=START_MAX_S),
        Figure(name="embedded_engine_start_max_s", value=round(max(times), 2), unit="s"),
    ]


def measure_llamacpp(folder: Path, cores: Cores, size: Size) -> list[Figure]:
    spec = EngineSpec(name="engine", kind="llamacpp", context_tokens=256, slots=STREAMS)
    with start_engine(spec, folder, core=cores.server) as engine:
        return compare_with_gateway("llamacpp", engine, "any", folder / "llamacpp", cores, size)


def measure_vllm(data: Path, model: Path | None, folder: Path, cores: Cores, size: Size) -> list[Figure]:
    if model is None:
        model = folder / "model"
        make_tiny_model(model)
    spec = EngineSpec(
        name="vllm",
        kind="vllm",
        model=str(model),
        context_tokens=512,
        slots=STREAMS,
        arguments={"enforce-eager": True, "dtype": "float32", "kv-cache-memory-bytes": 256 << 20},
    )
    with start_engine(spec, folder, python=str(find_python(data)), core=cores.server) as engine:
        started = Figure(name="vllm_start_s", value=round(engine.start_s, 1), unit="s")
        return [*compare_with_gateway("vllm", engine, "vllm", folder / "vllm", cores, size), started]


def measure_parts(parts: set[str], args: argparse.Namespace, folder: Path) -> list[Figure]:
    cores = measure.choose_cores(os.sched_getaffinity(0))
    size = Size(rounds=2, requests=16) if args.quick else Size(rounds=5, requests=48)
    figures: list[Figure] = []
    if "start" in parts:
        figures += measure_start(folder, 2 if args.quick else 5)
    if "llamacpp" in parts:
        figures += measure_llamacpp(folder, cores, size)
    if "ngram" in parts:
        figures += measure_speculation(folder, cores, 2 if args.quick else 6)
    if "vllm" in parts and args.data is not None:
        figures += measure_vllm(
            args.data, args.vllm_model, folder, cores, Size(rounds=size.rounds, requests=4 * size.requests)
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller runs, to see that they work")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by their names")
    parser.add_argument("--data", type=Path, help="data folder with an environment of vLLM")
    parser.add_argument("--vllm-model", type=Path, help="folder of a model for it")
    args = parser.parse_args()
    parts = set(args.only.split(","))
    if parts - set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-engines-") as folder:
            figures = measure_parts(parts, args, Path(folder))
    except BenchError as error:
        return measure.fail(error)
    except ExceptionGroup as group:
        failed = group.subgroup(BenchError)
        if failed is None:
            raise
        return measure.fail(BenchError(str(failed.exceptions[0])))
    measure.publish("engines", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
