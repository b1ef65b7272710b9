"""What engines say of their load is read from their own pages, and nothing that is on a page breaks the
reading."""

import time
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from forebay.engines.load_health import Health, judge_health
from forebay.engines.load_names import LOAD_NAMES, EngineKind, find_kind
from forebay.engines.load_page import ADAPTERS_MAX, COUNT_MAX, LoadPage, Reading, read_adapters, read_slots
from forebay.engines.load_wait import WINDOW_S, QueueWait
from forebay.testing.engines import FakeEngine, Waits

NAMES = [name for names in LOAD_NAMES.values() for name in names.names]
COUNTS = st.integers(min_value=0, max_value=10_000)


# --- golden pages -------------------------------------------------------------------------------------------


def test_vllm() -> None:
    engine = FakeEngine(
        EngineKind.VLLM,
        model="llama-70b",
        running=12,
        waiting=3,
        kv_cache_used=0.625,
        waits=Waits(total_s=4.5, requests=9),
        adapters=["sql"],
        running_adapters=["sql", "poems"],
    )
    assert LoadPage(engine.render()).read("llama-70b") == Reading(
        running=12, waiting=3, kv_cache_used=0.625, queue_sum_s=4.5, queue_count=9, adapters=("poems", "sql")
    )


def test_vllm_of_before_0_9() -> None:
    page = LoadPage(
        'vllm:num_requests_running{model_name="m"} 2.0\n'
        'vllm:num_requests_waiting{model_name="m"} 0.0\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.31\n'
    )
    assert page.read("m") == Reading(running=2, waiting=0, kv_cache_used=0.31)


def test_the_new_name_counts_where_both_are_there() -> None:
    page = LoadPage('vllm:gpu_cache_usage_perc{} 0.1\nvllm:kv_cache_usage_perc{model_name="m"} 0.9\n')
    assert page.read("m").kv_cache_used == 0.9


def test_engines_behind_one_address_are_added_up() -> None:
    page = LoadPage(
        'vllm:num_requests_running{engine="0",model_name="m"} 2\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 5\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6\n'
    )
    assert page.read("m").running == 7
    assert page.read("m").kv_cache_used == pytest.approx(0.4)
    assert page.read("an-adapter").running == 7  # whose name is on no line: all of it concerns it


def test_llama_cpp() -> None:
    engine = FakeEngine(EngineKind.LLAMA_CPP, running=4, waiting=46, kv_cache_used=None)
    assert LoadPage(engine.render()).read("any") == Reading(running=4, waiting=46)
    engine.kv_cache_used = 0.5
    assert LoadPage(engine.render()).read("any").kv_cache_used == 0.5


def test_triton_tells_models_apart() -> None:
    engine = FakeEngine(EngineKind.TRITON, model="gb", waiting=3, waits=Waits(total_s=0.002, requests=4))
    page = LoadPage(engine.render())
    assert page.kind is EngineKind.TRITON
    assert page.read("gb") == Reading(waiting=3, queue_sum_s=pytest.approx(0.002), queue_count=4, generated=4)
    assert page.read("another").waiting == 99
    assert page.read("not-on-the-page").waiting == 102


def test_sglang_and_tgi() -> None:
    waits = Waits(total_s=1.0, requests=2)
    for kind in (EngineKind.SGLANG, EngineKind.TGI):
        found = LoadPage(FakeEngine(kind, running=1, waiting=2, waits=waits).render()).read("m")
        assert (found.running, found.waiting, found.queue_sum_s, found.queue_count) == (1, 2, 1.0, 2)


def test_the_newest_line_of_adapters_counts() -> None:
    lines = [
        f'vllm:lora_requests_info{{running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {at}'
        for running, waiting, at in (("a", "", 1.7e9 + 9), ("b,c", "d", 1.7e9 + 10), ("", "", 1.7e9))
    ]
    assert LoadPage("\n".join(lines)).read("m").adapters == ("b", "c", "d")


@pytest.mark.parametrize("kind", list(EngineKind))
def test_each_page_is_known_for_what_it_is(kind: EngineKind) -> None:
    page = LoadPage(FakeEngine(kind, running=1).render())
    assert page.kind is kind
    assert not page.read("m").is_empty


def test_a_page_of_something_else_says_nothing() -> None:
    page = LoadPage("# TYPE up gauge\nup 1\nhttp_requests_total 5\n")
    assert page.kind is None
    assert page.read("m").is_empty


def test_names_of_engines() -> None:
    assert find_kind("vLLM") is EngineKind.VLLM
    assert find_kind("llamacpp") is find_kind("llama.cpp") is EngineKind.LLAMA_CPP
    assert find_kind("something") is None


def test_a_large_page_costs_little() -> None:
    """What is not of interest is not parsed."""
    rest = "".join(f'vllm:iteration_tokens_total_bucket{{engine="0",le="{at}"}} {at}\n' for at in range(5000))
    page = rest + FakeEngine(running=3).render() + rest
    began = time.process_time()
    for _ in range(10):
        assert LoadPage(page).read("m").running == 3
    assert (time.process_time() - began) / 10 < 0.1


def make_adapter_line(adapters: str, at: int) -> str:
    return f'vllm:lora_requests_info{{running_lora_adapters="{adapters}",waiting_lora_adapters=""}} {at}\n'


def test_lines_of_every_set_of_adapters_that_there_was_hide_nothing() -> None:
    """vLLM keeps a line for each set of adapters that ever ran together."""
    old = "".join(make_adapter_line(f"a{at},b{at % 7}", at) for at in range(9000))
    page = LoadPage(old + make_adapter_line("new", 9000) + FakeEngine(running=3).render())
    assert page.read("m").running == 3
    assert page.read("m").adapters == ("new",)


ODD = {
    "labels": "vllm:num_requests_running{" + ",".join(f'a{at}="{"x" * 10}"' for at in range(200)) + "} 1\n",
    "escapes": 'vllm:num_requests_running{a="' + "\\\\" * 8000 + '"} 1\n',
    "quotes": "vllm:num_requests_running{" + 'a="' * 5000 + "} 1\n",
    "commas": "vllm:num_requests_running{" + "," * 16_000 + "} 1\n",
    "open": 'vllm:num_requests_running{a="' + "\\" * 15_000 + " 1\n",
    "spaces": "vllm:num_requests_running" + " " * 16_000 + "1\n",
    "lines": 'vllm:num_requests_running{model_name="m"} 1\n',
    "adapters": make_adapter_line(",".join(f"a{at}" for at in range(2000)), 1),
}


@pytest.mark.parametrize("name", list(ODD))
def test_no_page_holds_up_the_process_that_reads_it(name: str) -> None:
    """It shares its loop with the shared limits: a page of the largest size, for a replica of many models."""
    text = ODD[name] * ((1 << 20) // len(ODD[name]))
    began = time.process_time()
    page = LoadPage(text)
    for at in range(100):
        page.read(f"m{at}")
    assert time.process_time() - began < 0.8


@given(st.dictionaries(st.text(max_size=12), st.integers(0, 1000), min_size=1, max_size=5))
def test_models_of_any_name_are_told_apart(models: dict[str, int]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:num_requests_running", "Requests.", ["engine", "model_name"], registry=registry)
    for model, running in models.items():
        gauge.labels("0", model).set(running)
    page = LoadPage(generate_latest(registry).decode())
    assert {model: page.read(model).running for model in models} == models


# --- bad pages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["NaN", "-1", "+Inf", "-Inf", "1e300", "abc", "", "1e9999", str(COUNT_MAX + 1)]
)
def test_a_value_that_is_none_is_unknown(value: str) -> None:
    page = LoadPage(f"llamacpp:requests_processing {value}\nllamacpp:requests_deferred 2\n")
    assert page.read("m") == Reading(waiting=2)


@pytest.mark.parametrize("value", ["NaN", "-0.5", "62", "+Inf"])
def test_a_share_that_is_none_is_unknown(value: str) -> None:
    assert LoadPage(f"vllm:kv_cache_usage_perc {value}\n").read("m").kv_cache_used is None


def test_a_line_that_can_not_be_read_costs_no_other() -> None:
    page = LoadPage(
        'vllm:num_requests_running{model_name="m" 3\n'
        'vllm:num_requests_waiting{model_name="m"} 4\n'
        "vllm:kv_cache_usage_perc{{{}}} 0.5\n"
    )
    assert page.read("m") == Reading(waiting=4)


LINES = st.one_of(
    st.text(max_size=60),
    st.builds(
        "{}{} {}".format,
        st.sampled_from([*NAMES, "vllm:lora_requests_info"]),
        st.one_of(
            st.just(""),
            st.text(max_size=20).map(lambda text: f"{{{text}}}"),
            st.text(max_size=20).map(lambda text: f'{{model_name="{text}"}}'),
            st.text(max_size=20).map(lambda text: f'{{running_lora_adapters="{text}"}}'),
        ),
        st.one_of(st.floats(), st.integers(), st.text(max_size=10)),
    ),
)


@given(st.lists(LINES, max_size=12).map("\n".join))
@example('vllm:num_requests_running{model_name="\\')
@example("vllm:num_requests_running{\n")
def test_any_page_is_read_and_what_is_read_can_be(text: str) -> None:
    found = LoadPage(text).read("m")
    for count in (found.running, found.waiting):
        assert count is None or 0 <= count <= COUNT_MAX
    assert found.kv_cache_used is None or 0 <= found.kv_cache_used <= 1
    assert found.queue_sum_s is None or 0 <= found.queue_sum_s < inf
    assert found.queue_count is None or found.queue_count >= 0
    assert len(found.adapters) <= ADAPTERS_MAX


@given(COUNTS, COUNTS, st.floats(min_value=0, max_value=1), st.sampled_from(list(EngineKind)))
def test_what_an_engine_shows_is_read(running: int, waiting: int, share: float, kind: EngineKind) -> None:
    engine = FakeEngine(kind, running=running, waiting=waiting, kv_cache_used=share)
    found, names = LoadPage(engine.render()).read("m"), LOAD_NAMES[kind]
    assert found.running == (running if names.running else None)
    assert found.waiting == waiting
    assert found.kv_cache_used == (share if names.kv_cache_used else None)


# --- slots, models, health ----------------------------------------------------------------------------------


def test_slots_of_llama_cpp() -> None:
    assert read_slots(b'[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]').running == 1
    assert read_slots(b'[{"id":0,"state":1},{"id":1,"state":0}]').running == 1  # as older builds say it


@given(st.binary(max_size=40))
@example(b"[]")
@example(b"[{}]")
@example(b"[" * 100_000)
@example(b'{"data":[{"id":"a","parent":3}]}')
def test_other_bodies_say_nothing(body: bytes) -> None:
    assert read_slots(body).is_empty
    assert read_adapters(body) == ()


def test_adapters_are_the_models_with_a_parent() -> None:
    listed = b'{"data":[{"id":"base","parent":null},{"id":"b","parent":"base"},{"id":"a","parent":"c"}]}'
    assert read_adapters(listed) == ("a", "b")


@pytest.mark.parametrize(
    ("status", "body", "health"),
    [
        (200, b"", Health.SERVING),
        (503, b'{"error":{"message":"Loading model","code":503}}', Health.LOADING),
        (503, b"", Health.FAILED),
        (400, b"", Health.FAILED),
        (404, b"", Health.SILENT),
        (401, b"", Health.SILENT),
        (429, b"", Health.SILENT),
    ],
)
def test_health(status: int, body: bytes, health: Health) -> None:
    assert judge_health(status, body) is health


# --- the queue's mean ---------------------------------------------------------------------------------------


def test_the_mean_is_of_the_last_while() -> None:
    wait = QueueWait()
    assert wait.see(0.0, 100.0, 50) is None  # what was before nobody knows the time of
    assert wait.see(1.0, 103.0, 52) == pytest.approx(1.5)
    for second in range(2, 2 + int(WINDOW_S) + 1):
        last = wait.see(float(second), 103.0, 52)
    assert last is None  # nobody left the queue: that is not a wait of 0
    assert wait.see(20.0, 103.5, 57) == pytest.approx(0.1)


def test_an_engine_that_began_anew_is_not_read_as_a_negative_wait() -> None:
    wait = QueueWait()
    wait.see(0.0, 100.0, 50)
    assert wait.see(1.0, 0.5, 1) is None
    assert wait.see(2.0, 0.75, 2) == pytest.approx(0.25)


COUNTERS = st.tuples(
    st.one_of(st.none(), st.floats(min_value=0, max_value=1e300)),
    st.one_of(st.none(), st.integers(min_value=0, max_value=10**12)),
)


@given(st.lists(COUNTERS, max_size=40))
def test_no_counters_give_a_wait_that_can_not_be(counters: list[tuple[float | None, int | None]]) -> None:
    wait = QueueWait()
    for second, (total_s, count) in enumerate(counters):
        mean = wait.see(float(second), total_s, count)
        assert mean is None or (0 <= mean <= 86_400)


@given(st.lists(st.lists(st.floats(min_value=0, max_value=60), max_size=5), min_size=2, max_size=8))
def test_the_mean_lies_between_the_waits_that_it_is_of(seconds: list[list[float]]) -> None:
    wait, waits = QueueWait(), Waits()
    wait.see(0.0, 0.0, 0)
    for second, left in enumerate(seconds, 1):
        waits.add(*left)
        mean = wait.see(float(second), waits.total_s, waits.requests)
    everything = [each for left in seconds for each in left]
    if everything:
        assert mean is not None
        assert min(everything) - 1e-6 <= mean <= max(everything) + 1e-6
