"""What a translator between two dialects is, and what lies between a caller and a target: protocols alone.

Inside, the gateway speaks OpenAI's chat.  A target translator stands before a target that speaks something
else, a caller translator behind an endpoint that does.  Translators are pure and keep nothing between
requests but in the `StreamTranslator` that they make; they never drop what they can't map in silence, and
never invent an end that was not on the wire.

"Chat" below is OpenAI's chat completions as JSON, or as server-sent events (`data: {...}`, each with its
blank line, `data: [DONE]` last).  Usage in chat is counted as OpenAI counts: `prompt_tokens` with those from
caches, `prompt_tokens_details.cached_tokens` and `.cache_write_tokens`, and
`completion_tokens_details.reasoning_tokens`.

What was thought stands in chat as many servers have it: the text in `reasoning_content` of a message or a
delta, and beside it, where it is signed, `thinking_blocks`: `{type: "thinking", thinking, signature}` and
`{type: "redacted_thinking", data}`, in a delta each with the `index` of the block that its piece belongs to.
A caller may send both back in a message of the assistant.

Between a caller translator and a target translator chat may hold more than OpenAI's: `cache_control` of
parts, tools, messages of tools and the request, which a target that has nothing like it passes over; and in
messages of tools `is_error` and parts that are images.
"""

from dataclasses import dataclass
from typing import Protocol

#: The longest event that a translator holds while its end has not come, unless it is told another.
EVENT_MAX_BYTES = 16 * 1024 * 1024

#: HTTP headers: names in lower case, no line breaks.
Headers = list[tuple[str, str]]


class StreamTranslator(Protocol):
    """One stream on its way.  Any split of the input into pieces gives the same output, put together.

    Raises:
        EventTooLarge, UpstreamProtocol: from both; it is of no use after that.  What `feed` had read before
            it of the same piece may be lost, so a caller may see less than came, but nothing else.
    """

    def feed(self, data: bytes) -> bytes:
        """What can be handed on now, whole events only; `b""` while there is none."""
        ...

    def finish(self) -> bytes:
        """The wire has ended.  A stream that was cut is not ended here: the caller shall see that it was."""
        ...


class DocumentSplitter(Protocol):
    """Finds the JSON documents in the bytes of one stream, in any split.  Raises as `StreamTranslator`."""

    def feed(self, data: bytes) -> list[bytes]:
        """Those that are whole now."""
        ...

    def finish(self) -> list[bytes]:
        """The last, if only its end is missing."""
        ...


class TargetTranslator(Protocol):
    """From chat to what a target speaks, and back.  One of a dialect, without state."""

    def encode_request(self, body: bytes, model: str, *, stream: bool) -> bytes:
        """The target's body from that of a chat request.

        Args:
            body: as the caller sent it; `model` in it is the public name, and `stream` may be absent.
            model: the model's name at the target.
            stream: whether the answer is to be a stream.

        Raises:
            InvalidValue: with `param`, on what can't be mapped; InvalidJSON on what is none.
        """
        ...

    def decode_answer(self, body: bytes, model: str) -> bytes:
        """A chat completion from the target's whole answer of a status below 300.

        Args:
            model: what the answer shall call the model: its name at the target.

        Raises:
            UpstreamProtocol: it is no answer in the dialect.
        """
        ...

    def decode_error(self, status: int, body: bytes) -> bytes:
        """`{"error": {message, type, param, code}}` from an answer of another status, in the target's words.

        Never raises: what is no error of the dialect (a proxy's page) becomes one that says so, without it.
        """
        ...

    def new_stream(self, model: str, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        """The target's stream to chat events, with the usage event before `[DONE]`, whoever asked for it.

        An error inside the target's stream becomes `data: {"error": {...}}`, and nothing follows it.
        """
        ...

    def build_path(self, base_path: str, model: str, *, stream: bool) -> str:
        """The path of a request, escaped as it goes on the wire, with its query if it needs one.

        Args:
            base_path: that of the target's `url`, with its query if it has one, without a slash at the end.
        """
        ...

    def build_headers(self, secret: str) -> Headers:
        """The credentials and what else the dialect wants; not the length, host, or content type.

        Args:
            secret: empty where the target has none.
        """
        ...


class SigningTranslator(TargetTranslator, Protocol):
    """One whose requests are signed one by one, instead of by `build_headers`."""

    def sign(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        secret: str,
        region: str,
        wall_s: int,
    ) -> Headers:
        """The headers to add to a request.

        Args:
            path: as on the wire, with its query.
            headers: those that may be signed: `host`, `content-type`, and those of `build_headers`.
            region: the target's, as the configuration has it; may be empty.
            wall_s: Unix time.

        Raises:
            UpstreamCredentials: the secret is in no form that can sign, or the region is missing.
        """
        ...


class NamingTranslator(TargetTranslator, Protocol):
    """One whose target gives its answers no id, which callers want to see."""

    def name_answer(self, answer_id: str) -> TargetTranslator:
        """The translator of the answer to one request, which shall have this id."""
        ...


class ForeignStreams(Protocol):
    """What a target translator says beside the rest where its streams are no server-sent events."""

    @property
    def stream_type(self) -> str:
        """How the content type of a stream begins."""
        ...

    def new_splitter(self, *, event_max_bytes: int = EVENT_MAX_BYTES) -> DocumentSplitter:
        """What finds the JSON in one stream, for usage rules."""
        ...


class ErrorReader(Protocol):
    """What a target translator says beside the rest where the body of an error says more than its head."""

    def read_status(self, status: int, body: bytes) -> int:
        """The status that says whose fault an error is: 401 for our credentials, whatever came."""
        ...

    def read_retry_after_s(self, body: bytes) -> int | None:
        """When to come again; None where an error does not say it."""
        ...


class TargetWire(Protocol):
    """How requests whose bodies pass untouched are addressed to the targets of a dialect.

    It is for what they speak as a caller does: for OpenAI's endpoints behind other paths and headers, and for
    an endpoint of the dialect's own.
    """

    def build_path(self, base_path: str, endpoint: str, model: str) -> str | None:
        """The path of a request, as `TargetTranslator.build_path` has it; None for what it does not speak.

        Args:
            endpoint: the caller's path below `/v1/`, such as `chat/completions` or `messages`.
        """
        ...

    def build_headers(self, secret: str) -> Headers:
        """As `TargetTranslator.build_headers`."""
        ...


class PassingWire(TargetWire, Protocol):
    """A wire that lets some of a caller's headers go with its request, for they say what it means."""

    @property
    def passed(self) -> Headers:
        """Their names, each with what stands there if the caller says nothing; empty for no header then."""
        ...


class CallerTranslator(Protocol):
    """From what a caller speaks to chat, and back.  One of an endpoint, without state."""

    def decode_request(self, body: bytes) -> bytes:
        """The body of a chat request: `model` (the public name) and `stream` as they were.

        Raises:
            InvalidValue, MissingField: with `param`, on what can't be mapped; InvalidJSON on what is none.
        """
        ...

    def encode_answer(self, body: bytes) -> bytes:
        """The caller's whole answer from a chat completion.  Raises UpstreamProtocol on what is none."""
        ...

    def encode_error(self, body: bytes, status: int) -> bytes:
        """The caller's error from `{"error": {message, type, param, code}}`.  Never raises."""
        ...

    def new_stream(self, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        """Chat events to the caller's; an OpenAI error event becomes the caller's error event.

        The chat events hold usage in one before `[DONE]`, as after `stream_options.include_usage`.  Without
        a finish reason and without `[DONE]` the stream was cut, and the caller's has no end either.
        """
        ...


class BindingTranslator(CallerTranslator, Protocol):
    """One whose answers repeat something of their requests."""

    def bind(self, request: bytes) -> CallerTranslator:
        """The translator of the answer to one request.

        Args:
            request: the caller's body.  Never raises on what it holds.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What lies between the callers of an endpoint and the targets of a dialect.

    Attributes:
        wire: how to address the target where bodies pass it untouched; then there is no `target`.
        caller, target: who translates on either side; without both, bytes pass untouched.
    """

    wire: TargetWire | None = None
    caller: CallerTranslator | None = None
    target: TargetTranslator | None = None
