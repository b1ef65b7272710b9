"""The simulated engine: prompts one after the other, streams together, no more than slots."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_fleets import PLAIN, list_sizes

from forebay.sim.direct import Size, run_closed, run_open
from forebay.sim.engine import EngineProfile


def test_one_request_takes_what_its_parts_take() -> None:
    (only,) = run_closed(PLAIN, [(100, 11)], 1).outcomes
    assert only.ttft_s == pytest.approx(0.02 + 100 * 0.0003)
    assert only.e2el_s - only.ttft_s == pytest.approx(10 * 0.012)


def test_an_answer_of_one_token_ends_with_it() -> None:
    (only,) = run_closed(PLAIN, [(100, 1)], 1).outcomes
    assert only.ttft_s == only.e2el_s
    assert only.tpot_s is None


def test_streams_share_a_step() -> None:
    profile = EngineProfile(step_s=0.01, step_per_stream_s=0.002)
    for streams in (1, 4, 10):
        run = run_closed(profile, [(1, 21)] * streams, streams)
        for each in run.outcomes:
            assert each.tpot_s == pytest.approx(0.01 + 0.002 * streams)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_while_a_prompt_is_read_the_streams_keep_a_part_of_their_speed(overlap: float) -> None:
    profile = EngineProfile(prefill_s_per_token=0.001, step_s=0.01, overlap=overlap)
    first, second = run_open(profile, [(1, 101), (200, 2)], [0.0, 0.1]).outcomes[::-1]
    assert (first.output_tokens, second.output_tokens) == (101, 2)
    assert first.e2el_s == pytest.approx(0.001 + 1.0 + 0.2 * (1 - overlap))


def test_prompts_are_read_one_after_the_other() -> None:
    profile = EngineProfile(first_s=0.05, prefill_s_per_token=0.001, step_s=0.01)
    firsts = sorted(each.ttft_s for each in run_closed(profile, [(100, 1)] * 3, 3).outcomes)
    assert firsts == pytest.approx([0.15, 0.25, 0.35])


def test_beyond_its_slots_requests_wait_in_its_line() -> None:
    profile = EngineProfile(first_s=0.1, step_s=0.01, slots=2)
    firsts = sorted(each.ttft_s for each in run_closed(profile, [(1, 11)] * 6, 6).outcomes)
    assert firsts == pytest.approx([0.1, 0.1, 0.3, 0.3, 0.5, 0.5])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40), st.floats(0, 3)), min_size=1, max_size=12),
    st.sampled_from([None, 1, 3]),
    st.floats(0.2, 1),
)
def test_it_does_what_small_steps_of_time_do(
    asked: list[tuple[int, int, float]], slots: int | None, overlap: float
) -> None:
    """Another way to the same: time in small steps, every stream looked at."""
    asked.sort(key=lambda each: each[2])
    profile = EngineProfile(
        first_s=0.03,
        prefill_s_per_token=0.0007,
        step_s=0.008,
        step_per_stream_s=0.003,
        overlap=overlap,
        slots=slots,
    )
    sizes: list[Size] = [(prompt, output) for prompt, output, _ in asked]
    run = run_open(profile, sizes, [at for _, _, at in asked])
    found = sorted(each.e2el_s for each in run.outcomes)
    assert found == pytest.approx(sorted(step_through(profile, asked)), rel=0.03, abs=0.03)


def step_through(
    profile: EngineProfile, asked: list[tuple[int, int, float]], step: float = 0.0005
) -> list[float]:
    reading: list[list[float]] = []  # of each: index, what is left of the prompt in seconds
    first: list[list[float]] = []
    streams: list[list[float]] = []
    ends = [0.0] * len(asked)
    waiting, line, now = list(range(len(asked))), [], 0.0
    while waiting or line or reading or first or streams:
        while waiting and asked[waiting[0]][2] <= now:
            line.append(waiting.pop(0))
        while line and (profile.slots is None or len(reading) + len(first) + len(streams) < profile.slots):
            index = line.pop(0)
            reading.append([index, asked[index][0] * profile.prefill_s_per_token])
        speed = step / (profile.step_s + profile.step_per_stream_s * len(streams))
        speed *= profile.overlap if reading else 1.0
        for stream in streams:
            stream[1] -= speed
        for each in first:
            each[1] -= step
        if reading:
            reading[0][1] -= step
        now += step
        for stream in [each for each in streams if each[1] <= 0]:
            streams.remove(stream)
            ends[int(stream[0])] = now - asked[int(stream[0])][2]
        for each in [each for each in first if each[1] <= 0]:
            first.remove(each)
            left = asked[int(each[0])][1] - 1
            if left:
                streams.append([each[0], left])
            else:
                ends[int(each[0])] = now - asked[int(each[0])][2]
        if reading and reading[0][1] <= 0:
            first.append([reading.pop(0)[0], profile.first_s])
    return ends


def test_the_same_seed_gives_the_same_and_requests_differ_as_told() -> None:
    profile = msgspec.structs.replace(PLAIN, first_sigma=0.3, token_sigma=0.2)
    runs = [run_closed(profile, list_sizes(400), 1, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    plain = run_closed(PLAIN, list_sizes(400), 1)
    mean = sum(each.ttft_s for each in runs[0].outcomes) / sum(each.ttft_s for each in plain.outcomes)
    assert mean == pytest.approx(1, abs=0.06)


def test_replicas_are_asked_in_turn() -> None:
    one, two = (run_closed(PLAIN, list_sizes(64), 8, replicas) for replicas in (1, 2))
    half = run_closed(PLAIN, list_sizes(32), 4)
    assert two.duration_s < one.duration_s
    assert two.duration_s == pytest.approx(half.duration_s, rel=0.05)
