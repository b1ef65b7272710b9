"""`forebay simulate` on the command line: from benchmarks to what a fleet would do."""

import json
from pathlib import Path

import pytest
from command_line import forebay

from forebay.app.bench_files import BenchResult, save_bench
from forebay.app.bench_plan import plan_arrivals
from forebay.app.bench_run import Level, Load
from forebay.app.bench_stats import compute_figures
from forebay.app.sim_profiles import to_sample
from forebay.sim.direct import Run, run_closed, run_open
from forebay.sim.engine import EngineProfile

OWN = EngineProfile(
    first_s=0.02,
    prefill_s_per_token=0.0003,
    step_s=0.01,
    step_per_stream_s=0.002,
    overlap=0.3,
    token_sigma=0.05,
)
CLOUD = EngineProfile(first_s=0.4, step_s=0.02, first_sigma=0.2)
SIZES = [(128, 64)] * 40


def make_result(target: str, profile: EngineProfile) -> BenchResult:
    """As if it had been measured."""
    levels = [make_level(Load(concurrency=each), run_closed(profile, SIZES, each)) for each in (1, 4, 8)]
    arrivals = plan_arrivals(5, len(SIZES), 3, "poisson")
    levels.append(make_level(Load(rate_per_s=5), run_open(profile, SIZES, arrivals)))
    return BenchResult(target=target, at_ns=1, model="x", levels=levels, asked={"seed": 3})


def make_level(load: Load, run: Run) -> Level:
    samples = [to_sample(each) for each in run.outcomes]
    return Level(load=load, figures=compute_figures(samples, run.duration_s), samples=samples)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A fleet of which both pools were measured."""
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "data: {dir: data}\n"
        "pools:\n"
        "  own: {tier: provisioned, requests_max: 8, replicas: ['http://a/v1', 'http://b/v1']}\n"
        "  cloud: {tier: provider}\n"
        "models:\n"
        "  m:\n    endpoints: [chat/completions]\n    targets:\n"
        "      - {pool: own, model: x}\n"
        "      - {pool: cloud, url: 'https://c.example/v1', model: y, price_usd_per_mtok: 1.5}\n"
        "  other: {endpoints: [chat/completions], targets: [{pool: own, model: z}]}\n"
        "prices:\n  book: [{pool: own, usd_per_second: 0.001}]\n"
    )
    for name, profile in (("own", OWN), ("cloud", CLOUD)):
        save_bench(tmp_path / "data", make_result(name, profile))
    return file


def test_a_load_is_told_by_tier_with_shares_and_costs(file: Path, tmp_path: Path) -> None:
    plot = tmp_path / "p.svg"
    done = forebay("simulate", "m", "--rate", "2,20", "--plot", plot, "--json", "--config", file)
    assert done.exit_code == 0, done.output
    assert plot.read_text().startswith("<svg")
    calm, full = json.loads(done.stdout)["loads"]
    assert [(row["tier"], row["pool"], row["share"]) for row in calm["rows"]] == [("provisioned", "own", 1.0)]
    own, cloud = full["rows"]
    assert own["share"] + cloud["share"] == pytest.approx(1)
    assert cloud["share"] > 0.3
    assert cloud["cost_usd"] == pytest.approx(cloud["requests"] * (128 + 64) * 1.5e-6)
    assert own["cost_usd"] == pytest.approx(own["requests"] * own["figures"]["mean_e2el_ms"] * 1e-6, rel=1e-3)
    assert full["total"]["cost_usd"] == pytest.approx(own["cost_usd"] + cloud["cost_usd"])
    assert own["use"] == {"replicas": 2, "streams_max": own["use"]["streams_max"], "streams_measured": 8}
    again = forebay("simulate", "m", "--rate", "2,20", "--json", "--config", file)
    assert again.stdout == done.stdout
    other = forebay("simulate", "m", "--rate", "2,20", "--json", "--seed", "1", "--config", file)
    assert other.stdout != done.stdout


def test_a_table_names_tiers_and_says_what_is_extrapolated(file: Path) -> None:
    done = forebay("simulate", "m", "--rate", "20", "--slo", "ttft_p99=1ms", "--config", file)
    assert done.exit_code == 1
    for words in ("provisioned", "provider", "all", "extrapolated", "ttft_p99", "missed"):
        assert words in done.output


def test_the_least_replicas_are_found(file: Path) -> None:
    args = ("simulate", "m", "--rate", "20", "--slo", "ttft_p99=300ms,tpot_p99=40ms", "--config", file)
    done = forebay(*args, "--find-replicas", "own", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    least = told["replicas"]
    assert least > 2
    assert forebay(*args, "--replicas", f"own={least}").exit_code == 0
    assert forebay(*args, "--replicas", f"own={least - 1}").exit_code == 1
    assert (
        "are not enough"
        in forebay(
            *("simulate", "m", "--rate", "1", "--duration-s", "2", "--slo", "ttft_p50=1ms"),
            *("--find-replicas", "own", "--config", file),
        ).stdout
    )


def test_a_benchmark_is_calibrated_and_what_was_held_out_is_predicted(file: Path) -> None:
    done = forebay("simulate", "calibrate", "own", "--hold-out", "4", "--json", "--config", file)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["profile"]["step_s"] == pytest.approx(0.01, rel=0.15)
    assert [check["is_held_out"] for check in told["checks"]] == [False, True, False, True]
    for check in told["checks"]:
        assert abs(check["errors"]["mean_tpot_ms"]) < 0.1
        assert abs(check["errors"]["mean_ttft_ms"]) < 0.2
    shown = forebay("simulate", "calibrate", "own", "--hold-out", "4", "--config", file)
    assert "predicted" in shown.output


TRACES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2026-11-16 18:15:46.6805900,374,44\n2026-11-16 18:15:50.9951690,396,109\n",
    "own.jsonl": '{"at_s": 5, "input_tokens": 9, "output_tokens": 9, "priority": "batch", "session": "s"}\n\n'
    '{"at_s": 1, "input_tokens": 9, "output_tokens": 9, "model": "other", "project": "p"}\n',
}


@pytest.mark.parametrize("name", TRACES)
def test_a_recorded_load_is_read(file: Path, tmp_path: Path, name: str) -> None:
    trace = tmp_path / name
    trace.write_text(TRACES[name])
    done = forebay("simulate", "m", "--trace", trace, "--json", "--config", file)
    assert done.exit_code == 0, done.output
    (load,) = json.loads(done.stdout)["loads"]
    assert load["total"]["requests"] == 2
    assert load["load"].startswith(f"{name}, 2 requests in 4 s")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no requests"),
        ("x", "trace.jsonl:1 is no JSON"),
        ("[1]", "no JSON object"),
        ('{"at_s": 1, "input_tokens": 3}', "output_tokens is None"),
        ('{"at_s": "soon", "input_tokens": 3, "output_tokens": 3}', "neither seconds nor a moment"),
        ('{"at_s": 1, "input_tokens": 3, "output_tokens": 3, "priority": "high"}', "none of interactive"),
        ('{"at_s": 1, "input_tokens": 3, "output_tokens": 3, "model": "gone"}', "'gone' is no model"),
    ],
)
def test_a_trace_with_a_mistake_is_refused_with_its_place(
    file: Path, tmp_path: Path, text: str, words: str
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    done = forebay("simulate", "m", "--trace", trace, "--config", file)
    assert done.exit_code in (1, 2)
    assert words in done.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["m"], "--rate and --trace"),
        (["gone", "--rate", "1"], "models: m, other"),
        (["m", "n", "--rate", "1"], "one model"),
        (["m", "--rate", "x"], "--rate"),
        (["m", "--rate", "90000", "--duration-s", "9000"], "more than 1,000,000"),
        (["m", "--rate", "1", "--class", "high"], "none of interactive"),
        (["m", "--rate", "1", "--slo", "ttft=5ms"], "METRIC_STATISTIC"),
        (["m", "--rate", "1", "--slo", "ttft_p99=5"], "says no time"),
        (["m", "--rate", "1", "--slo", "refused=x%"], "no number"),
        (["m", "--rate", "1", "--find-replicas", "own"], "what is enough"),
        (["m", "--rate", "1", "--slo", "ttft_p99=5ms", "--find-replicas", "p"], "pools: cloud, own"),
        (["m", "--rate", "1", "--replicas", "own=0"], "from 1 to"),
        (["m", "--rate", "1", "--replicas", "own"], "POOL=VALUE"),
        (["m", "--rate", "1", "--profile", "p=own"], "no pool 'p'"),
        (["m", "--rate", "1", "--profile", "own=gone"], "forebay bench own"),
        (["calibrate"], "one result"),
        (["calibrate", "gone"], "neither a file nor"),
        (["calibrate", "own", "--hold-out", "3"], "no level 3 at once"),
        (["calibrate", "own", "--hold-out", "4,8"], "2 levels of a closed loop"),
    ],
)
def test_what_can_not_be_simulated_is_said(file: Path, args: list[str], words: str) -> None:
    done = forebay("simulate", *args, "--config", file)
    assert done.exit_code in (1, 2)
    assert words in done.output
    assert "Traceback" not in done.output
