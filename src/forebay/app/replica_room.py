"""Whether a machine has room for one more replica, and which GPUs it gets.  Pure.

GPUs and memory are promised to one replica at a time.  Processor cores are not: an engine may have more
threads than there are cores, and a change without downtime needs two engines for a while where there is room
for one.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.engines.deployment import Resources

_WHOLE: Final = 1.0
_ROUNDING: Final = 1e-9


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What there is."""

    gpus: tuple[str, ...] = ()  #: as `CUDA_VISIBLE_DEVICES` names them
    memory_mib: int | None = None  #: None: unknown, and nothing is refused for it


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica has been given."""

    resources: Resources
    gpus: tuple[str, ...] = ()


class NoRoom(msgspec.Struct, frozen=True):
    """Why not; one line for people."""

    reason: str


def find_room(machine: Machine, granted: Sequence[Grant], wanted: Resources) -> Grant | NoRoom:
    """What one more replica gets beside those that have been granted something already."""
    if wanted.memory_mib is not None and machine.memory_mib is not None:
        taken = sum(grant.resources.memory_mib or 0 for grant in granted)
        if taken + wanted.memory_mib > machine.memory_mib:
            return NoRoom(
                f"waits for {wanted.memory_mib} MiB of memory: "
                f"{max(0, machine.memory_mib - taken)} of {machine.memory_mib} MiB are not promised yet"
            )
    if wanted.gpus <= 0:
        return Grant(resources=wanted)
    used = dict.fromkeys(machine.gpus, 0.0)
    for grant in granted:
        for gpu in grant.gpus:
            if gpu in used:
                used[gpu] += min(_WHOLE, grant.resources.gpus)
    share = min(_WHOLE, wanted.gpus)
    # The fullest that still has room: whole ones stay free for who needs a whole one.
    fitting = sorted(
        (gpu for gpu in machine.gpus if used[gpu] + share <= _WHOLE + _ROUNDING),
        key=lambda gpu: -used[gpu],
    )
    count = math.ceil(wanted.gpus - _ROUNDING)
    if len(fitting) < count:
        return NoRoom(
            f"waits for {wanted.gpus:g} GPU: {len(fitting)} of {len(machine.gpus)} have room for {share:g}"
        )
    return Grant(resources=wanted, gpus=tuple(fitting[:count]))
