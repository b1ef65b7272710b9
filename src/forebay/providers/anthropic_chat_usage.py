"""Usage between OpenAI's chat and Anthropic's messages.  Pure.

OpenAI's `prompt_tokens` hold what was read from caches and written to them; Anthropic's three counts of input
stand side by side.  What was thought is within the output on both sides.  What one side does not say is not
said on the other either, but for the two wholes, which both must have.
"""

from typing import Any

import msgspec

from forebay.providers.anthropic_usage import AnthropicUsage, decode_usage
from forebay.providers.openai_usage import read_usage

Usage = dict[str, Any]


NO_USAGE = AnthropicUsage()
#: What is said of an answer that counted nothing, and what stands where nothing was told of a part.
NO_MESSAGES_USAGE: Usage = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_creation": None,
    "cache_creation_input_tokens": None,
    "cache_read_input_tokens": None,
    "inference_geo": None,
    "output_tokens_details": None,
    "server_tool_use": None,
    "service_tier": None,
}


def read_messages_usage(raw: msgspec.Raw | bytes) -> AnthropicUsage:
    """A usage object's JSON; one without counts where it can't be believed."""
    return decode_usage(raw) or NO_USAGE


def build_chat_usage(usage: AnthropicUsage) -> Usage | None:
    """OpenAI's usage; None where nothing was counted."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    prompt = (usage.input_tokens or 0) + (cached or 0) + (written or 0)
    completion = usage.output_tokens or 0
    result: Usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    if any(count is not None for count in details.values()):
        result["prompt_tokens_details"] = {name: n for name, n in details.items() if n is not None}
    thought = usage.output_tokens_details
    if thought is not None and thought.thinking_tokens is not None:
        result["completion_tokens_details"] = {"reasoning_tokens": thought.thinking_tokens}
    return result


def build_messages_usage(raw: msgspec.Raw | bytes) -> Usage:
    """Anthropic's usage of a message from OpenAI's, with null for what was not told."""
    return NO_MESSAGES_USAGE | build_delta_usage(raw)


def build_delta_usage(raw: msgspec.Raw | bytes) -> Usage:
    """Anthropic's usage at the end of a stream, which has only what was told.

    0 for a whole that was not told, because its clients want a number.
    """
    tokens = read_usage(raw) if bytes(raw) not in (b"", b"null") else None
    if tokens is None:
        return {"input_tokens": 0, "output_tokens": 0}
    result: Usage = {
        "input_tokens": (tokens.input or 0) + (tokens.input_audio or 0),
        "output_tokens": tokens.output_total,
    }
    if tokens.input_cached is not None:
        result["cache_read_input_tokens"] = tokens.input_cached
    if tokens.input_cache_write is not None:
        result["cache_creation_input_tokens"] = tokens.input_cache_write
    if tokens.output_reasoning is not None:
        result["output_tokens_details"] = {"thinking_tokens": tokens.output_reasoning}
    return result
