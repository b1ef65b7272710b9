"""Usage in the OpenAI dialect, as disjoint token classes.  Pure.

Servers of this dialect agree on `prompt_tokens` and `completion_tokens`, and differ in what they tell apart
within them, under which names, and in whether reasoning is within them at all.  What is told apart here is
what their own documentation says; `usage_rules` is for all else.
"""

from typing import Annotated, Final

import msgspec

from forebay.core.events import Tokens
from forebay.providers.json_edit import UNREADABLE
from forebay.providers.openai_estimate import estimate_input
from forebay.providers.openai_media import MediaFinder, find_media

#: Nobody counts below zero, nor so many tokens in one request; whoever says so is not believed.
COUNT_MAX: Final = 10**12
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class PromptDetails(msgspec.Struct, frozen=True):
    """All of it is within `prompt_tokens`."""

    cached_tokens: Count | None = None
    audio_tokens: Count | None = None
    cache_write_tokens: Count | None = None  # OpenAI, OpenRouter
    cache_creation_tokens: Count | None = None  # LiteLLM
    cache_creation_input_tokens: Count | None = None  # Alibaba Cloud
    cached_creation_tokens: Count | None = None  # New API


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: Count | None = None
    audio_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object, as far as it is counted, and what others add to it."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    total_tokens: Count | None = None
    prompt_cache_hit_tokens: Count | None = None  # DeepSeek, within `prompt_tokens`
    cache_creation_input_tokens: Count | None = None  # LiteLLM, within `prompt_tokens`


#: What a usage object says before the classes are made disjoint, in the order of `COUNTED`: parts are within
#: their whole, but reasoning where the last says that it is apart.
Counts = tuple[int | None, int | None, int | None, int | None, int | None, int | None, int | None, bool]
COUNTED: Final = (
    *("input", "input_cached", "input_audio", "input_cache_write"),
    *("output", "output_reasoning", "output_audio"),
)


class Reading(msgspec.Struct, frozen=True):
    """What an answer of a target with usage rules says.

    Attributes:
        tokens: None where neither the dialect nor a rule found any.
        units: by the names of the rules that found them.
        found: each rule's name, with `found`, `absent`, or `unusable` where what it found is no count.
    """

    tokens: Tokens | None
    units: tuple[tuple[str, int], ...]
    found: tuple[tuple[str, str], ...]


_decode_usage = msgspec.json.Decoder(Usage | None).decode


def decode_usage(data: bytes | msgspec.Raw) -> Usage | None:
    """A usage object's JSON; None where it can't be believed."""
    try:
        return _decode_usage(data)
    except UNREADABLE:
        return None


def read_usage(data: bytes | msgspec.Raw) -> Tokens | None:
    """The tokens of a usage object's JSON; None where it holds no count that can be believed."""
    usage = decode_usage(data)
    return None if usage is None else count_tokens(usage)


def count_tokens(usage: Usage) -> Tokens | None:
    """Disjoint token classes from OpenAI's usage, whose totals include the details.

    A reported 0 stays 0.  None when the usage holds no count at all.
    """
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if prompt is None and completion is None:
        return None
    if (  # nothing is told apart: by far the most engines on one's own machines
        usage.prompt_tokens_details is None
        and usage.completion_tokens_details is None
        and prompt is not None
        and completion is not None
        and usage.total_tokens == prompt + completion
        and usage.prompt_cache_hit_tokens is None
        and usage.cache_creation_input_tokens is None
    ):
        return Tokens(input=prompt, output=completion)
    return part(*read_counts(usage))


def read_counts(usage: Usage) -> Counts:
    """What is told apart, under whichever of its names."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    cached, written = usage.prompt_cache_hit_tokens, usage.cache_creation_input_tokens
    audio_in = reasoning = audio_out = None
    if (within := usage.prompt_tokens_details) is not None:
        audio_in = within.audio_tokens
        if within.cached_tokens is not None:
            cached = within.cached_tokens
        if within.cache_write_tokens is not None:
            written = within.cache_write_tokens
        elif within.cache_creation_tokens is not None:
            written = within.cache_creation_tokens
        elif within.cache_creation_input_tokens is not None:
            written = within.cache_creation_input_tokens
        elif within.cached_creation_tokens is not None:
            written = within.cached_creation_tokens
    if (details := usage.completion_tokens_details) is not None:
        reasoning, audio_out = details.reasoning_tokens, details.audio_tokens
    apart = False
    if prompt is not None:
        if completion is None:
            completion = 0  # embeddings have none
        rest = 0 if usage.total_tokens is None else usage.total_tokens - prompt - completion
        if rest > 0 and (reasoning is None or reasoning == rest):
            # xAI counts reasoning beside the completion, and Gemini names it in the total alone.
            reasoning, apart = rest, True
    return prompt, cached, audio_in, written, completion, reasoning, audio_out, apart


def part(
    whole_in: int | None,
    cached: int | None,
    audio_in: int | None,
    written: int | None,
    whole_out: int | None,
    reasoning: int | None,
    audio_out: int | None,
    apart: bool,
) -> Tokens:
    """The classes, disjoint: together they are the totals that were reported.

    A part that is larger than its whole is believed, and leaves 0 of it.  But what is written to a cache may
    count what was read from it once more, and nobody bills that twice.
    """
    if whole_in is not None:
        if cached or audio_in:
            whole_in = max(0, whole_in - (cached or 0) - (audio_in or 0))
        if written:
            written = min(written, whole_in)
            whole_in -= written
    if whole_out is not None and (reasoning or audio_out):
        whole_out = max(0, whole_out - (0 if apart else reasoning or 0) - (audio_out or 0))
    return Tokens(
        input=whole_in,
        input_cached=cached,
        input_audio=audio_in,
        output=whole_out,
        output_reasoning=reasoning,
        output_audio=audio_out,
        input_cache_write=written,
    )


def estimate_tokens(body: bytes, events_seen: int, find: MediaFinder = find_media) -> Tokens:
    """What was spent, as far as we can tell, when the target never came to say it.

    Args:
        body: of the request.
        events_seen: content events that came; engines send about one token in each.
    """
    return Tokens(input=estimate_input(body, find), output=events_seen)
