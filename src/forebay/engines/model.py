"""The nouns of this room: what an engine is to be, how it is launched, and the ways in which that is refused.

No I/O happens here.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from forebay.core.errors import Fault, ForebayError

EXIT_REFUSED: Final = 2  #: a start that can't succeed before somebody changes something
DRAIN_S: Final = 30.0  #: how long answers in flight may take after SIGTERM
EXIT_STALLED: Final = 3  #: the engine hung and ended itself, to be started again


class EngineKindUnknown(ForebayError):
    """No launch plan is known for that kind."""

    fault: ClassVar[Fault] = Fault.CALLER
    status: ClassVar[int] = 400
    type: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str] = "engine_kind_unknown"


class EngineRefused(ForebayError):
    """An engine can't start as asked.  The message fits one line and says what to change."""

    fault: ClassVar[Fault] = Fault.CALLER
    code: ClassVar[str] = "engine_refused"


class LauncherError(ForebayError):
    """A launcher can't do what it was asked.  The message says why, and how to mend it."""

    fault: ClassVar[Fault] = Fault.TARGET
    status: ClassVar[int] = 502
    code: ClassVar[str] = "launcher_error"


Argument = str | int | float | bool | tuple[str | int | float, ...]  #: of an engine's command line


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding: tokens that are guessed cheaply and checked together."""

    method: str  #: `ngram`, or `draft` with a model of its own
    tokens: int = 3  #: guessed at once
    lookup_max: int = 3  #: longest n-gram that is looked up in the prompt; of `ngram`
    model: str = ""  #: weights of the draft model; of `draft`


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What `forebay.yaml` says of one engine.  A kind ignores what does not concern it."""

    name: str
    kind: str
    model: str = ""  #: path of a weights file, or `embedded:NAME`
    threads: int = 1
    slots: int = 4  #: requests answered at the same time
    context_tokens: int = 8192  #: prompt and answer of one request together
    batch_max: int = 32  #: texts in one run of an embedding model
    version: str = ""  #: of the engine; empty: that of its environment
    arguments: Mapping[str, Argument] = {}  #: of its own command line, by their names without dashes
    adapters: Mapping[str, str] = {}  #: LoRA adapters: paths by the names that callers use
    speculation: Speculation | None = None


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to start one engine process, and how to see that it works."""

    argv: tuple[str, ...]
    env: Mapping[str, str]  #: added to the environment of whoever starts it
    health_url: str  #: answers 200 as soon as requests are taken
    probe_url: str  #: where `probe_body` is posted to see that the model itself answers
    probe_body: bytes
    ready_timeout_s: float  #: from the start to the first 200 of `health_url`
    stop_timeout_s: float  #: from SIGTERM to the end of the process; then it hangs
