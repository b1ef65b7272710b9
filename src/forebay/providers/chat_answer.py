"""Whole answers of OpenAI's chat: how translations into it begin, and what those out of it read.  Pure."""

from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.providers.json_edit import NOTHING, UNREADABLE

Message = dict[str, Any]


class Thought(msgspec.Struct, frozen=True):
    """One of `thinking_blocks`, or a piece of one in a stream."""

    type: str = "thinking"
    index: int = 0
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class AnswerFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str | None = None


class AnswerCall(msgspec.Struct, frozen=True):
    function: AnswerFunction
    id: str | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class AnswerMessage(msgspec.Struct, frozen=True):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking_blocks: list[Thought] | None = None
    tool_calls: list[AnswerCall] | None = None

    @property
    def text(self) -> str | None:
        """Its content, of whose parts only texts can be said."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content if part.type == "text")
        return self.content


class AnswerChoice(msgspec.Struct, frozen=True):
    message: AnswerMessage
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM: what stopped it


class Completion(msgspec.Struct, frozen=True):
    choices: list[AnswerChoice]
    id: str | None = None
    created: int | float | None = None
    model: str | None = None
    usage: msgspec.Raw = NOTHING


_decode_completion: Final = msgspec.json.Decoder(Completion).decode


def read_completion(body: bytes) -> Completion:
    """A completion with at least one choice.  Raises UpstreamProtocol."""
    try:
        completion = _decode_completion(body)
    except UNREADABLE as error:
        raise UpstreamProtocol(f"The upstream's answer is no chat completion: {error}") from None
    if not completion.choices:
        raise UpstreamProtocol("The upstream's answer has no choice.")
    return completion


def start_message(content: str | None) -> Message:
    """The assistant's message with the fields that OpenAI says even where there is nothing in them."""
    return {"role": "assistant", "content": content, "refusal": None, "annotations": []}
