"""What n-gram speculation does to the speed of the embedded engine, for text that is copied and for prose.

One stream on an engine with a core of its own.  Answers are as long with speculation as without and, at
temperature 0, the same but for rounding.  Costs are the engine's processor time, which on a calm core is the
time that passes.
"""

import asyncio
from pathlib import Path
from statistics import median

import measure
from engine_gateway import keep_off
from forebay.app.bench_plan import Prompt
from forebay.app.bench_run import Load, Settings, Target, run_levels
from forebay.engines.model import EngineSpec, Speculation
from measure import BenchError, Cores, Figure
from real_engine import start_engine

OUTPUT = 96  #: tokens
TOKENS, LOOKUP = 8, 3  #: what is guessed at once, and after how many that are alike
_CODE = """def add_item(items, name, price):
    item = {"name": name, "price": price}
    items.append(item)
    return items


def remove_item(items, name):
    items = [item for item in items if item["name"] != name]
    return items


def total_price(items):
    total = 0
    for item in items:
        total = total + item["price"]
    return total


"""
#: `copied`: the model goes on with what stood there twice, as where code is written again, little changed.
TEXTS = {
    "copied": 2 * f"# the file\n{_CODE}" + "# the file\ndef add_item(items,",
    "prose": "The storm came in the night, and the keeper of the lighthouse knew that nothing would be as",
}


def measure_speculation(folder: Path, cores: Cores, requests: int) -> list[Figure]:
    costs = {is_on: measure_costs(is_on, folder, cores, requests) for is_on in (False, True)}
    figures = []
    for text in TEXTS:
        off, on = costs[False][text], costs[True][text]
        figures += [
            Figure(name=f"ngram_{text}_off_tokens_per_cpu_s", value=round(1 / off, 2), unit="1/s"),
            Figure(name=f"ngram_{text}_on_tokens_per_cpu_s", value=round(1 / on, 2), unit="1/s"),
            Figure(name=f"ngram_{text}_speedup", value=round(off / on, 3), unit="ratio"),
        ]
    return figures


def measure_costs(is_on: bool, folder: Path, cores: Cores, requests: int) -> dict[str, float]:
    """The engine's seconds for an output token, by text."""
    spec = EngineSpec(
        name="ngram" if is_on else "plain",
        kind="llamacpp",
        context_tokens=1024,
        slots=1,
        speculation=Speculation(method="ngram", tokens=TOKENS, lookup_max=LOOKUP) if is_on else None,
    )
    found = {}
    with start_engine(spec, folder, core=cores.server) as engine, keep_off(cores.server, cores):
        target = Target(urls=(engine.url,), model="any", endpoint="completions", extra={"ignore_eos": True})

        def ask(text: str) -> float:
            prompt = Prompt(messages=[{"role": "user", "content": text}], output_tokens=OUTPUT)
            before = measure.read_cpu_s(engine.pid)
            (level,) = asyncio.run(run_levels(target, [Load(concurrency=1)], [prompt], Settings()))
            if level.errors:
                raise BenchError(f"requests failed: {next(iter(level.errors))}")
            return (measure.read_cpu_s(engine.pid) - before) / level.samples[0].output_tokens

        for name, text in TEXTS.items():
            ask(text)  # from here on the engine has the prompt in its cache
            found[name] = median(ask(text) for _ in range(requests))
    return found
