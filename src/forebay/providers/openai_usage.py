"""Usage in the OpenAI dialect, as disjoint token classes.  Pure."""

from typing import Annotated

import msgspec

from forebay.core.events import Tokens
from forebay.providers.json_edit import UNREADABLE

BYTES_PER_TOKEN = 4  #: the usual rule of thumb, for estimates where nobody counted
#: Nobody counts below zero, nor so many tokens in one request; whoever says so is not believed.
Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: Count | None = None
    audio_tokens: Count | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: Count | None = None
    audio_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object, as far as it is counted."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


_decode_usage = msgspec.json.Decoder(Usage | None).decode


def read_usage(data: bytes | msgspec.Raw) -> Tokens | None:
    """The tokens of a usage object's JSON; None where it holds no count that can be believed."""
    try:
        usage = _decode_usage(data)
    except UNREADABLE:
        return None
    return None if usage is None else count_tokens(usage)


def count_tokens(usage: Usage) -> Tokens | None:
    """Disjoint token classes from OpenAI's usage, whose totals include the details.

    A reported 0 stays 0.  None when the usage holds no count at all.
    """
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if prompt is None and completion is None:
        return None
    details_in = usage.prompt_tokens_details
    details_out = usage.completion_tokens_details
    if details_in is None and details_out is None:
        return Tokens(input=prompt, output=completion if completion is not None else 0)
    cached = details_in.cached_tokens if details_in else None
    audio_in = details_in.audio_tokens if details_in else None
    reasoning = details_out.reasoning_tokens if details_out else None
    audio_out = details_out.audio_tokens if details_out else None
    return Tokens(
        input=None if prompt is None else max(0, prompt - (cached or 0) - (audio_in or 0)),
        input_cached=cached,
        input_audio=audio_in,
        output=max(0, (completion or 0) - (reasoning or 0) - (audio_out or 0)),
        output_reasoning=reasoning,
        output_audio=audio_out,
    )


def estimate_tokens(request_bytes: int, events_seen: int) -> Tokens:
    """What was spent, as far as we can tell, when the target never came to say it.

    Args:
        request_bytes: size of the request's body.
        events_seen: content events that came; engines send about one token in each.
    """
    return Tokens(input=max(1, request_bytes // BYTES_PER_TOKEN), output=events_seen)
