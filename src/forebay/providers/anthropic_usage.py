"""Usage in Anthropic's dialect, whose classes are disjoint already.  Pure.

`input_tokens` are those that no cache knew; `cache_read_input_tokens` and `cache_creation_input_tokens` stand
beside them.  What was thought is within `output_tokens`, and newer versions of the API tell it apart.
"""

from typing import Annotated

import msgspec

from forebay.core.events import Tokens
from forebay.providers.json_edit import NOTHING, UNREADABLE

COUNT_MAX = 10**12  #: whoever says more is not believed
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class OutputDetails(msgspec.Struct, frozen=True):
    """All of it is within `output_tokens`."""

    thinking_tokens: Count | None = None


class AnthropicUsage(msgspec.Struct, frozen=True):
    """A usage object, as far as it is counted."""

    input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens: Count | None = None
    output_tokens_details: OutputDetails | None = None

    def update(self, later: "AnthropicUsage") -> "AnthropicUsage":
        """What a stream says later is the whole until then, and goes before what it said first."""
        return AnthropicUsage(
            *(
                before if after is None else after
                for before, after in zip(
                    msgspec.structs.astuple(self), msgspec.structs.astuple(later), strict=True
                )
            )
        )

    @property
    def tokens(self) -> Tokens | None:
        """None where it holds no count of a whole."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        output, details = self.output_tokens, self.output_tokens_details
        thought = None if details is None else details.thinking_tokens
        if output is not None and thought:
            output = max(0, output - thought)
        return Tokens(
            input=self.input_tokens,
            input_cached=self.cache_read_input_tokens,
            input_cache_write=self.cache_creation_input_tokens,
            output=output,
            output_reasoning=thought,
        )


class _Answer(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NOTHING


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_usage = msgspec.json.Decoder(AnthropicUsage).decode


def decode_usage(data: bytes | msgspec.Raw) -> AnthropicUsage | None:
    """A usage object's JSON; None where it can't be believed."""
    try:
        return _decode_usage(data)
    except UNREADABLE:
        return None


def read_answer_usage(body: bytes) -> Tokens | None:
    """The tokens that a whole answer reports; None where it says nothing that can be read."""
    try:
        usage = decode_usage(_decode_answer(body).usage)
    except UNREADABLE:
        return None
    return None if usage is None else usage.tokens
