"""Measures one real vLLM with `forebay bench` and `vllm bench serve` by turns, and compares what they say.

usage: python bench/against_vllm.py [--data FOLDER] [--rounds N] [--requests N] [--concurrency N]
                                    [--input-words N] [--output-tokens N] [--model small|tiny]
                                    [--together] [--send-times]

Starts vLLM from an environment in the data folder that `--data` names, on a model with random weights.  Both
ask the same prompts in the same order for answers of the same lengths, so many at a time, at temperature 0.
vLLM keeps no prefixes, so that no run profits from one before.  What is compared is the median of the runs of
each.  Beside it: the median ratio of pairs that were measured one right after the other, between what limits
it lies with 95 % confidence (by bootstrap), and the greatest of vLLM's runs over its least, which tells how
noisy the machine was.  By turns, what vLLM says of the same requests in its metrics is the third witness: its
mean TTFT and E2EL begin when it has read a request.

By turns (ABBA) each has the engine to itself, and what the machine does beside it is in the difference.
With `--together` both ask at the same time, each so many at once: what disturbs one disturbs the other.

`--send-times` has `vllm bench serve` also tell how long its client takes from where it starts the clock to
where a request is written; without it nothing is added to what it does.

Prints a table on stderr and one JSON line last on stdout; docs/bench.md has the figures.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tokenizers import Tokenizer

import measure
from forebay.app.bench_plan import Prompt, Wanted, load_prompts, make_prompts
from forebay.engines.model import EngineSpec
from forebay.engines.tiny_model import Shape, make_tiny_model
from measure import BenchError, Figure
from real_engine import run_engine
from vllm_environment import find_python

NAME = "tiny"
APART_MAX_PCT = 5.0
LONGEST = 500  #: tokens of an answer
#: Lengths are from half to one and a half of what is asked for.  Were all alike, requests of a closed loop
#: would begin and end in step, in one of several patterns, and which one it is would decide a run's figures.
SPREAD = 0.5
LATENCIES = ("ttft", "tpot", "itl", "e2el")
#: What is compared, with the names that both give it.
COMPARED = {
    "requests_per_s": "request_throughput",
    "output_tokens_per_s": "output_throughput",
    **{f"{kind}_{name}_ms": f"{kind}_{name}_ms" for name in LATENCIES for kind in ("mean", "median")},
}
#: Shown, and of too few requests a run to be held to anything.
SHOWN = {f"p99_{name}_ms": f"p99_{name}_ms" for name in LATENCIES}
#: Tokens a request: asked and answered the same.
SAME = {"mean_input_tokens": "total_input_tokens", "mean_output_tokens": "total_output_tokens"}
#: vLLM's own histograms, of which the means are shown.
ENGINE = {
    "engine_ttft_ms": "vllm:time_to_first_token_seconds",
    "engine_e2el_ms": "vllm:e2e_request_latency_seconds",
}
#: With a small model nearly all time is the engine's, as on hardware that people serve models with; with a
#: tiny one half of it is the HTTP of both sides.
MODELS = {"small": Shape(hidden=512, layers=8, heads=16, inner=1408), "tiny": Shape()}
Figures = dict[str, float]
Kinds = dict[str, Callable[["Scene"], Figures]]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What both are told."""

    url: str  #: up to and including /v1
    python: Path  #: vLLM's
    folder: (
        Path  #: has `model`, `prompts.json` and, in the order in which the former is asked, `in-order.json`
    )
    requests: int
    concurrency: int
    send_times: bool
    together: bool

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
    command += ["--dataset", str(scene.folder / "prompts.json"), "--output-tokens", str(LONGEST)]
    command += ["--requests", str(scene.requests), "--concurrency", str(scene.concurrency)]
    figures = json.loads(run(command, scene).splitlines()[-1])["figures"]
    return {name: figures[name] for name in [*COMPARED, *SHOWN, *SAME]}


def read_engine(scene: Scene) -> dict[str, tuple[float, float]]:
    """Of each of `ENGINE` the sum of its seconds and how many they are, until now."""
    with urllib.request.urlopen(scene.url.removesuffix("/v1") + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}
    return {name: (found[f"{metric}_sum"], found[f"{metric}_count"]) for name, metric in ENGINE.items()}


def ask_and_watch(ask: Callable[[Scene], Figures], scene: Scene) -> Figures:
    """What it says, and what vLLM says of the same requests, those before the first that counts included."""
    before = read_engine(scene)
    found = ask(scene)
    for name, (seconds, count) in read_engine(scene).items():
        found[name] = (seconds - before[name][0]) / (count - before[name][1]) * 1000
    return found


def ask_by_turns(kinds: Kinds, scene: Scene, number: int) -> dict[str, Figures]:
    """Another is the first in every other round."""
    order = list(kinds) if number % 2 == 0 else list(reversed(kinds))
    return {kind: ask_and_watch(kinds[kind], scene) for kind in order}


def ask_together(kinds: Kinds, scene: Scene) -> dict[str, Figures]:
    with ThreadPoolExecutor() as pool:
        asked = {kind: pool.submit(ask, scene) for kind, ask in kinds.items()}
        return {kind: future.result() for kind, future in asked.items()}


class VllmBench:
    """`vllm bench serve`, whose imports are done once."""

    def __init__(self, scene: Scene) -> None:
        self._result = scene.folder / "vllm.json"
        self._log = scene.folder / "vllm-bench.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    scene.python,
                    "-I",
                    Path(__file__).with_name("vllm_bench_loop.py"),
                    *(["--send-times"] if scene.send_times else []),
                ],
                cwd=scene.folder,
                env=scene.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._expect("ready")

    def _expect(self, word: str) -> str:
        """What stands behind the word."""
        assert self.process.stdout is not None
        first, _, rest = self.process.stdout.readline().strip().partition(" ")
        if first != word:
            raise BenchError(f"vllm bench serve failed: {self._log.read_text()[-2000:]}")
        return rest

    def ask(self, scene: Scene) -> Figures:
        options = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
        options += ["--base-url", scene.url.removesuffix("/v1"), "--model", NAME]
        options += ["--tokenizer", str(scene.folder / "model"), "--temperature", "0", "--ignore-eos"]
        options += ["--dataset-name", "sharegpt", "--dataset-path", str(scene.folder / "in-order.json")]
        options += ["--disable-shuffle", "--disable-tqdm", "--percentile-metrics", ",".join(LATENCIES)]
        options += ["--num-prompts", str(scene.requests)]
        options += ["--max-concurrency", str(scene.concurrency), "--num-warmups", str(scene.concurrency)]
        options += ["--save-result", "--result-dir", str(scene.folder)]
        options += ["--result-filename", self._result.name]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()
        told = self._expect("done")
        found: dict[str, Any] = json.loads(self._result.read_text())
        if found["completed"] != scene.requests:
            raise BenchError(
                f"{found['completed']} of {scene.requests} requests of vllm bench serve went well"
            )
        figures: Figures = {name: found[theirs] for name, theirs in {**COMPARED, **SHOWN}.items()}
        figures |= {name: found[theirs] / scene.requests for name, theirs in SAME.items()}
        return figures | ({"send_ms": float(told)} if told else {})


def find_word(model: Path) -> str:
    """Four bytes that are one token, so that both take an answer in ShareGPT's form for as long: `vllm bench
    serve` counts its tokens, and `forebay bench` a quarter of its bytes."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for token in sorted(tokenizer.get_vocab().values()):
        word = tokenizer.decode([token])
        if len(word.encode()) == 4 and len(tokenizer.encode(word * 100).ids) == 100:
            return word
    raise BenchError("the model's tokenizer has no word of four bytes")


def write_prompts(path: Path, prompts: list[Prompt], word: str) -> None:
    """In ShareGPT's form, which both read."""
    turns = [
        [{"from": "human", "value": prompt.text}, {"from": "gpt", "value": word * prompt.output_tokens}]
        for prompt in prompts
    ]
    path.write_text(json.dumps([{"id": str(at), "conversations": each} for at, each in enumerate(turns)]))


def make_prompt_files(folder: Path, wanted: Wanted, count: int) -> None:
    word = find_word(folder / "model")
    prompts = make_prompts(wanted, count, 1)
    write_prompts(folder / "prompts.json", prompts, word)
    in_order = load_prompts(folder / "prompts.json", LONGEST, count, 0)
    write_prompts(folder / "in-order.json", in_order, word)


def compare(scene: Scene, rounds: int) -> list[Figure]:
    vllm = VllmBench(scene)
    kinds: Kinds = {"forebay": ask_forebay, "vllm": vllm.ask}
    runs: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    try:
        for number in range(rounds):
            found = ask_together(kinds, scene) if scene.together else ask_by_turns(kinds, scene, number)
            for kind, figures in found.items():
                runs[kind].append(figures)
                print(kind, json.dumps({k: round(v, 2) for k, v in figures.items()}), file=sys.stderr)
    finally:
        vllm.process.kill()
        vllm.process.wait()
    for name in SAME:
        if len(told := {each[name] for done in runs.values() for each in done}) > 1:
            raise BenchError(f"the runs are not of the same load: {name} is {told}")
    found = []
    for name in [*COMPARED, *SHOWN, *([] if scene.together else ENGINE)]:
        values = {kind: [each[name] for each in done] for kind, done in runs.items()}
        found += describe(name, values["forebay"], values["vllm"])
    if scene.send_times:
        send = median(each["send_ms"] for each in runs["vllm"])
        found.append(Figure(name="vllm_send_ms", value=round(send, 3), unit="ms"))
    return found


def describe(name: str, ours: list[float], theirs: list[float]) -> list[Figure]:
    """How far apart they are, by the medians and by pairs, of which each was measured within seconds."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    draw = random.Random(1)
    drawn = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
    apart = abs(median(ours) / median(theirs) - 1) * 100
    return [
        Figure(
            name=f"{name}_apart_pct",
            value=round(apart, 2),
            unit="%",
            target=APART_MAX_PCT if name in COMPARED else None,
        ),
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
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--input-words", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--send-times", action="store_true")
    args = parser.parse_args()
    try:
        python = find_python(args.data)
        with tempfile.TemporaryDirectory(prefix="forebay-against-") as name:
            folder = Path(name)
            make_tiny_model(folder / "model", shape=MODELS[args.model])
            wanted = Wanted(input_tokens=args.input_words, output_tokens=args.output_tokens, spread=SPREAD)
            make_prompt_files(folder, wanted, args.requests)
            spec = EngineSpec(
                name=NAME,
                kind="vllm",
                model=str(folder / "model"),
                slots=16,
                context_tokens=1024,
                arguments={
                    "enforce-eager": True,
                    "dtype": "float32",
                    "kv-cache-memory-bytes": 256 << 20,
                    "enable-prefix-caching": False,
                },
            )
            with run_engine(spec, folder, str(python)) as (url, seconds):
                print(f"vLLM was ready after {seconds:.1f} s", file=sys.stderr)
                scene = Scene(
                    url=url,
                    python=python,
                    folder=folder,
                    requests=args.requests,
                    concurrency=args.concurrency,
                    send_times=args.send_times,
                    together=args.together,
                )
                figures = compare(scene, args.rounds)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("against_vllm", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
