"""The benchmarks' own arithmetic: wrong sums there would publish wrong figures."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        import measure
    finally:
        sys.path.remove(str(BENCH))
    return measure


@pytest.fixture(scope="module")
def workload() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        import workload
    finally:
        sys.path.remove(str(BENCH))
    return workload


@pytest.mark.parametrize("name", ["python", "granian worker", "a) S 1 (b"])
def test_cpu_ticks_are_found_whatever_the_process_is_called(measure: ModuleType, name: str) -> None:
    stat = f"7 ({name}) S 1 7 7 0 -1 4194304 100 0 0 0 42 13 99 99 20 0 1 0 55 1000 20"
    assert measure.parse_cpu_ticks(stat) == 55


def test_a_process_tree_is_charged_for_its_grandchildren(measure: ModuleType) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    # The shell stays, so that the burner is a child of the process that is asked for.
    with subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1"; true', sys.executable, burn],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert len(measure.find_tree(process.pid)) == 2
        assert measure.read_cpu_s(process.pid) >= 0.28
        assert measure.read_rss_mib(process.pid) > 4
        process.communicate(b"\n")


@given(
    slope=st.floats(-10, 10),
    start=st.floats(-1000, 1000),
    xs=st.lists(st.integers(0, 1000), min_size=2, max_size=30, unique=True),
)
def test_the_fitted_line_of_points_on_a_line_is_that_line(
    measure: ModuleType, slope: float, start: float, xs: list[int]
) -> None:
    found, at_zero = measure.compute_slope([float(x) for x in xs], [start + slope * x for x in xs])
    assert found == pytest.approx(slope, abs=1e-6)
    assert at_zero == pytest.approx(start, abs=1e-3)


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=200), quantile=st.floats(0, 1))
def test_a_quantile_is_a_measured_value_with_the_right_share_at_or_below(
    measure: ModuleType, values: list[float], quantile: float
) -> None:
    found = measure.compute_quantile(values, quantile)
    assert found in values
    below = sum(value < found for value in values)
    at_or_below = sum(value <= found for value in values)
    assert below <= quantile * len(values)
    assert at_or_below >= min(len(values), int(quantile * len(values)))


@pytest.mark.parametrize(
    ("value", "target", "holds"), [(0.5, 0.5, True), (0.51, 0.5, False), (3.0, None, None)]
)
def test_the_last_line_is_json_and_says_what_holds(
    measure: ModuleType, value: float, target: float | None, holds: bool | None
) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        measure.publish("x", [measure.Figure(name="n", value=value, unit="u", target=target)])
    assert json.loads(out.getvalue()) == {
        "bench": "x",
        "figures": [{"name": "n", "value": value, "unit": "u", "target": target, "holds": holds}],
    }


def test_one_core_is_refused(measure: ModuleType) -> None:
    assert measure.choose_cores({3, 1, 2}) == measure.Cores(server=3, load=1)
    with pytest.raises(measure.BenchError, match="two cores"):
        measure.choose_cores({0})


def test_what_is_missing_is_named_with_its_remedy(measure: ModuleType) -> None:
    with pytest.raises(measure.BenchError, match=r"no-such-tool\. Install with: make it"):
        measure.require_commands(("sh", "make shell"), ("no-such-tool", "make it"))


def test_the_answers_are_what_they_are_called(workload: ModuleType) -> None:
    assert len(workload.build_answer()) == workload.JSON_BYTES == 300
    assert json.loads(workload.build_answer())["usage"]["total_tokens"] == 23
    *events, rest = workload.build_stream().split(b"\n\n")
    assert rest == b""
    assert len(events) == workload.EVENTS == 34
    assert events[-1] == b"data: [DONE]"
    assert json.loads(events[-2].removeprefix(b"data: "))["usage"]["completion_tokens"] == 30


def test_no_benchmark_starts_without_its_peers(tmp_path: Path) -> None:
    """A copy without the peers' environment says which command makes it, and exits with 1."""
    (tmp_path / "bench").mkdir()
    for source in BENCH.glob("*.py"):
        (tmp_path / "bench" / source.name).write_bytes(source.read_bytes())
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bench" / "gateway.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": "/nonexistent"},
    )
    assert done.returncode == 1
    assert "vllm-router" in done.stderr
    assert "make setup-bench" in done.stderr
    assert done.stdout == ""
