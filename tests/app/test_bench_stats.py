"""The figures of a benchmark are those of `vllm bench serve`; prompts and arrivals follow from their seed."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.bench_plan import Wanted, load_prompts, make_prompts, plan_arrivals
from forebay.app.bench_stats import Sample, compare, compute_figures, compute_percentile, is_good, parse_slo

VALUES = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=200)


def sample(ttft_s: float, gaps: list[float], tokens: int | None = None, **more: float) -> Sample:
    return Sample(
        ttft_s=ttft_s,
        itl_s=gaps,
        e2el_s=ttft_s + sum(gaps),
        input_tokens=10,
        output_tokens=len(gaps) + 1 if tokens is None else tokens,
        **more,
    )


@given(VALUES, st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert compute_percentile(sorted(values), percent) == pytest.approx(
        float(np.percentile(values, percent)), rel=1e-9, abs=1e-9
    )


def test_figures_are_as_vllm_defines_them() -> None:
    samples = [sample(0.1, [0.02] * 9), sample(0.3, [0.04] * 4), sample(0.2, [], tokens=1), Sample(error="x")]
    figures = compute_figures(samples, 2.0, {"ttft": 0.25, "tpot": 0.03})
    assert figures["requests"] == 4
    assert figures["errors"] == 1
    assert figures["requests_per_s"] == 1.5
    assert figures["output_tokens_per_s"] == (10 + 5 + 1) / 2
    assert figures["input_tokens_per_s"] == 15
    assert figures["total_tokens_per_s"] == 23
    assert figures["mean_ttft_ms"] == pytest.approx(200)
    assert figures["median_ttft_ms"] == pytest.approx(200)
    assert figures["p99_ttft_ms"] == pytest.approx(np.percentile([100, 300, 200], 99))
    assert figures["mean_tpot_ms"] == pytest.approx(statistics.fmean([20, 40])), (
        "of answers of two tokens or more"
    )
    assert figures["mean_itl_ms"] == pytest.approx(statistics.fmean([20] * 9 + [40] * 4))
    assert figures["mean_e2el_ms"] == pytest.approx(statistics.fmean([280, 460, 200]))
    assert figures["goodput_per_s"] == 1.0, "the first and the third keep both limits"
    assert figures["good_ratio"] == 0.5
    assert "p99_lag_ms" not in figures


def test_nothing_at_all_has_no_latencies() -> None:
    assert compute_figures([Sample(error="x")], 1.0)["errors"] == 1
    assert not any(name.startswith("mean") for name in compute_figures([Sample(error="x")], 1.0))
    assert compute_figures([], 0.0)["requests"] == 0


def test_a_request_is_good_if_it_keeps_every_limit() -> None:
    one = sample(0.1, [0.02] * 9)
    assert is_good(one, {"ttft": 0.1, "tpot": 0.021, "e2el": 0.29})
    assert not is_good(one, {"ttft": 0.09})
    assert not is_good(one, {"ttft": 1, "e2el": 0.2})
    assert not is_good(Sample(error="x"), {"ttft": 9})


@pytest.mark.parametrize(
    ("text", "told"),
    [("ttft=500ms", ("ttft", 0.5)), ("tpot=50ms", ("tpot", 0.05)), ("e2el=2s", ("e2el", 2.0))],
)
def test_an_slo_is_read(text: str, told: tuple[str, float]) -> None:
    assert parse_slo(text) == told


@pytest.mark.parametrize(
    "text", ["ttft", "ttft=", "ttft=500", "x=5ms", "ttft=-1ms", "ttft=nanms", "ttft=infs"]
)
def test_what_is_no_slo_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"ttft|tpot|write"):
        parse_slo(text)


def test_a_difference_is_told_with_how_sure_it_is() -> None:
    first = [sample(0.1 + 0.001 * (at % 10), [0.02, 0.021]) for at in range(100)]
    slower = [sample(0.2 + 0.001 * (at % 10), [0.02, 0.021]) for at in range(100)]
    told = {each.name: each for each in compare(first, slower)}
    ttft = told["mean_ttft_ms"]
    assert ttft.is_certain
    assert ttft.low < 100 < ttft.high
    assert told["p99_ttft_ms"].is_certain
    assert not told["mean_itl_ms"].is_certain
    assert not any(each.is_certain for each in compare(first, first))
    assert compare(first, slower, seed=3) == compare(first, slower, seed=3)
    assert compare(first, []) == []


# --- what is asked, and when --------------------------------------------------------------------------------


def test_the_same_seed_asks_the_same_at_the_same_times() -> None:
    wanted = Wanted(input_tokens=50, output_tokens=20, prefix_tokens=10, spread=0.5)
    assert make_prompts(wanted, 20, 7) == make_prompts(wanted, 20, 7)
    assert make_prompts(wanted, 20, 7) != make_prompts(wanted, 20, 8)
    assert plan_arrivals(10, 50, 7, "poisson") == plan_arrivals(10, 50, 7, "poisson")
    assert plan_arrivals(10, 50, 7, "poisson") != plan_arrivals(10, 50, 8, "poisson")


def test_prompts_share_what_they_are_to_share_and_no_more() -> None:
    prompts = [each.text.split() for each in make_prompts(Wanted(input_tokens=64, prefix_tokens=16), 50, 1)]
    assert {len(words) for words in prompts} == {64}
    assert len({tuple(words[:16]) for words in prompts}) == 1
    assert len({tuple(words[16:20]) for words in prompts}) == 50


def test_lengths_differ_as_they_are_to() -> None:
    prompts = make_prompts(Wanted(input_tokens=100, output_tokens=40, spread=0.5), 200, 1)
    lengths = [len(each.text.split()) for each in prompts]
    outputs = [each.output_tokens for each in prompts]
    assert 50 <= min(lengths) < 70 < 130 < max(lengths) <= 150
    assert 20 <= min(outputs) < 30 < 50 < max(outputs) <= 60


def test_arrivals_come_at_their_rate() -> None:
    assert plan_arrivals(4, 5, 0, "constant") == [0, 0.25, 0.5, 0.75, 1.0]
    times = plan_arrivals(100, 20_000, 3, "poisson")
    gaps = np.diff(times)
    assert times[0] == 0
    assert np.mean(gaps) == pytest.approx(0.01, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.01, rel=0.05), "as exponential gaps have it"


def test_prompts_of_files_are_read(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        json.dumps({"prompt": "one"})
        + "\n\n"
        + json.dumps({"messages": [{"role": "system", "content": "s"}], "output_tokens": 3})
        + '\n{"other": 1}\n'
    )
    prompts = load_prompts(lines, 20, 4, 1)
    assert len(prompts) == 4
    assert sorted({(each.text, each.output_tokens) for each in prompts}) == [("one", 20), ("s", 3)]
    assert load_prompts(lines, 20, 4, 1) == prompts
    shared = tmp_path / "gpt.json"
    turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "x" * 40}]
    shared.write_text(
        json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, {"conversations": []}])
    )
    (only,) = load_prompts(shared, 64, 1, 0)
    assert (only.text, only.output_tokens) == ("hello", 10)
    assert load_prompts(shared, 5, 1, 0)[0].output_tokens == 5


@pytest.mark.parametrize(("text", "words"), [("", "no prompts"), ("{\n", ":1 is no JSON"), ("[", "no JSON")])
def test_a_file_without_prompts_says_where(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        load_prompts(file, 20, 4, 1)


def test_a_percentile_of_nothing_is_none() -> None:
    assert math.isnan(compute_percentile([], 50))
