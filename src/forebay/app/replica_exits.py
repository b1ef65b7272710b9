"""Tells why a replica ended by itself: out of memory, refused, stalled or crashed.  Pure.

The order of the questions is the order of certainty: what was seen to happen comes before what a code means,
and that before what the last words of the log look like.
"""

import re
import signal
from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.app.supervisor_process import ChildEnd
from forebay.engines.deployment import ExitReason
from forebay.engines.model import EXIT_REFUSED, EXIT_STALLED

LAST_WORDS: Final = 40  #: lines of a log that are looked at
#: What Python, C++, torch, llama.cpp and vLLM say when an allocation failed.
_OUT_OF_MEMORY: Final = re.compile(
    r"\bMemoryError\b|std::bad_alloc|OutOfMemoryError|CUDA(?: error:)? out of memory|"
    r"cudaErrorMemoryAllocation|[Cc]annot allocate memory|failed to allocate|"
    r"DefaultCPUAllocator: can't allocate|No available memory for the cache blocks"
)


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen beside the exit itself."""

    is_over_memory: bool = False  #: it was ended because it used more memory than it was given
    has_kernel_killed: bool = False  #: the kernel ended some process for lack of memory meanwhile
    last_words: Sequence[str] = ()  #: of this process, the newest last


def judge_exit(end: ChildEnd, seen: Circumstances) -> ExitReason:
    if seen.is_over_memory or (end.code == -signal.SIGKILL and seen.has_kernel_killed):
        return ExitReason.OUT_OF_MEMORY
    if end.is_overdue or end.code == EXIT_STALLED:
        return ExitReason.STALLED
    if end.code == EXIT_REFUSED:
        return ExitReason.REFUSED
    # A signal from outside says nothing of memory; an allocation that fails aborts, or exits with an error.
    if end.code not in (None, 0, -signal.SIGKILL, -signal.SIGTERM) and any(
        _OUT_OF_MEMORY.search(line) for line in seen.last_words[-LAST_WORDS:]
    ):
        return ExitReason.OUT_OF_MEMORY
    return ExitReason.CRASHED


def is_final(reason: ExitReason, *, was_ready: bool) -> bool:
    """Whether to start it again is in vain before somebody changes something.

    What has been ready as it is can be again: a folder of weights that was away comes back by itself.
    """
    return reason is ExitReason.REFUSED and not was_ready
