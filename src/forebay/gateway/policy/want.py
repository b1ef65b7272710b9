"""What matters of a request for the choice of its place, and why a place is none for it.  Pure words."""

from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Why a place is none for a request."""

    TIER = "tier"  #: the key may not be sent to its tier
    REGION = "region"  #: nor to its region
    ENDPOINT = "endpoint"  #: it does not answer the endpoint in its dialect
    CAPABILITY = "capability"  #: it lacks something that the request needs
    WINDOW = "window"  #: the request is longer than its context window
    EJECTED = "ejected"  #: it failed too often of late
    BUSY = "busy"  #: it refused requests a moment ago
    COLD = "cold"  #: its engine is not warm yet
    DOWN = "down"  #: its engine says that it does not serve


#: Reasons that pass by themselves: such places are tried rather than none.
PASSING = frozenset({Reason.EJECTED, Reason.BUSY, Reason.COLD, Reason.DOWN})


class Want(msgspec.Struct, frozen=True):
    """What matters of a request."""

    tokens: int  #: prompt and answer, estimated
    output_tokens: int = 256
    needs: int = 0  #: capabilities, as `compute_mask` has them
    priority: str = "standard"
    affinity: int | None = None  #: 32 bits of what it should be near to
    is_sticky: bool = False  #: `affinity` is a session, which stays wherever it is served
    is_adapter: bool = False  #: `affinity` is a LoRA adapter, which few replicas are to hold
