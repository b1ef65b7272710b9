"""What is asked, and when: the same from the same seed.  Pure."""

from collections.abc import Iterator
from random import Random

import msgspec

REQUESTS_MAX = 1_000_000  #: of one run


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    Attributes:
        at_s: from the start of the load.
        session: requests that share one stay where it is served; empty for none.
        tenant: of those that wait for places, each tenant has an equal part.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    model: str = ""  #: its public name; empty for the one that is simulated
    priority: str = "standard"
    session: str = ""
    tenant: str = ""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of prompts and answers; `spread` is the share by which they differ, evenly, as in `bench`."""

    input_tokens: int = 128
    output_tokens: int = 64
    spread: float = 0.0


def plan_load(
    rate_per_s: float,
    duration_s: float,
    lengths: Lengths,
    *,
    ramp_s: float = 0.0,
    priority: str = "standard",
    seed: int = 0,
) -> Iterator[Ask]:
    """An open loop with exponential gaps, whose rate grows from none to `rate_per_s` in the first `ramp_s`.

    Moments are those of a process at rate 1, moved to where the rate adds up to as much; so another rate
    with the same seed is the same load, quicker.
    """
    draw = Random(f"load {seed}")
    passed = 0.0
    while True:
        passed += draw.expovariate(1.0)
        at_s = _find_moment(passed / rate_per_s, ramp_s)
        sizes = [_vary(each, lengths.spread, draw) for each in (lengths.input_tokens, lengths.output_tokens)]
        if at_s >= duration_s:
            return
        yield Ask(at_s=at_s, input_tokens=sizes[0], output_tokens=sizes[1], priority=priority)


def _find_moment(full_s: float, ramp_s: float) -> float:
    """When as many have come as would have in `full_s` at the full rate."""
    return full_s + ramp_s / 2 if full_s >= ramp_s / 2 else (2 * full_s * ramp_s) ** 0.5


def _vary(tokens: int, spread: float, draw: Random) -> int:
    return max(1, round(tokens * draw.uniform(1 - spread, 1 + spread)))
