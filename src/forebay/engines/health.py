"""Asks an engine process whether it is up, and whether its model answers.  Never starts or stops anything."""

from typing import Final

from forebay.engines.model import LaunchPlan
from forebay.net.probe import PROBE_TIMEOUT_S, Health, probe

GENERATION_TIMEOUT_S: Final = 30.0


async def probe_health(plan: LaunchPlan, *, timeout_s: float = PROBE_TIMEOUT_S) -> Health:
    """Whether the engine takes requests now."""
    return await probe(plan.health_url, timeout_s=timeout_s)


async def probe_generation(plan: LaunchPlan, *, timeout_s: float = GENERATION_TIMEOUT_S) -> Health:
    """Whether the model itself answers: with one token, or with one vector."""
    return await probe(plan.probe_url, plan.probe_body, timeout_s=timeout_s)
