"""Whole answers and errors of OpenAI's chat, as its Responses have them, and what both ways share.  Pure.

A response repeats much of its request (`Echo`).  Its id and those of its items are made of the chat's, for
nothing is kept that they could name.
"""

from typing import Any, Final

import msgspec

from forebay.providers.chat_answer import AnswerMessage, Thought, read_completion
from forebay.providers.json_edit import UNREADABLE
from forebay.providers.messages_answer import encode_thought
from forebay.providers.openai_usage import read_usage
from forebay.providers.responses_content import pack_thoughts
from forebay.providers.responses_echo import Echo

Item = dict[str, Any]
Response = dict[str, Any]

#: Why a response is incomplete, by what ended its chat.
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_DEFAULT_CODE: Final = "server_error"


class _Error(msgspec.Struct, frozen=True):
    message: str = "The model failed, and did not say why."
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


_decode_error = msgspec.json.Decoder(_Error).decode


def encode_answer(body: bytes, echo: Echo) -> bytes:
    """A response from a chat completion.  Raises UpstreamProtocol."""
    completion = read_completion(body)
    choice = completion.choices[0]
    answer_id = completion.id or ""
    status, why = find_status(choice.finish_reason)
    response = build_response(answer_id, completion.created, completion.model, echo)
    response |= {
        "status": status,
        "incomplete_details": why,
        "output": _encode_items(choice.message, answer_id, status),
        "usage": build_usage(completion.usage),
    }
    return msgspec.json.encode(response)


def build_response(answer_id: str, created: float | None, model: str | None, echo: Echo) -> Response:
    """A response that has only begun."""
    repeated = {name: getattr(echo, name) for name in echo.__struct_fields__}
    return repeated | {
        "id": f"resp_{answer_id}",
        "object": "response",
        "created_at": int(created or 0),
        "completed_at": None,  # nobody tells it
        "status": "in_progress",
        "background": False,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "model": model or "",
        "output": [],
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "store": False,
        "top_logprobs": 0,
        "usage": None,
    }


def find_status(finish_reason: str | None) -> tuple[str, dict[str, str] | None]:
    """The status of a response and its `incomplete_details`."""
    reason = _INCOMPLETE.get(finish_reason or "")
    return ("completed", None) if reason is None else ("incomplete", {"reason": reason})


def build_message(answer_id: str, at: int, status: str) -> Item:
    return {
        "id": f"msg_{answer_id}_{at}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [],
    }


def build_text(text: str = "") -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def build_refusal(refusal: str = "") -> Item:
    return {"type": "refusal", "refusal": refusal}


def build_reasoning(answer_id: str, at: int, text: str, thoughts: list[Thought]) -> Item:
    """What the model thought; what of it is signed comes along to be sent back."""
    item: Item = {"id": f"rs_{answer_id}_{at}", "type": "reasoning", "summary": []}
    item["content"] = [{"type": "reasoning_text", "text": text}] if text else []
    if any(thought.signature or thought.data for thought in thoughts):
        item["encrypted_content"] = pack_thoughts([encode_thought(thought) for thought in thoughts])
    return item


def build_call(
    answer_id: str, at: int, call_id: str | None, name: str, arguments: str, status: str = "completed"
) -> Item:
    """A call of a function; one without an id gets one, which a caller needs to send the result back."""
    return {
        "id": f"fc_{answer_id}_{at}",
        "type": "function_call",
        "status": status,
        "call_id": call_id or f"call_{answer_id}_{at}",
        "name": name,
        "arguments": arguments,
    }


def _encode_items(message: AnswerMessage, answer_id: str, status: str) -> list[Item]:
    items: list[Item] = []
    thoughts = message.thinking_blocks or []
    thought = message.reasoning_content or message.reasoning
    thought = thought or "".join(each.thinking or "" for each in thoughts)
    if thought or thoughts:
        items.append(build_reasoning(answer_id, 0, thought, thoughts))
    content = message.text
    parts = [build_text(content)] if content else []
    parts += [build_refusal(message.refusal)] if message.refusal else []
    if parts or not message.tool_calls:
        item = build_message(answer_id, len(items), status)
        items.append(item | {"content": parts or [build_text()]})
    for call in message.tool_calls or ():
        function = call.function
        arguments = function.arguments or "{}"
        items.append(build_call(answer_id, len(items), call.id, function.name, arguments))
    return items


def build_usage(raw: msgspec.Raw | bytes) -> dict[str, Any] | None:
    """The usage of a response from that of a chat; None where nothing was told."""
    tokens = read_usage(raw) if bytes(raw) not in (b"", b"null") else None
    if tokens is None:
        return None
    return {
        "input_tokens": tokens.input_total,
        "input_tokens_details": {
            "cached_tokens": tokens.input_cached or 0,
            "cache_write_tokens": tokens.input_cache_write or 0,
        },
        "output_tokens": tokens.output_total,
        "output_tokens_details": {"reasoning_tokens": tokens.output_reasoning or 0},
        "total_tokens": tokens.input_total + tokens.output_total,
    }


def encode_error(body: bytes, status: int) -> bytes:
    """OpenAI's error from OpenAI's: the same."""
    return body


def read_error(raw: msgspec.Raw | bytes) -> dict[str, Any]:
    """The words of an error inside a stream: `code`, `message`, `param`.  Never raises."""
    try:
        error = _decode_error(raw)
    except UNREADABLE:
        error = _Error()
    code = error.code if isinstance(error.code, str) and error.code else error.type
    return {"code": code or _DEFAULT_CODE, "message": error.message, "param": error.param}
