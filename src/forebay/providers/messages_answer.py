"""Whole answers and errors of OpenAI's chat, in Anthropic's dialect.  Pure."""

from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.providers.anthropic_chat_usage import NO_MESSAGES_USAGE as NO_USAGE
from forebay.providers.anthropic_chat_usage import build_messages_usage
from forebay.providers.anthropic_errors import find_type, wrap_error
from forebay.providers.chat_answer import AnswerMessage, Thought, read_completion
from forebay.providers.json_edit import UNREADABLE, check_object

Block = dict[str, Any]

_STOP: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class _Error(msgspec.Struct, frozen=True):
    message: str
    type: str | None = None


class _Envelope(msgspec.Struct, frozen=True):
    error: _Error


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def encode_answer(body: bytes) -> bytes:
    """A message from a chat completion.  Raises UpstreamProtocol."""
    completion = read_completion(body)
    choice = completion.choices[0]
    answer_id = completion.id or ""
    content = _encode_message(choice.message, answer_id)
    is_calling = any(block["type"] == "tool_use" for block in content)
    message = start_message(answer_id, completion.model) | {
        "content": content,
        "usage": build_messages_usage(completion.usage),
    }
    is_refused = bool(choice.message.refusal)
    return msgspec.json.encode(
        message
        | build_stop(choice.finish_reason, choice.stop_reason, is_calling=is_calling, is_refused=is_refused)
    )


def start_message(answer_id: str, model: str | None) -> dict[str, Any]:
    """A message of which nothing has been said; the dialect has its fields where there is nothing in them."""
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "model": model or "",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": NO_USAGE,
    }


def build_text(text: str = "") -> Block:
    return {"type": "text", "text": text, "citations": None}


def build_tool_use(call_id: str, name: str, arguments: msgspec.Raw | dict[str, Any]) -> Block:
    """A call by the model itself, as all are that chat knows."""
    caller = {"type": "direct"}
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments, "caller": caller}


def build_stop(
    finish_reason: str | None, stop: str | int | None, *, is_calling: bool, is_refused: bool
) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence`.

    Args:
        stop: the sequence that stopped it, where the server says so.
        is_calling: it has called tools; after a forced call OpenAI says `stop` nevertheless.
    """
    reason = _STOP.get(finish_reason or "stop", "end_turn")
    if reason == "end_turn":
        if is_calling:
            reason = "tool_use"
        elif is_refused:
            reason = "refusal"
        elif isinstance(stop, str) and stop:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": reason, "stop_sequence": None}


def _encode_message(message: AnswerMessage, answer_id: str) -> list[Block]:
    blocks = _encode_thinking(message)
    content = message.text
    blocks += [build_text(text) for text in (content, message.refusal) if text]
    for at, call in enumerate(message.tool_calls or ()):
        arguments = (call.function.arguments or "").strip() or "{}"
        try:
            check_object(arguments)
        except UNREADABLE:
            raise UpstreamProtocol(
                f"The model called the tool {call.function.name!r} with arguments that are no JSON object."
            ) from None
        blocks.append(
            build_tool_use(
                call.id or name_call(answer_id, at), call.function.name, msgspec.Raw(arguments.encode())
            )
        )
    return blocks


def _encode_thinking(message: AnswerMessage) -> list[Block]:
    if message.thinking_blocks:
        return [encode_thought(thought) for thought in message.thinking_blocks]
    thought = message.reasoning_content or message.reasoning
    return [encode_thought(Thought(thinking=thought))] if thought else []


def encode_thought(thought: Thought) -> Block:
    """A block; its signature is empty where the server that thought signs nothing."""
    if thought.type == "redacted_thinking":
        return {"type": thought.type, "data": thought.data or ""}
    return {"type": "thinking", "thinking": thought.thinking or "", "signature": thought.signature or ""}


def name_call(answer_id: str, at: int) -> str:
    """An id for a call to which the server gave none; a caller needs one to send the result back."""
    return f"call_{answer_id}_{at}"


def encode_error(body: bytes, status: int) -> bytes:
    """Anthropic's error from OpenAI's.  Never raises."""
    try:
        error = _decode_envelope(body).error
    except UNREADABLE:
        error = _Error(f"The upstream answered with status {status}, and no error in OpenAI's dialect.")
    told = {"type": find_type(status, error.type or ""), "message": error.message}
    return wrap_error(msgspec.json.encode(told))
