"""Gemini's `usageMetadata` as OpenAI's usage.  Pure.

`promptTokenCount` holds what came from caches, as OpenAI's does; what Google's own tools gave back to the
model (`toolUsePromptTokenCount`) is input beside it.  What was thought (`thoughtsTokenCount`) is output
beside `candidatesTokenCount`.  A count of 0 is left out on the wire.

Source: Gemini API reference and Vertex AI reference, `UsageMetadata`: the total is the sum of these four.
"""

from typing import Any

import msgspec

from forebay.providers.json_edit import UNREADABLE
from forebay.providers.openai_usage import Count

Usage = dict[str, Any]
_AUDIO = "AUDIO"


class ModalityCount(msgspec.Struct, frozen=True, rename="camel"):
    modality: str = ""
    token_count: Count = 0


class GeminiUsage(msgspec.Struct, frozen=True, rename="camel"):
    """As far as it is counted."""

    prompt_token_count: Count | None = None
    cached_content_token_count: Count | None = None
    candidates_token_count: Count | None = None
    thoughts_token_count: Count | None = None
    tool_use_prompt_token_count: Count | None = None
    prompt_tokens_details: list[ModalityCount] | None = None
    cache_tokens_details: list[ModalityCount] | None = None
    candidates_tokens_details: list[ModalityCount] | None = None

    def update(self, later: "GeminiUsage") -> "GeminiUsage":
        """What a stream says later is the whole until then, and goes before what it said first."""
        return GeminiUsage(
            *(
                before if after is None else after
                for before, after in zip(
                    msgspec.structs.astuple(self), msgspec.structs.astuple(later), strict=True
                )
            )
        )


NO_USAGE = GeminiUsage()
_decode_usage = msgspec.json.Decoder(GeminiUsage).decode


def read_usage_metadata(raw: msgspec.Raw | bytes) -> GeminiUsage:
    """The counts of a `usageMetadata`; none where it can't be believed."""
    try:
        return _decode_usage(raw)
    except UNREADABLE:
        return NO_USAGE


def build_chat_usage(usage: GeminiUsage) -> Usage | None:
    """OpenAI's usage; None where nothing was counted."""
    counted = (usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count)
    if all(count is None for count in counted):
        return None
    prompt = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    completion = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    result: Usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    heard, cached = _count_audio(usage.prompt_tokens_details), _count_audio(usage.cache_tokens_details)
    details = {
        "cached_tokens": usage.cached_content_token_count,
        # Sound from a cache is counted as cached: the classes are disjoint.
        "audio_tokens": None if heard is None else max(0, heard - (cached or 0)),
    }
    if told := {name: count for name, count in details.items() if count is not None}:
        result["prompt_tokens_details"] = told
    details = {
        "reasoning_tokens": usage.thoughts_token_count,
        "audio_tokens": _count_audio(usage.candidates_tokens_details),
    }
    if told := {name: count for name, count in details.items() if count is not None}:
        result["completion_tokens_details"] = told
    return result


def _count_audio(details: list[ModalityCount] | None) -> int | None:
    counts = [each.token_count for each in details or () if each.modality == _AUDIO]
    return sum(counts) if counts else None
