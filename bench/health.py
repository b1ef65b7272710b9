"""Whether health answers stay quick while the gateway admits prompts of two million characters.

usage: python bench/health.py [--seconds S]

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import http.client
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized

import measure
import peers
from measure import BenchError, Figure
from workload import MODEL, build_request

PROMPT_CHARACTERS = 2_000_000
SENDERS = 2
PAUSE_S = 0.01  #: between two probes, on average
HEALTHZ_P99_MAX_MS = 50.0


def build_prompt() -> str:
    """Words, line breaks, quotes and letters of several bytes: what a document looks like as JSON."""
    draw = random.Random(1)
    words = [
        "surge",
        "turbine",
        "water",
        'so-called "pool"',
        "größer",
        "発電所",
        "engine\n",
        "the",
        "of",
        "a\tb",
    ]
    text = " ".join(draw.choices(words, k=PROMPT_CHARACTERS // 4))
    return text[:PROMPT_CHARACTERS]


def send_prompts(port: int, key: str, sent: "Synchronized[int]", failed: "Synchronized[int]") -> None:
    """One caller that sends the prompt again as soon as it is answered, until it is ended."""
    os.nice(10)  # The prober shares the core: what it waits for here is not the gateway's doing.
    body = build_request(MODEL, stream=False, prompt=build_prompt())
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while True:
        connection.request("POST", peers.CHAT, body, headers)
        answer = connection.getresponse()
        answer.read()
        counter = sent if answer.status == 200 else failed
        with counter.get_lock():
            counter.value += 1


@contextmanager
def run_senders(port: int) -> Iterator[tuple["Synchronized[int]", "Synchronized[int]"]]:
    """The senders as processes; the counters are prompts that were answered, and that were not."""
    context = multiprocessing.get_context("spawn")
    sent, failed = context.Value("i", 0), context.Value("i", 0)
    senders = [
        context.Process(target=send_prompts, args=(port, peers.KEY, sent, failed)) for _ in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    try:
        while sent.value < SENDERS:
            if failed.value or not all(sender.is_alive() for sender in senders):
                raise BenchError("the gateway does not admit a prompt of two million characters")
            time.sleep(0.05)
        yield sent, failed
    finally:
        for sender in senders:
            sender.terminate()
            sender.join()


def probe_health(port: int, *, seconds: float) -> list[float]:
    """Milliseconds from connecting to the whole answer, at times that have nothing to do with the load."""
    latencies = []
    draw = random.Random(2)
    end = time.perf_counter() + seconds
    while (asked := time.perf_counter()) < end:
        status, _ = peers.ask(port, "GET", "/healthz")
        latencies.append((time.perf_counter() - asked) * 1000)
        if status != 200:
            raise BenchError(f"/healthz answered {status}")
        time.sleep(draw.uniform(0, 2 * PAUSE_S))
    return latencies


def main() -> int:
    parser = argparse.ArgumentParser(description="Latency of /healthz while huge prompts are admitted.")
    parser.add_argument("--seconds", type=float, default=20, help="(20)")
    arguments = parser.parse_args()
    try:
        measure.require_commands(*peers.NEEDS["upstream"])
        cores = measure.choose_cores(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores.load})
        with peers.run_upstream(cores) as upstream, peers.run_forebay(upstream, cores) as gateway:
            peers.check_answers(gateway)
            quiet = probe_health(gateway.json_port, seconds=min(5.0, arguments.seconds))
            with run_senders(gateway.json_port) as (sent, failed):
                before, started = sent.value, time.perf_counter()
                loud = probe_health(gateway.json_port, seconds=arguments.seconds)
                prompts_per_s = (sent.value - before) / (time.perf_counter() - started)
                if failed.value:
                    raise BenchError(f"{failed.value} prompts were not answered with 200")
    except BenchError as error:
        return measure.fail(error)
    p99_ms = measure.compute_quantile(loud, 0.99)
    figures = [
        Figure(name="healthz_p99_ms", value=round(p99_ms, 2), unit="ms", target=HEALTHZ_P99_MAX_MS),
        Figure(name="healthz_p50_ms", value=round(measure.compute_quantile(loud, 0.5), 2), unit="ms"),
        Figure(name="healthz_max_ms", value=round(max(loud), 2), unit="ms"),
        Figure(name="probes", value=len(loud), unit="requests"),
        Figure(name="healthz_quiet_p99_ms", value=round(measure.compute_quantile(quiet, 0.99), 2), unit="ms"),
        Figure(name="prompts_per_s", value=round(prompts_per_s, 1), unit="1/s"),
    ]
    measure.publish("health", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
