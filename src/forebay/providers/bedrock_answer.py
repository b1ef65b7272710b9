"""Answers and errors of Bedrock's Converse as OpenAI's chat, and what its streams share with them.  Pure.

What was thought goes into `reasoning_content`, as many servers of OpenAI's dialect have it, and with its
signatures into `thinking_blocks` beside it, which a caller may send back.  Blocks of kinds that OpenAI's chat
has no place for (citations, images, what Bedrock's own tools did) are passed over; cited text stays.

Source: Amazon Bedrock API Reference, `Converse`, `TokenUsage`; the User Guide on prompt caching for what the
counts hold.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.providers.chat_answer import start_message
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_usage import Count

#: Also of reasons that are not known yet, `stop`.
FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
#: Reasons that are failures: what the model wrote is of no use, and OpenAI has no word for it.
FAILED: Final = frozenset({"malformed_model_output", "malformed_tool_use"})
_TIERS: Final = frozenset({"default", "flex", "priority"})

#: OpenAI's type and code by Bedrock's name of an exception, in lower case without "exception".
_KINDS: Final[dict[str, tuple[str, str | None]]] = {
    "validation": ("invalid_request_error", None),
    "throttling": ("rate_limit_error", "rate_limit_exceeded"),
    "servicequotaexceeded": ("rate_limit_error", "rate_limit_exceeded"),
    "modelnotready": ("overloaded_error", None),
    "accessdenied": ("permission_error", None),
    "unrecognizedclient": ("authentication_error", None),
    "resourcenotfound": ("not_found_error", "model_not_found"),
    "serviceunavailable": ("overloaded_error", None),
}
_NAMES: Final = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    500: "InternalServerException",
    502: "ModelErrorException",
    503: "ServiceUnavailableException",
}
#: Words by which models and Bedrock say that a prompt is too long; OpenAI has a code for it.
_TOO_LONG: Final = (
    "input is too long",
    "prompt is too long",
    "too many input tokens",
    "exceed context limit",
    "maximum context length",
)


class ReasoningText(msgspec.Struct, frozen=True):
    text: str = ""
    signature: str = ""


class _Reasoning(msgspec.Struct, frozen=True, rename="camel"):
    reasoning_text: ReasoningText | None = None
    redacted_content: str | None = None


class ToolUse(msgspec.Struct, frozen=True, rename="camel"):
    tool_use_id: str
    name: str
    input: msgspec.Raw = NOTHING
    type: str | None = None  #: of a tool that Bedrock runs itself


class _Text(msgspec.Struct, frozen=True):
    text: str = ""


class _Cited(msgspec.Struct, frozen=True):
    content: list[_Text] = []


class _Block(msgspec.Struct, frozen=True, rename="camel"):
    text: str | None = None
    tool_use: ToolUse | None = None
    reasoning_content: _Reasoning | None = None
    citations_content: _Cited | None = None

    @property
    def words(self) -> str:
        if self.citations_content is not None:
            return "".join(part.text for part in self.citations_content.content)
        return self.text or ""


class _Message(msgspec.Struct, frozen=True):
    content: list[_Block]


class _Output(msgspec.Struct, frozen=True):
    message: _Message


class TokenUsage(msgspec.Struct, frozen=True, rename="camel"):
    """`inputTokens` holds nothing that was read from a cache or written to one."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_write_input_tokens: Count | None = None


class Tier(msgspec.Struct, frozen=True):
    type: str = ""


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    output: _Output
    stop_reason: str
    usage: msgspec.Raw = NOTHING
    service_tier: Tier | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str | None = None
    capital: str | None = msgspec.field(default=None, name="Message")
    type: str | None = msgspec.field(default=None, name="__type")


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_usage = msgspec.json.Decoder(TokenUsage).decode
_decode_error = msgspec.json.Decoder(_Error).decode


def decode_answer(body: bytes, model: str, answer_id: str = "") -> bytes:
    """A chat completion.  It has no time of its making, because none is told.

    Args:
        answer_id: what the answer is called; Bedrock says no name in its body.

    Raises:
        UpstreamProtocol: it is no answer of Converse, or the model's output is of no use.
    """
    try:
        answer = _decode_answer(body)
    except UNREADABLE as error:
        raise UpstreamProtocol(f"The upstream's answer is none of Bedrock's Converse: {error}") from None
    if answer.stop_reason in FAILED:
        raise UpstreamProtocol(explain_failure(answer.stop_reason))
    blocks = answer.output.message.content
    text = "".join(block.words for block in blocks)
    calls = [_decode_call(block.tool_use) for block in blocks if is_call(block.tool_use)]
    message = start_message(text if text or not calls else None)
    thoughts = [made for block in blocks if (made := _decode_thought(block)) is not None]
    if thought := "".join(made.get("thinking", "") for made in thoughts):
        message["reasoning_content"] = thought
    if thoughts:
        message["thinking_blocks"] = thoughts
    if calls:
        message["tool_calls"] = calls
    reason = FINISH.get(answer.stop_reason, "stop")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    completion = build_head(model, "chat.completion", answer_id) | {"choices": [choice]}
    return msgspec.json.encode(completion | describe_cost(answer.usage, answer.service_tier))


def is_call(tool_use: ToolUse | None) -> bool:
    """Whether it is for the caller to run; Bedrock runs its own tools itself."""
    return tool_use is not None and tool_use.type is None


def explain_failure(reason: str) -> str:
    return f"The model's output is of no use: Bedrock says {reason}."


def _decode_call(tool_use: ToolUse | None) -> dict[str, Any]:
    assert tool_use is not None
    arguments = "{}" if tool_use.input is NOTHING else bytes(tool_use.input).decode()
    function = {"name": tool_use.name, "arguments": arguments}
    return {"id": tool_use.tool_use_id, "type": "function", "function": function}


def _decode_thought(block: _Block) -> dict[str, str] | None:
    thought = block.reasoning_content
    if thought is None:
        return None
    if thought.redacted_content is not None:
        return {"type": "redacted_thinking", "data": thought.redacted_content}
    text = thought.reasoning_text or ReasoningText()
    return {"type": "thinking", "thinking": text.text, "signature": text.signature}


def build_head(model: str, kind: str, answer_id: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": 0, "model": model}


def describe_cost(usage: msgspec.Raw, tier: Tier | None) -> dict[str, Any]:
    """`usage` and `service_tier`, as far as they were told."""
    result: dict[str, Any] = {}
    if (counts := build_usage(usage)) is not None:
        result["usage"] = counts
    if tier is not None and tier.type in _TIERS:
        result["service_tier"] = tier.type
    return result


def build_usage(raw: msgspec.Raw) -> dict[str, Any] | None:
    """OpenAI's usage, whose prompt holds what caches had and got; None where nothing can be believed.

    Input, cache reads and cache writes stand side by side.  Only where the total says otherwise, being no
    more than input and output, are the caches within the input.
    """
    try:
        usage = _decode_usage(raw)
    except UNREADABLE:
        return None
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    read, written = usage.cache_read_input_tokens, usage.cache_write_input_tokens
    apart = (read or 0) + (written or 0)
    prompt, completion = usage.input_tokens, usage.output_tokens
    if not (usage.total_tokens == prompt + completion and apart <= prompt):
        prompt += apart
    result: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    details = {"cached_tokens": read, "cache_write_tokens": written}
    if said := {name: count for name, count in details.items() if count is not None}:
        result["prompt_tokens_details"] = said
    return result


# --- errors -------------------------------------------------------------------------------------------------


def decode_error(status: int, body: bytes) -> bytes:
    """OpenAI's error from an answer with that status, in Bedrock's words as far as it has any.

    Its name stands in the body's `__type` or in a header, `x-amzn-errortype`, that does not come here; then
    the status says it.
    """
    name = _NAMES.get(status, "")
    words = f"The upstream answered with status {status}, and no error of Bedrock's."
    try:
        error = _decode_error(body)
    except UNREADABLE:
        error = _Error()
    message = error.message or error.capital
    if message is None and error.type is not None:
        message = read_name(error.type)
    if error.type is not None:
        name = read_name(error.type)
    return msgspec.json.encode({"error": describe_error(name, message or words)})


def read_name(kind: str) -> str:
    """The name of an exception, which may stand behind a namespace and before an address."""
    return kind.rpartition("#")[2].partition(":")[0]


def describe_error(name: str, message: str) -> dict[str, str | None]:
    """OpenAI's error object.

    Args:
        name: of the exception, such as `throttlingException`; empty where there is none.
    """
    kind, code = _KINDS.get(name.lower().removesuffix("exception"), ("upstream_error", name or None))
    lowered = message.lower()
    if kind == "invalid_request_error" and any(words in lowered for words in _TOO_LONG):
        code = "context_length_exceeded"
    return {"message": message, "type": kind, "param": None, "code": code}
