"""Benchmarks against servers whose delays are scripted: the figures come out as scripted."""

import json
import xml.etree.ElementTree as ET
from itertools import count as count_from
from pathlib import Path
from typing import Any

import pytest

from forebay.app import bench_run
from forebay.app.bench_files import BenchResult, find_bench, find_best, list_benches, load_bench, save_bench
from forebay.app.bench_plan import Prompt, Wanted, make_prompts
from forebay.app.bench_plot import draw_plot
from forebay.app.bench_run import Level, Load, Settings, Target, run_levels
from forebay.testing.answers import json_answer
from forebay.testing.openai import DONE, event
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Gate, Script, Send, Sleep, Wait
from forebay.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.anyio
FIRST_S, GAP_S, TOKENS = 0.2, 0.05, 5
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 40, "completion_tokens": TOKENS, "total_tokens": 40 + TOKENS}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def piece(*events: bytes) -> bytes:
    data = b"".join(events)
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str = "x") -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def scripted(request: RecordedRequest) -> Script:
    """The first token after FIRST_S, each of the others after GAP_S."""
    steps: Script = [Sleep(FIRST_S), Send(HEAD + piece(token()))]
    for _ in range(TOKENS - 1):
        steps += [Sleep(GAP_S), Send(piece(token()))]
    return [*steps, Send(piece(event({"choices": [], "usage": USAGE}), DONE) + b"0\r\n\r\n")]


def prompts(count: int) -> list[Prompt]:
    return make_prompts(Wanted(input_tokens=20, output_tokens=TOKENS), count, 1)


async def measure(
    upstream: ScriptedUpstream, *loads: Load, count: int = 8, settings: Settings | None = None
) -> list[Level]:
    target = Target(urls=(upstream.url,), model="m", secret="k")
    return await run_levels(target, loads, prompts(count), settings or Settings())


async def test_figures_come_out_as_scripted() -> None:
    async with ScriptedUpstream(scripted) as upstream:
        (level,) = await measure(upstream, Load(concurrency=4))
        figures = level.figures
        assert figures["errors"] == 0
        assert figures["requests"] == 8
        # Timers fire late on a machine that is busy, by any time, and never early.
        whole = (FIRST_S + (TOKENS - 1) * GAP_S) * 1000
        assert FIRST_S * 1000 <= figures["median_ttft_ms"] <= figures["median_e2el_ms"] >= whole
        assert len(level.samples) == 8
        for sample in level.samples:
            assert len(sample.itl_s) == TOKENS - 1
            assert sample.ttft_s + sum(sample.itl_s) == pytest.approx(sample.e2el_s)
            assert sample.tpot_s == pytest.approx(sum(sample.itl_s) / (TOKENS - 1))
        assert figures["mean_input_tokens"] == 40
        assert figures["mean_output_tokens"] == TOKENS
        assert figures["duration_s"] >= 2 * whole / 1000, "eight requests, four at once"
        assert figures["output_tokens_per_s"] == pytest.approx(8 * TOKENS / figures["duration_s"])
        assert len(upstream.connections) == 4, "connections are kept"
        asked = [request.json() for request in upstream.requests]
        assert all(each["max_tokens"] == TOKENS and each["stream"] for each in asked)
        assert {request.header("authorization") for request in upstream.requests} == {"Bearer k"}
        assert sorted(each["messages"][0]["content"] for each in asked) == sorted(
            each.text for each in prompts(8)
        )


async def test_an_answer_ends_with_its_last_token_and_not_with_its_usage() -> None:
    """As for `vllm bench serve`: what comes later counts for nobody's latency."""

    def handle(request: RecordedRequest) -> Script:
        usage = piece(event({"choices": [], "usage": USAGE}), DONE)
        return [Send(HEAD + piece(token(), token())), Sleep(late_s), Send(usage + b"0\r\n\r\n")]

    for late_s in (1.0, 5.0, 30.0):  # enough on a machine that is calm, and on one that is not
        async with ScriptedUpstream(handle) as upstream:
            (level,) = await measure(upstream, Load(concurrency=1), count=1, settings=Settings(warm_up=0))
        if level.figures["mean_e2el_ms"] < late_s * 1000:
            break
    assert level.figures["mean_e2el_ms"] < late_s * 1000
    assert level.figures["mean_tpot_ms"] < late_s * 1000 / (TOKENS - 1)
    assert level.figures["mean_output_tokens"] == TOKENS
    assert level.figures["duration_s"] >= late_s


async def test_a_closed_loop_has_as_many_in_progress_as_it_is_to_have() -> None:
    now = most = 0

    def handle(request: RecordedRequest) -> Script:
        nonlocal now, most

        def steps() -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            yield Sleep(0.05)
            now -= 1
            yield Send(HEAD + piece(token(), DONE) + b"0\r\n\r\n")

        return steps()

    async with ScriptedUpstream(handle) as upstream:
        await measure(upstream, Load(concurrency=3), count=12)
        assert most == 3


async def test_an_open_loop_waits_for_no_answer() -> None:
    """No answer comes before all were asked for."""
    gate, asked = Gate(), count_from(1)

    def handle(request: RecordedRequest) -> Script:
        if next(asked) == 20:
            gate.open()
        return [Wait(gate), Send(HEAD + piece(token(), DONE) + b"0\r\n\r\n")]

    async with ScriptedUpstream(handle) as upstream:
        (level,) = await measure(upstream, Load(rate_per_s=40.0, arrival="constant"), count=20)
        assert len(upstream.requests) == 20
        assert level.figures["duration_s"] >= 19 / 40 * 0.99
        assert level.figures["errors"] == 0


async def test_requests_that_are_sent_late_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "LAG_WARNED_MS", -1.0)
    async with ScriptedUpstream(scripted) as upstream:
        (level,) = await measure(upstream, Load(rate_per_s=100.0), count=5)
        assert level.figures["max_lag_ms"] >= 0
        assert any("late" in warning for warning in level.warnings)


async def test_what_waits_for_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "IN_FLIGHT_MAX", 3)
    late: Script = [Sleep(3.0), Send(HEAD + piece(token(), DONE) + b"0\r\n\r\n")]
    async with ScriptedUpstream(lambda _: late) as upstream:
        (level,) = await measure(upstream, Load(rate_per_s=1000.0, arrival="constant"), count=10)
        assert level.figures["errors"] == 7
        assert any("3 were in flight" in words for words in level.errors)


async def test_a_generator_that_is_the_bottleneck_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "BUSY_SHARE", 0.0)
    async with ScriptedUpstream(scripted) as upstream:
        (level,) = await measure(upstream, Load(concurrency=2), count=2)
        assert level.generator_cpu_share > 0
        assert any("of a core" in warning for warning in level.warnings)


async def test_warm_up_counts_nowhere() -> None:
    async with ScriptedUpstream(scripted) as upstream:
        (level,) = await measure(upstream, Load(concurrency=2), count=4, settings=Settings(warm_up=3))
        assert len(upstream.requests) == 7
        assert level.figures["requests"] == 4


async def test_latencies_begin_before_there_is_a_connection() -> None:
    """What a connection that was kept in vain costs counts, too."""
    late_s = 0.3

    def handle(request: RecordedRequest) -> Script:
        if request.number_on_connection:
            return [Sleep(late_s), Close()]
        return [Send(HEAD + piece(token(), DONE) + b"0\r\n\r\n")]

    async with ScriptedUpstream(handle) as upstream:
        (level,) = await measure(upstream, Load(concurrency=1), count=2)
        assert level.figures["errors"] == 0
        assert level.samples[1].ttft_s >= late_s


async def test_warm_up_makes_the_connections_of_the_load() -> None:
    slow = [Sleep(0.1), Send(HEAD + piece(token(), DONE) + b"0\r\n\r\n")]
    async with ScriptedUpstream(lambda _: slow) as upstream:
        await measure(upstream, Load(concurrency=6), count=12, settings=Settings(warm_up=6))
        warming = {request.connection for request in upstream.requests[:6]}
        assert len(warming) == len(upstream.connections) == 6


FAILURES = {
    "an error": ([*json_answer({"error": {"message": "full"}}, status=503)], "answered 503"),
    "no stream": ([*json_answer({"choices": []})], "no stream"),
    "an error in the stream": (
        [Send(HEAD + piece(token(), event({"error": {"message": "broke"}})) + b"0\r\n\r\n")],
        "broke",
    ),
    "a cut": ([Send(HEAD + piece(token())), Close()], "lost"),
    "no answer at all": ([Close()], "closed before an answer"),
    "silence": ([Sleep(60)], "within 1 s"),
    "no HTTP": ([Send(b"hello\r\n\r\n"), Close()], "HTTP"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_errors_are_counted_and_told(name: str) -> None:
    script, words = FAILURES[name]
    async with ScriptedUpstream(lambda _: script) as upstream:
        (level,) = await measure(
            upstream,
            Load(concurrency=2),
            count=2,
            settings=Settings(timeout_s=1.0 if name == "silence" else 60.0),
        )
        assert level.figures["errors"] == 2
        assert level.figures["requests"] == 2
        ((told, count),) = level.errors.items()
        assert count == 2
        assert words in told


async def test_nobody_there_is_an_error_too() -> None:
    target = Target(urls=("http://127.0.0.1:1/v1",), model="m")
    (level,) = await run_levels(target, [Load(concurrency=1)], prompts(1), Settings(timeout_s=60))
    assert "can't connect" in next(iter(level.errors))


async def test_replicas_get_requests_in_turn() -> None:
    async with ScriptedUpstream(scripted) as one, ScriptedUpstream(scripted) as two:
        target = Target(urls=(one.url, two.url), model="m")
        await run_levels(target, [Load(concurrency=4)], prompts(8), Settings())
        assert (len(one.requests), len(two.requests)) == (4, 4)


async def test_progress_is_told_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    async with ScriptedUpstream(scripted) as upstream:
        target = Target(urls=(upstream.url,), model="m")
        loads = [Load(concurrency=2), Load(concurrency=4)]
        await run_levels(
            target, loads, prompts(4), Settings(), lambda done, total: seen.append((done, total))
        )
    assert seen == [(at, 8) for at in range(1, 9)]


# --- what is kept -------------------------------------------------------------------------------------------


async def test_a_result_is_kept_found_and_drawn(tmp_path: Path) -> None:
    async with ScriptedUpstream(scripted) as upstream:
        levels = await measure(upstream, Load(concurrency=1), Load(concurrency=8))
    result = BenchResult(target="pool/a b", at_ns=1_800_000_000_000_000_000, model="m", levels=levels)
    result.figures = find_best(levels).figures
    path = save_bench(tmp_path, result)
    assert list(list_benches(tmp_path)) == [path]
    assert path.read_bytes().count(b"\n") == 1
    told = json.loads(path.read_bytes())
    assert {"model", "version", "engine", "engine_version", "hardware", "precision", "figures"} <= told.keys()
    again = find_bench(tmp_path, "pool/a b")
    assert again.levels[1].load == Load(concurrency=8)
    assert again.levels[1].figures == pytest.approx(levels[1].figures)
    assert len(again.levels[1].samples) == 8
    assert load_bench(path) == again
    with pytest.raises(ValueError, match="neither a file nor"):
        find_bench(tmp_path, "other")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="no result"):
        load_bench(tmp_path / "x.json")
    drawn = ET.fromstring(draw_plot(result))
    circles = [each for each in drawn.iter() if each.tag.endswith("circle")]
    assert len(circles) == 4 * 2 + 4, "a point for each line and level, and the legend"


def test_a_plot_of_nothing_can_be_drawn() -> None:
    result = BenchResult(
        target="<a&b>", at_ns=0, model="m", levels=[Level(load=Load(concurrency=1), figures={}, samples=[])]
    )
    ET.fromstring(draw_plot(result))
