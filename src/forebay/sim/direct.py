"""Load on engines without a gateway before them, as `forebay bench` sends it.  Pure."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from forebay.sim.engine import Engine, EngineProfile, Job
from forebay.sim.timeline import Timeline

Size = tuple[int, int]  #: tokens of a prompt and of its answer


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request: seconds from when it was sent."""

    ttft_s: float
    e2el_s: float
    input_tokens: int
    output_tokens: int

    @property
    def tpot_s(self) -> float | None:
        """None where there was no token after the first."""
        return (self.e2el_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a load, in the order in which requests ended."""

    outcomes: list[Outcome]
    duration_s: float


def draw_factors(profile: EngineProfile, draw: Random) -> tuple[float, float]:
    """By which a request differs, in its first token and in each one after it: log-normal, of mean 1."""
    first, token = profile.first_sigma, profile.token_sigma
    return (
        draw.lognormvariate(-first * first / 2, first) if first else 1.0,
        draw.lognormvariate(-token * token / 2, token) if token else 1.0,
    )


class Bench:
    """Engines that are asked in turn."""

    def __init__(self, profile: EngineProfile, replicas: int, seed: int) -> None:
        self.time = Timeline()
        self.outcomes: list[Outcome] = []
        self._profile, self._draw = profile, Random(f"engine {seed}")
        self._engines = [Engine(profile, self.time) for _ in range(replicas)]

    def send(self, number: int, size: Size, then: Callable[[], None] | None = None) -> None:
        """The request of a number; `then` is called when it has ended."""
        began = first = self.time.now

        def see_first() -> None:
            nonlocal first
            first = self.time.now

        def see_end() -> None:
            self.outcomes.append(
                Outcome(
                    ttft_s=first - began,
                    e2el_s=self.time.now - began,
                    input_tokens=size[0],
                    output_tokens=size[1],
                )
            )
            if then is not None:
                then()

        engine = self._engines[number % len(self._engines)]
        engine.submit(Job(*size, see_first, see_end, *draw_factors(self._profile, self._draw)))


def run_closed(
    profile: EngineProfile, sizes: Sequence[Size], concurrency: int, replicas: int = 1, seed: int = 0
) -> Run:
    """So many at once, all begun at the same moment, until all of `sizes` were asked."""
    bench = Bench(profile, replicas, seed)
    waiting = iter(list(enumerate(sizes)))

    def go_on() -> None:
        for number, size in waiting:
            bench.send(number, size, go_on)
            break

    for _ in range(min(concurrency, len(sizes))):
        bench.time.call_at(0.0, go_on)
    bench.time.run()
    return Run(outcomes=bench.outcomes, duration_s=bench.time.now)


def run_open(
    profile: EngineProfile, sizes: Sequence[Size], arrivals: Sequence[float], replicas: int = 1, seed: int = 0
) -> Run:
    """Each at its moment, whatever becomes of those before."""
    bench = Bench(profile, replicas, seed)
    for number, (size, moment) in enumerate(zip(sizes, arrivals, strict=True)):
        bench.time.call_at(moment, partial(bench.send, number, size))
    bench.time.run()
    return Run(outcomes=bench.outcomes, duration_s=bench.time.now - min(arrivals, default=0.0))
