"""A benchmark of the real llama.cpp, whose own counters say the same."""

import re

import anyio
import httpx
from engine_process import Engine

from forebay.app.bench_plan import Wanted, make_prompts
from forebay.app.bench_run import Load, Settings, Target, run_levels

OUTPUT, COUNT, WARM_UP = 6, 4, 1


def count_predicted(engine: Engine) -> float:
    page = httpx.get(engine.base_url.removesuffix("/v1") + "/metrics", timeout=30).text
    found = re.search(r"^llamacpp:tokens_predicted_total (\S+)", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_tokens_are_those_that_the_engine_counts(llama: Engine) -> None:
    before = count_predicted(llama)
    target = Target(urls=(llama.base_url,), model="any", extra={"ignore_eos": True})
    prompts = make_prompts(Wanted(input_tokens=12, output_tokens=OUTPUT), COUNT, 5)
    settings = Settings(warm_up=WARM_UP, timeout_s=120)
    levels = anyio.run(run_levels, target, [Load(concurrency=2), Load(rate_per_s=20.0)], prompts, settings)
    for level in levels:
        assert level.errors == {}
        figures = level.figures
        assert figures["mean_output_tokens"] == OUTPUT
        assert 12 <= figures["mean_input_tokens"] < 60, "with what the template adds"
        assert 0 < figures["mean_ttft_ms"] < figures["mean_e2el_ms"]
        assert figures["mean_tpot_ms"] * (OUTPUT - 1) < figures["mean_e2el_ms"]
    assert count_predicted(llama) - before == OUTPUT * (2 * COUNT + WARM_UP)
