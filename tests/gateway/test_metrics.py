"""Counters: a page that Prometheus reads, the sum of all workers living and dead, and harmless damage."""

import fcntl
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from gateway_stage import Stage
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from forebay.core.events import Finished, Tokens
from forebay.core.routes import Endpoint, RouteTable
from forebay.gateway.metrics import MAGIC, Cells, fold_dead_files, render_metrics
from forebay.gateway.metrics_layout import DURATION_S, Layout, compute_layout
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import usage, well_behaved

ROUTES = [make_route("m", "http://a/v1"), make_route('odd "name"\n\\', "http://b/v1", "http://c/v1")]
LAYOUT = compute_layout(RouteTable(routes=tuple(ROUTES)))
few = settings(max_examples=25, deadline=None)


Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(folder: Path) -> Page:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render_metrics(folder).decode())
        for sample in family.samples
    }


def total(folder: Path, name: str, **labels: str) -> float:
    return total_of(read(folder), name, **labels)


def total_of(page: Page, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (known, at), value in page.items() if known == name and wanted <= at)


def finished(status: int = 200, duration_ns: int = 20_000_000, tokens: Tokens | None = None) -> Finished:
    return Finished(
        request_id="r",
        at_ns=0,
        key="k",
        status=status,
        tokens=tokens or Tokens(),
        duration_ns=duration_ns,
    )


# --- the page -----------------------------------------------------------------------------------------------


def test_the_page_is_what_prometheus_reads(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    client.post("/chat/completions", json={"model": "m"})
    answer = client.get(gateway.origin + "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    kinds = {name: family.type for name, family in families.items()}
    assert kinds["forebay_requests"] == "counter"
    assert kinds["forebay_request_duration_seconds"] == "histogram"
    assert kinds["forebay_time_to_first_token_seconds"] == "histogram"
    assert kinds["forebay_requests_in_flight"] == "gauge"
    for family in families.values():
        assert family.documentation
        assert len({(s.name, frozenset(s.labels.items())) for s in family.samples}) == len(family.samples)
        if family.type == "histogram":
            check_histogram(family)


def check_histogram(family: object) -> None:
    series: dict[frozenset[tuple[str, str]], dict[str, float]] = {}
    for sample in family.samples:  # type: ignore[attr-defined]
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        known = series.setdefault(frozenset(labels.items()), {})
        known[sample.labels.get("le", sample.name)] = sample.value
    for known in series.values():
        counts = [value for name, value in known.items() if name[0].isdigit() or name == "+Inf"]
        assert counts == sorted(counts)
        assert known["+Inf"] == next(value for name, value in known.items() if name.endswith("_count"))


def test_each_request_is_counted_once_by_model_endpoint_and_status(
    gateway: GatewayProcess, client: httpx.Client, upstream: Stage
) -> None:
    upstream.answer = well_behaved("Hi", tokens=usage(100, 50, cached=60, reasoning=45))
    model = {"model": "alias", "endpoint": "chat/completions"}
    names = {
        "requests": ("forebay_requests_total", model | {"status": "2xx"}),
        "input": ("forebay_tokens_total", model | {"type": "input"}),
        "input_cached": ("forebay_tokens_total", model | {"type": "input_cached"}),
        "output": ("forebay_tokens_total", model | {"type": "output"}),
        "output_reasoning": ("forebay_tokens_total", model | {"type": "output_reasoning"}),
        "durations": ("forebay_request_duration_seconds_count", model),
        "first tokens": ("forebay_time_to_first_token_seconds_count", model),
        "attempts": ("forebay_attempts_total", {"target": "alias-0", "result": "ok"}),
        "unknown models": ("forebay_requests_total", {"model": "", "status": "4xx"}),
        "wrong keys": ("forebay_refused_total", {"reason": "unauthenticated"}),
        "unknown paths": ("forebay_refused_total", {"reason": "unknown_url"}),
        "overheads": ("forebay_overhead_seconds_count", {}),
    }
    before = {name: gateway.metric(metric, **labels) for name, (metric, labels) in names.items()}
    for stream in (False, True):
        assert client.post("/chat/completions", json={"model": "alias", "stream": stream}).status_code == 200
    client.post("/chat/completions", json={"model": "nobody knows"})
    client.post("/chat/completions", headers={"authorization": "Bearer wrong"}, json={})
    client.get("/nothing")
    gateway.wait_idle()
    after = {name: gateway.metric(metric, **labels) for name, (metric, labels) in names.items()}
    assert {name: after[name] - before[name] for name in names} == {
        "requests": 2, "input": 80, "input_cached": 120, "output": 10, "output_reasoning": 90, "durations": 2,
        "first tokens": 1, "attempts": 2, "unknown models": 1, "wrong keys": 1,
        "unknown paths": 1, "overheads": 3,
    }  # fmt: skip


def test_each_class_of_tokens_has_a_series_of_its_own(tmp_path: Path) -> None:
    cells = Cells(tmp_path, "w", LAYOUT)
    each = {name: 3**number for number, name in enumerate(Tokens.__struct_fields__)}
    for _ in range(2):
        cells.count_finished(cells.endpoint("m", "embeddings"), finished(tokens=Tokens(**each)))
    for name, count in each.items():
        assert total(tmp_path, "forebay_tokens_total", type=name) == 2 * count
    cells.close()


# --- cells --------------------------------------------------------------------------------------------------


@few
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([200, 404, 499, 502]), st.integers(0, 400 * 10**9)), max_size=10),
        max_size=5,
    )
)
def test_the_page_is_the_sum_of_all_workers_living_and_dead(
    tmp_path_factory: pytest.TempPathFactory, workers: list[list[tuple[int, int]]]
) -> None:
    folder = tmp_path_factory.mktemp("cells")
    living = []
    for number, requests in enumerate(workers):
        cells = Cells(folder, f"w{number}", LAYOUT)
        at = cells.endpoint("m", "completions")
        for status, duration_ns in requests:
            cells.count_finished(
                at, finished(status, duration_ns, Tokens(input=3, output=2, output_reasoning=1))
            )
        living.append(cells)
    everything = [request for requests in workers for request in requests]

    def check() -> None:
        page = read(folder)
        assert total_of(page, "forebay_requests_total", model="m") == len(everything)
        for kind, statuses in {"2xx": [200], "4xx": [404], "499": [499], "5xx": [502]}.items():
            expected = sum(status in statuses for status, _ in everything)
            assert total_of(page, "forebay_requests_total", status=kind) == expected
        assert total_of(page, "forebay_tokens_total", type="input") == 3 * len(everything)
        assert total_of(page, "forebay_tokens_total", type="output_reasoning") == len(everything)
        for bound in DURATION_S:
            expected = sum(duration_ns * 1e-9 <= bound for _, duration_ns in everything)
            labels = {"model": "m", "endpoint": "completions", "le": str(bound)}
            assert total_of(page, "forebay_request_duration_seconds_bucket", **labels) == expected

    if workers:
        check()
    for cells in living[::2]:
        cells.close()
    if workers:
        check()
    fold_dead_files(folder)
    fold_dead_files(folder)
    if workers:
        check()
    assert len(list(folder.glob("*.cells"))) == len(living) - max(0, len(living[::2]) - 1)
    for cells in living[1::2]:
        cells.close()


def test_gauges_of_the_dead_are_not_counted(tmp_path: Path) -> None:
    dead, alive = Cells(tmp_path, "w0", LAYOUT), Cells(tmp_path, "w1", LAYOUT)
    dead.cells[dead.in_flight] = 7
    alive.cells[alive.in_flight] = 2
    assert total(tmp_path, "forebay_requests_in_flight") == 9
    dead.close()
    assert total(tmp_path, "forebay_requests_in_flight") == 2
    fold_dead_files(tmp_path)
    assert total(tmp_path, "forebay_requests_in_flight") == 2
    alive.close()


FOLD_AND_DIE = """
import os, pathlib, signal, sys
from forebay.gateway.metrics import fold_dead_files
left = int(sys.argv[2])
def die(event, arguments):
    global left
    if event in ("os.rename", "os.remove", "open") and str(arguments[0]).startswith(sys.argv[1]):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
fold_dead_files(pathlib.Path(sys.argv[1]))
"""


def test_a_fold_that_is_killed_at_any_point_counts_everything_once(tmp_path: Path) -> None:
    for number in range(3):
        cells = Cells(tmp_path / "before", f"w{number}", LAYOUT)
        cells.count_finished(cells.endpoint("m", "completions"), finished())
        cells.close()
    for steps in range(100):
        folder = tmp_path / str(steps)
        shutil.copytree(tmp_path / "before", folder)
        code = subprocess.run([sys.executable, "-c", FOLD_AND_DIE, folder, str(steps)]).returncode
        assert total(folder, "forebay_requests_total") == 3, steps
        fold_dead_files(folder)
        assert total(folder, "forebay_requests_total") == 3, steps
        assert [path.name for path in folder.glob("*.cells")] == ["w0.cells"]
        if code == 0:
            assert steps > 6, "it died at each step before"
            return
        assert code == -signal.SIGKILL
    pytest.fail("the fold never ended")


def test_gauges_of_a_layout_that_was_given_up_are_not_counted(tmp_path: Path) -> None:
    old, new = Cells(tmp_path, "w0-1", LAYOUT), Cells(tmp_path, "w0-2", LAYOUT)
    old.cells[old.records_waiting] = 5
    old.cells[old.in_flight] = 2
    old.retire()
    new.cells[new.records_waiting] = 5
    assert total(tmp_path, "forebay_records_waiting") == 5
    new.cells[new.in_flight] = 2  # of both, as the worker counts them
    assert total(tmp_path, "forebay_requests_in_flight") == 2
    old.close()
    new.close()


def test_counts_of_models_that_are_gone_stay(tmp_path: Path) -> None:
    old = Cells(tmp_path, "w0-1", compute_layout(RouteTable(routes=(make_route("old", "http://a/v1"),))))
    old.count_finished(old.endpoint("old", "completions"), finished())
    new = Cells(tmp_path, "w0-2", LAYOUT)
    new.count_finished(new.endpoint("m", "completions"), finished())
    old.close()
    fold_dead_files(tmp_path)
    assert total(tmp_path, "forebay_requests_total", model="old") == 1
    assert total(tmp_path, "forebay_requests_total") == 2
    new.close()


def test_names_of_models_may_hold_any_character(tmp_path: Path) -> None:
    cells = Cells(tmp_path, "w0", LAYOUT)
    cells.count_finished(cells.endpoint('odd "name"\n\\', Endpoint.CHAT.value), finished())
    assert total(tmp_path, "forebay_requests_total", model='odd "name"\n\\', status="2xx") == 1
    cells.close()


def test_every_series_has_cells_of_its_own() -> None:
    places: set[int] = set()
    widths = {family.name: family.width for family in LAYOUT.families}
    for series in LAYOUT.series:
        cells = set(range(series.offset, series.offset + widths[series.family]))
        assert not cells & places
        places |= cells
    assert places == set(range(LAYOUT.size))
    assert len(LAYOUT.index()) == len(LAYOUT.series)


DAMAGED = {
    "empty": b"",
    "short": MAGIC[:5],
    "no length": MAGIC + b"\1",
    "a length beyond the end": MAGIC + struct.pack("<I", 1 << 30) + b"{}",
    "no JSON": MAGIC + struct.pack("<I", 8) + b"nonsense" + b"\0" * 64,
    "another layout": MAGIC + struct.pack("<I", 4) + b"[1] " + b"\0" * 64,
    "zeros": b"\0" * 4096,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_hides_no_other(tmp_path: Path, name: str) -> None:
    cells = Cells(tmp_path, "w1", LAYOUT)
    cells.count_finished(cells.endpoint("m", "completions"), finished())
    (tmp_path / "w0.cells").write_bytes(DAMAGED[name])
    (tmp_path / "w2.cells").write_bytes(DAMAGED[name])
    fold_dead_files(tmp_path)
    assert total(tmp_path, "forebay_requests_total") == 1
    cells.close()


def test_a_reader_cannot_disturb_a_worker_that_starts(tmp_path: Path) -> None:
    """Readers lock each file for a moment to see who lives, so a file may not be seen before it is locked."""
    seen: list[list[Path]] = []
    listening = [True]

    def listen(event: str, arguments: tuple[int, ...]) -> None:
        if listening and event == "fcntl.flock" and arguments[1] & fcntl.LOCK_EX:
            seen.append(list(tmp_path.glob("*.cells")))

    sys.addaudithook(listen)
    try:
        Cells(tmp_path, "w0", LAYOUT).close()
    finally:
        listening.clear()
    assert seen == [[]]
    assert [path.name for path in tmp_path.iterdir()] == ["w0.cells"]


def test_a_file_that_the_disk_refuses_leaves_nothing(tmp_path: Path) -> None:
    code = """
import pathlib, resource, signal, sys
from forebay.core.routes import RouteTable
from forebay.gateway.metrics import Cells
from forebay.gateway.metrics_layout import compute_layout
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    Cells(pathlib.Path(sys.argv[1]), "w0", compute_layout(RouteTable(routes=())))
except OSError:
    sys.exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == 9
    assert list(tmp_path.iterdir()) == []


def test_a_layout_reads_back() -> None:
    assert msgspec.json.decode(msgspec.json.encode(LAYOUT), type=Layout) == LAYOUT
