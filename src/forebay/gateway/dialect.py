"""What the gateway needs of a dialect; the modules of `providers` fit these protocols.  Holds no code."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from forebay.core.errors import ForebayError
from forebay.core.events import Tokens
from forebay.core.filler import Filler, Opening
from forebay.core.metering import Metered
from forebay.core.routes import Endpoint
from forebay.core.translation import DocumentSplitter, Way
from forebay.core.usage_rules import UsageRule


class RequestView(Protocol):
    """What policy reads of a request."""

    @property
    def model(self) -> str: ...
    @property
    def stream(self) -> bool | None: ...
    @property
    def wants_usage(self) -> bool: ...
    @property
    def tags(self) -> tuple[tuple[str, str], ...]: ...


class MeasuredView(RequestView, Protocol):
    """What limits and loads read of a request for audio or images, whose bytes say little of its tokens."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def guessed_units(self) -> tuple[tuple[str, int], ...]: ...


class ToolView(RequestView, Protocol):
    """What is read of a request that may offer tools."""

    @property
    def forces_call(self) -> bool: ...


class Reading(Protocol):
    """What an answer of a target with usage rules says; `forebay.providers.openai_usage` explains it."""

    @property
    def tokens(self) -> Tokens | None: ...
    @property
    def units(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def found(self) -> tuple[tuple[str, str], ...]: ...


class Meter(Metered, Protocol):
    """One that may know of usage rules."""

    @property
    def reading(self) -> Reading | None: ...


class Dialect(Protocol):
    """What the gateway needs of a dialect; the module `forebay.providers.openai` is one.

    `ERROR_START` is how a whole answer begins that is an error whatever its status says, `is_foreign` says
    that its answers have headers of their own, and `KEEP_ALIVE` is an event that says nothing, which may
    stand between any two of a stream, and before the first; `b""` where answers are no server-sent events.
    """

    @property
    def ERROR_START(self) -> bytes: ...
    @property
    def is_foreign(self) -> bool: ...
    @property
    def KEEP_ALIVE(self) -> bytes: ...
    def read_request(self, body: bytes) -> RequestView: ...
    def check_context(self, body: bytes, endpoint: Endpoint, tokens_max: int) -> None: ...
    def cap_output(self, body: bytes, view: Any, endpoint: Endpoint, tokens_max: int) -> RequestView: ...
    def write_cap(self, body: bytes, view: Any) -> bytes: ...
    def read_output_max(self, body: bytes) -> int | None: ...
    def encode_request(
        self, body: bytes, view: Any, endpoint: Endpoint, target_model: str
    ) -> bytes | list[bytes | memoryview]: ...
    def read_answer(self, body: bytes) -> Tokens | None: ...
    def read_ruled_answer(self, rules: tuple[UsageRule, ...], body: bytes) -> Reading: ...
    def estimate_tokens(self, body: bytes, events_seen: int) -> Tokens: ...
    def weigh_text(self, body: bytes) -> int: ...
    def new_meter(self, *, hide_usage: bool, event_max_bytes: int) -> Meter: ...
    def new_ruled_meter(
        self, rules: tuple[UsageRule, ...], *, hide_usage: bool, event_max_bytes: int
    ) -> Meter: ...
    def read_error(self, body: bytes) -> bytes | None: ...
    def read_error_status(self, error: bytes) -> int: ...
    def wrap_error(self, error: bytes) -> bytes: ...
    def encode_error(self, error: ForebayError) -> bytes: ...
    def encode_error_event(self, error: ForebayError) -> bytes: ...
    def wrap_error_event(self, body: bytes) -> bytes:
        """An error's whole answer, `encode_error`'s or a target's in this dialect, as an event."""
        ...

    def begin_filler(self, body: bytes, endpoint: Endpoint, opening: Opening) -> Filler | None:
        """A stream that begins with a filler; None where the request leaves no room for one."""
        ...

    def name_headers(self, request_id: str, limits: str, wall_ns: int) -> str: ...
    def encode_model_list(self, models: list[tuple[str, int, str]]) -> bytes: ...
    def encode_model(self, name: str, created_s: int, owned_by: str) -> bytes: ...


class FailingDialect(Dialect, Protocol):
    """One whose good answers may say in their bodies that the work has failed."""

    def has_failed(self, body: bytes) -> bool: ...


class PathDialect(Dialect, Protocol):
    """One whose requests name their model in the path."""

    def bind_model(self, model: str) -> Dialect:
        """The same for one request."""
        ...

    def name_model(self, metadata: bytes, model: str) -> bytes:
        """What a target tells of a model, under this name.  Raises UpstreamProtocol where that is nothing."""
        ...


class TypedDialect(Dialect, Protocol):
    """One whose requests are read as their header `content-type` says."""

    def bind_type(self, content_type: bytes) -> Dialect:
        """The same for one request."""
        ...


#: What lies between the callers of an endpoint and the targets of a dialect; None if they can't meet.
FindWay = Callable[[Endpoint, str], Way | None]
#: What the callers of each endpoint speak.
Spoken = Mapping[Endpoint, Dialect]


class InnerDialect(Dialect, Protocol):
    """OpenAI's, which lies between all others."""

    def read_by_rules(self, rules: tuple[UsageRule, ...], body: bytes, tokens: Tokens | None) -> Reading: ...
    def tap_meter(
        self,
        meter: Metered,
        rules: tuple[UsageRule, ...],
        documents: DocumentSplitter | None,
        *,
        event_max_bytes: int,
    ) -> Meter: ...
