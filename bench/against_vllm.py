"""Measures one real vLLM with `forebay bench` and `vllm bench serve` by turns, and compares what they say.

usage: python bench/against_vllm.py [--data FOLDER] [--rounds N] [--requests N] [--concurrency N]
                                    [--input-words N] [--output-tokens N]

Starts vLLM from an environment in the data folder that `--data` names, on a tiny model with random weights.
Both ask the same prompts, out of one file in ShareGPT's form, for answers of the same length, so many at a
time, at temperature 0.  vLLM keeps no prefixes, so that no run profits from one before.  What is compared is
the median of the runs of each.  Beside it: the median ratio of pairs that were measured one right after the
other, between what limits it lies with 95 % confidence (by bootstrap), and the greatest of vLLM's runs over
its least, which tells how noisy the machine was.

Prints a table on stderr and one JSON line last on stdout; docs/bench.md has the figures.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import measure
from engines import run_engine
from forebay.app.bench_plan import Wanted, make_prompts
from forebay.engines.model import EngineSpec
from forebay.engines.tiny_model import make_tiny_model
from measure import BenchError, Figure
from vllm_environment import find_python

NAME = "tiny"
APART_MAX_PCT = 5.0
#: What is compared, with the names that both give it.
COMPARED = {
    "requests_per_s": "request_throughput",
    "output_tokens_per_s": "output_throughput",
    "mean_ttft_ms": "mean_ttft_ms",
    "median_ttft_ms": "median_ttft_ms",
    "mean_tpot_ms": "mean_tpot_ms",
    "median_tpot_ms": "median_tpot_ms",
}
Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What both are told."""

    url: str  #: up to and including /v1
    python: Path  #: vLLM's
    model: Path
    prompts: Path
    folder: Path
    requests: int
    concurrency: int
    output_tokens: int

    @property
    def environment(self) -> dict[str, str]:
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        return {**kept, **quiet}


def run(command: list[str], scene: Scene) -> str:
    """What it prints; raises BenchError."""
    done = subprocess.run(
        command,
        cwd=scene.folder,
        env=scene.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command[:5])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def ask_forebay(scene: Scene) -> Figures:
    command = [sys.executable, "-m", "forebay", "bench", scene.url, "--model", NAME, "--json", "--no-save"]
    command += ["--dataset", str(scene.prompts), "--output-tokens", str(scene.output_tokens)]
    command += ["--requests", str(scene.requests), "--concurrency", str(scene.concurrency)]
    figures = json.loads(run(command, scene).splitlines()[-1])["figures"]
    return {name: figures[name] for name in COMPARED}


class VllmBench:
    """`vllm bench serve`, whose imports are done once."""

    def __init__(self, scene: Scene) -> None:
        self._result = scene.folder / "vllm.json"
        self._log = scene.folder / "vllm-bench.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [scene.python, "-I", Path(__file__).with_name("vllm_bench_loop.py")],
                cwd=scene.folder,
                env=scene.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != word:
            raise BenchError(f"vllm bench serve failed: {self._log.read_text()[-2000:]}")

    def ask(self, scene: Scene) -> Figures:
        options = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
        options += ["--base-url", scene.url.removesuffix("/v1"), "--model", NAME]
        options += ["--tokenizer", str(scene.model), "--temperature", "0", "--ignore-eos"]
        options += ["--dataset-name", "sharegpt", "--dataset-path", str(scene.prompts), "--disable-tqdm"]
        options += ["--sharegpt-output-len", str(scene.output_tokens), "--num-prompts", str(scene.requests)]
        options += ["--max-concurrency", str(scene.concurrency), "--num-warmups", str(scene.concurrency)]
        options += ["--save-result", "--result-dir", str(scene.folder)]
        options += ["--result-filename", self._result.name]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()
        self._expect("done")
        found: dict[str, Any] = json.loads(self._result.read_text())
        if found["completed"] != scene.requests:
            raise BenchError(
                f"{found['completed']} of {scene.requests} requests of vllm bench serve went well"
            )
        return {name: found[theirs] for name, theirs in COMPARED.items()}


def write_prompts(path: Path, words: int, output_tokens: int, count: int) -> None:
    """ShareGPT's form, which both read; an answer stands there because both want one."""
    prompts = make_prompts(Wanted(input_tokens=words, output_tokens=output_tokens), count, 1)
    answer = "word " * output_tokens
    turns = [
        [{"from": "human", "value": prompt.text}, {"from": "gpt", "value": answer}] for prompt in prompts
    ]
    path.write_text(json.dumps([{"id": str(at), "conversations": each} for at, each in enumerate(turns)]))


def compare(scene: Scene, rounds: int) -> list[Figure]:
    vllm = VllmBench(scene)
    kinds: dict[str, Callable[[Scene], Figures]] = {"forebay": ask_forebay, "vllm": vllm.ask}
    runs: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    try:
        for number in range(rounds):
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                runs[kind].append(kinds[kind](scene))
                print(kind, json.dumps({k: round(v, 2) for k, v in runs[kind][-1].items()}), file=sys.stderr)
    finally:
        vllm.process.kill()
        vllm.process.wait()
    found = []
    for name in COMPARED:
        values = {kind: [each[name] for each in done] for kind, done in runs.items()}
        found += describe(name, values["forebay"], values["vllm"])
    return found


def describe(name: str, ours: list[float], theirs: list[float]) -> list[Figure]:
    """How far apart they are, by the medians and by pairs, of which each was measured within seconds."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    draw = random.Random(1)
    drawn = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
    apart = abs(median(ours) / median(theirs) - 1) * 100
    return [
        Figure(name=f"{name}_apart_pct", value=round(apart, 2), unit="%", target=APART_MAX_PCT),
        Figure(name=f"{name}_forebay", value=round(median(ours), 3), unit=""),
        Figure(name=f"{name}_vllm", value=round(median(theirs), 3), unit=""),
        Figure(name=f"{name}_pair_ratio", value=round(median(ratios), 4), unit="ratio"),
        Figure(name=f"{name}_pair_ratio_low", value=round(drawn[25], 4), unit="ratio"),
        Figure(name=f"{name}_pair_ratio_high", value=round(drawn[974], 4), unit="ratio"),
        Figure(name=f"{name}_vllm_spread", value=round(max(theirs) / min(theirs), 2), unit="ratio"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(".forebay"), help="folder that has environments")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--input-words", type=int, default=24)
    parser.add_argument("--output-tokens", type=int, default=32)
    args = parser.parse_args()
    try:
        python = find_python(args.data)
        with tempfile.TemporaryDirectory(prefix="forebay-against-") as name:
            folder = Path(name)
            make_tiny_model(folder / "model")
            write_prompts(folder / "prompts.json", args.input_words, args.output_tokens, args.requests)
            spec = EngineSpec(
                name=NAME,
                kind="vllm",
                model=str(folder / "model"),
                slots=16,
                context_tokens=1024,
                arguments={
                    "enforce-eager": True,
                    "dtype": "float32",
                    "kv-cache-memory-bytes": 64 << 20,
                    "enable-prefix-caching": False,
                },
            )
            with run_engine(spec, folder, str(python)) as (url, seconds):
                print(f"vLLM was ready after {seconds:.1f} s", file=sys.stderr)
                scene = Scene(
                    url=url,
                    python=python,
                    model=folder / "model",
                    prompts=folder / "prompts.json",
                    folder=folder,
                    requests=args.requests,
                    concurrency=args.concurrency,
                    output_tokens=args.output_tokens,
                )
                figures = compare(scene, args.rounds)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("against_vllm", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
