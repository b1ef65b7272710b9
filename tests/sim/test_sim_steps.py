"""The simulated engine against one that really goes step by step, as engines do, without a real clock."""

import random
from statistics import fmean, quantiles

import pytest
from sim_fleets import list_sizes

from forebay.sim.calibrate import Observed, calibrate
from forebay.sim.direct import Outcome, Size, run_open
from forebay.sim.engine import EngineProfile

PREFILL_S, STEP_S, STREAM_S = 0.0004, 0.02, 0.005
PROFILE = EngineProfile(
    prefill_s_per_token=PREFILL_S, step_s=STEP_S, step_per_stream_s=STREAM_S, waits_for_step=True
)


class StepEngine:
    """A step reads one prompt, or gives each stream a token; what comes during a step waits for its end."""

    def __init__(self, sizes: list[Size]) -> None:
        self.sizes = sizes
        self.firsts: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self.sent: dict[int, float] = {}
        self.streams: dict[int, int] = {}
        self.waiting: list[int] = []

    def step(self, now: float) -> float:
        """Does one; when it ends."""
        if self.waiting:
            number = self.waiting.pop(0)
            now += self.sizes[number][0] * PREFILL_S
            self.firsts[number], self.streams[number] = now, self.sizes[number][1] - 1
        else:
            now += STEP_S + STREAM_S * len(self.streams)
            for number in self.streams:
                self.streams[number] -= 1
        for number in [each for each, left in self.streams.items() if left <= 0]:
            del self.streams[number]
            self.ends[number] = now
        return now

    @property
    def outcomes(self) -> list[Outcome]:
        return [
            Outcome(
                ttft_s=self.firsts[number] - self.sent[number],
                e2el_s=self.ends[number] - self.sent[number],
                input_tokens=self.sizes[number][0],
                output_tokens=self.sizes[number][1],
            )
            for number in sorted(self.ends)
        ]


def step_open(sizes: list[Size], arrivals: list[float]) -> list[Outcome]:
    engine, now, coming = StepEngine(sizes), 0.0, list(enumerate(arrivals))
    while len(engine.ends) < len(sizes):
        if not engine.streams and not engine.waiting:
            now = max(now, coming[0][1])
        while coming and coming[0][1] <= now:
            number, moment = coming.pop(0)
            engine.sent[number] = moment
            engine.waiting.append(number)
        now = engine.step(now)
    return engine.outcomes


def step_closed(sizes: list[Size], concurrency: int) -> Observed:
    """Callers need 1 ms for their next request, so it misses the step that begins when the last one ends."""
    engine, now, coming = StepEngine(sizes), 0.0, [(number, 0.0) for number in range(concurrency)]
    begun = concurrency
    while len(engine.ends) < len(sizes):
        if not engine.streams and not engine.waiting:
            now = max(now, coming[0][1])
        while coming and coming[0][1] <= now:
            number, moment = coming.pop(0)
            engine.sent[number] = moment
            engine.waiting.append(number)
        ended = len(engine.ends)
        now = engine.step(now)
        for _ in range(len(engine.ends) - ended):
            if begun < len(sizes):
                coming.append((begun, now + 0.001))
                begun += 1
    tokens = sum(output for _, output in sizes)
    return Observed(
        concurrency=concurrency, replicas=1, outcomes=engine.outcomes, output_tokens_per_s=tokens / now
    )


def compare(found: list[Outcome], expected: list[Outcome], most: float, most_p99: float) -> None:
    firsts, others = ([each.ttft_s for each in outcomes] for outcomes in (found, expected))
    assert fmean(firsts) == pytest.approx(fmean(others), rel=most)
    assert quantiles(firsts, n=100)[-1] == pytest.approx(quantiles(others, n=100)[-1], rel=most_p99)
    tokens, others = ([each.tpot_s or 0 for each in outcomes] for outcomes in (found, expected))
    assert fmean(tokens) == pytest.approx(fmean(others), rel=most)


@pytest.mark.parametrize("rate", [1.0, 2.5, 3.5])
def test_an_open_loop_comes_out_as_step_by_step(rate: float) -> None:
    draw = random.Random(1)
    sizes = [(draw.randint(80, 160), draw.randint(16, 32)) for _ in range(600)]
    arrivals, at = [], 0.0
    for _ in sizes:
        at += draw.expovariate(rate)
        arrivals.append(at)
    compare(run_open(PROFILE, sizes, arrivals).outcomes, step_open(sizes, arrivals), 0.06, 0.12)


def test_an_engine_of_steps_is_found_by_its_levels_and_its_open_loop_predicted() -> None:
    draw = random.Random(2)
    sizes = [(draw.randint(80, 160), draw.randint(16, 32)) for _ in range(80)]
    found = calibrate([step_closed(sizes, level) for level in (1, 2, 8)])
    assert found.waits_for_step
    assert found.step_s == pytest.approx(STEP_S, rel=0.15)
    assert found.step_per_stream_s == pytest.approx(STREAM_S, rel=0.35)
    sizes = list_sizes(400, 110, 24)
    arrivals, at = [], 0.0
    for _ in sizes:
        at += draw.expovariate(2.5)
        arrivals.append(at)
    compare(run_open(found, sizes, arrivals).outcomes, step_open(sizes, arrivals), 0.12, 0.25)
