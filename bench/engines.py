"""What the gateway adds before a real engine, how soon the embedded engine is up, and n-gram speculation.

usage: python bench/engines.py [--quick] [--only NAMES] [--vllm-python PYTHON --vllm-model FOLDER]

Direct and through one gateway worker by turns, with the same prompts: throughput is the ratio of the medians
of rounds of one kind each.  What is added to the time to the first token is what the worker itself worked
for a request, all of it, as its record says: an upper bound that no engine's moods are in.  The difference
between callers' own times is told beside it, with how uncertain it is: half of a load goes each way.  The
embedded engine is started as the supervisor does it.  vLLM is measured where an interpreter that has it, and
a model, are given.

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import asyncio
import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean, median, stdev
from urllib.parse import urlsplit

import measure
from forebay.app import supervisor_exec
from forebay.app.bench_client import BenchClient
from forebay.app.bench_plan import Wanted, make_prompts
from forebay.app.bench_run import Load, Settings, Target, encode_body, run_levels
from forebay.app.bench_stats import Sample
from forebay.engines.model import EngineSpec, Speculation
from forebay.engines.plan import Place, plan_engine
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.threaded import find_closed_port
from measure import BenchError, Figure

STREAMS = 16
MODEL = "bench"
RATIO_MIN, TTFT_ADDED_MAX_MS, START_MAX_S = 0.98, 2.0, 5.0
INPUT, OUTPUT = 24, 12  #: tokens
WARM_UP = 2  #: requests before each round
REPEATED = "one two three four five six seven eight nine ten eleven twelve. " * 8


@contextmanager
def run_engine(spec: EngineSpec, folder: Path, python: str = sys.executable) -> Iterator[tuple[str, float]]:
    """Its base URL, and the seconds until it answered its health address."""
    plan = plan_engine(spec, Place(port=find_closed_port(), python=python))
    began = time.monotonic()
    with (folder / f"{spec.name}.log").open("ab") as log:
        command = [sys.executable, "-m", supervisor_exec.__name__, str(os.getpid()), *plan.argv]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | plan.env)
    try:
        while not is_healthy(plan.health_url):
            if process.poll() is not None or time.monotonic() - began > plan.ready_timeout_s:
                raise BenchError(f"the engine {spec.name} did not come up; see {folder / spec.name}.log")
            time.sleep(0.02)
        yield plan.health_url.removesuffix("/health") + "/v1", time.monotonic() - began
    finally:
        process.kill()
        process.wait()


def is_healthy(url: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def measure_rate(target: Target, requests: int, seed: int) -> float:
    """Output tokens a second at 16 streams."""
    prompts = make_prompts(Wanted(input_tokens=INPUT, output_tokens=OUTPUT), requests, seed)
    (level,) = asyncio.run(
        run_levels(target, [Load(concurrency=STREAMS)], prompts, Settings(warm_up=WARM_UP))
    )
    if level.errors:
        raise BenchError(f"requests failed: {next(iter(level.errors))}")
    return level.figures["output_tokens_per_s"]


async def measure_first_tokens(
    targets: Sequence[Target], requests: int, seed: int
) -> tuple[list[float], list[float]]:
    """Milliseconds to the first token: direct, and through the gateway, of one load of 16 streams."""
    clients = [BenchClient(target.urls[0], target.secret, target.endpoint, 600.0) for target in targets]
    prompts = make_prompts(Wanted(input_tokens=INPUT, output_tokens=4), requests, seed)
    waiting = iter(list(enumerate(prompts)))
    found: tuple[list[float], list[float]] = ([], [])

    async def work() -> None:
        for at, prompt in waiting:
            which = at % 2
            sample: Sample = await clients[which].ask(encode_body(targets[which], prompt))
            if sample.error:
                raise BenchError(f"a request failed: {sample.error}")
            found[which].append(sample.ttft_s * 1000)

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(work())
    for client in clients:
        client.close()
    return found


def compare_with_gateway(
    name: str, url: str, model: str, folder: Path, rounds: int, requests: int
) -> list[Figure]:
    """What one gateway worker adds before an engine."""
    with GatewayProcess([make_route(MODEL, url, target_model=model)], folder=folder) as gateway:
        extra = {"ignore_eos": True}
        direct = Target(urls=(url,), model=model, extra=extra)
        through = Target(urls=(gateway.url,), model=MODEL, secret=gateway.key, extra=extra)
        rates: dict[str, list[float]] = {"direct": [], "through": []}
        for number in range(rounds):
            order = [("direct", direct), ("through", through)]
            for kind, target in order if number % 2 else reversed(order):
                rates[kind].append(measure_rate(target, requests, number))
        own, others = asyncio.run(measure_first_tokens((direct, through), 4 * requests, 99))
        count = rounds * (requests + WARM_UP) + 2 * requests
        records = gateway.until(lambda: found if len(found := gateway.records()) >= count else None)
    worked = [record.overhead_ns / 1e6 for record in records if record.overhead_ns is not None]
    spread = 1.25 * 1.96 * ((stdev(own) ** 2) / len(own) + (stdev(others) ** 2) / len(others)) ** 0.5
    ratio = median(rates["through"]) / median(rates["direct"])
    values = (
        ("throughput_ratio", ratio, "ratio", RATIO_MIN),
        ("ttft_added_ms", median(worked), "ms", TTFT_ADDED_MAX_MS),
        ("ttft_added_p99_ms", measure.compute_quantile(worked, 0.99), "ms", None),
        ("ttft_difference_ms", median(others) - median(own), "ms", None),
        ("ttft_difference_uncertain_ms", spread, "ms", None),
        ("ttft_direct_ms", median(own), "ms", None),
        ("direct_tokens_per_s", median(rates["direct"]), "1/s", None),
    )
    return [
        Figure(
            name=f"{name}_{what}",
            value=round(value, 4),
            unit=unit,
            target=target,
            is_least=what == "throughput_ratio",
        )
        for what, value, unit, target in values
    ]


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


def measure_speculation(folder: Path, requests: int) -> list[Figure]:
    """Output tokens a second of one stream that repeats its prompt, with n-grams and without."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for is_on in (False, True):
        speculation = Speculation(method="ngram", tokens=8, lookup_max=3) if is_on else None
        spec = EngineSpec(
            name="ngram" if is_on else "plain",
            kind="llamacpp",
            context_tokens=1024,
            slots=1,
            speculation=speculation,
        )
        messages = [{"role": "user", "content": f"Say this again word for word: {REPEATED}"}]
        with run_engine(spec, folder) as (url, _):
            target = Target(urls=(url,), model="any", extra={"ignore_eos": True, "messages": messages})
            prompts = make_prompts(Wanted(input_tokens=1, output_tokens=64), requests, 1)
            (level,) = asyncio.run(run_levels(target, [Load(concurrency=1)], prompts, Settings(warm_up=1)))
            if level.errors:
                raise BenchError(f"requests failed: {next(iter(level.errors))}")
            rates[is_on] = [1 / sample.tpot_s for sample in level.samples if sample.tpot_s]
    return [
        Figure(name="ngram_off_tokens_per_s", value=round(fmean(rates[False]), 2), unit="1/s"),
        Figure(name="ngram_on_tokens_per_s", value=round(fmean(rates[True]), 2), unit="1/s"),
        Figure(name="ngram_speedup", value=round(fmean(rates[True]) / fmean(rates[False]), 3), unit="ratio"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller runs, to see that they work")
    parser.add_argument("--only", default="start,llamacpp,ngram,vllm", help="parts, by their names")
    parser.add_argument("--vllm-python", help="interpreter of an environment that has vLLM")
    parser.add_argument("--vllm-model", help="folder of a model for it")
    args = parser.parse_args()
    parts = set(args.only.split(","))
    rounds, requests = (2, 16) if args.quick else (6, 64)
    figures: list[Figure] = []
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if "start" in parts:
                figures += measure_start(folder, 2 if args.quick else 5)
            if "llamacpp" in parts:
                spec = EngineSpec(name="engine", kind="llamacpp", context_tokens=256, slots=STREAMS)
                with run_engine(spec, folder) as (url, _):
                    figures += compare_with_gateway("llamacpp", url, "any", folder / "a", rounds, requests)
            if "ngram" in parts:
                figures += measure_speculation(folder, 3 if args.quick else 10)
            if "vllm" in parts and args.vllm_python and args.vllm_model:
                spec = EngineSpec(
                    name="vllm", kind="vllm", model=args.vllm_model, context_tokens=256, slots=STREAMS
                )
                with run_engine(spec, folder, args.vllm_python) as (url, _):
                    figures += compare_with_gateway("vllm", url, "vllm", folder / "b", rounds, requests)
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
