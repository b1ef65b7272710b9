"""What an engine says of itself, in one form whatever its kind.

Whoever asks engines makes it, in the control plane; the gateway's workers choose by it.  A number that an
engine does not say is None, which is neither idle nor full, and so is all of it once it is old.
"""

from enum import StrEnum

import msgspec

ENGINE_STALE_S = 5.0  #: after which what an engine said is unknown


class EngineState(StrEnum):
    """Whether an engine may be sent to."""

    READY = "ready"
    COLD = "cold"  #: it is not warm yet: nothing is sent to it while another place can answer
    DOWN = "down"  #: its own health says so; likewise
    UNKNOWN = "unknown"  #: nobody could ask it, which says nothing of it


class EngineLoad(msgspec.Struct, frozen=True, array_like=True):
    """What an engine says of itself, normalised; None where it does not say."""

    target_id: str  #: a `Target.id` of the table in force
    state: EngineState
    running: int | None = None  #: requests in progress
    waiting: int | None = None  #: requests queued in the engine
    kv_cache_used: float | None = None  #: 0..1
    queue_wait_s: float | None = None  #: mean of late
    adapters: tuple[str, ...] = ()  #: LoRA adapters that it holds
