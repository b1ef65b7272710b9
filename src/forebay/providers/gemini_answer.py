"""Candidates of Gemini's answers as pieces of OpenAI's chat: what whole answers and streams share.  Pure.

A whole answer is the pieces of a stream put together, so that both say the same.  What was thought goes into
`reasoning_content`, as many servers of OpenAI's dialect have it; where Google signs anything, that stands in
`thinking_blocks` beside it, and of a call in its `extra_content` too.  Parts that OpenAI's chat has no place
for (images, what Google's own tools did) are passed over.

Source: Gemini API reference, `GenerateContentResponse`, `Candidate`, `Part`.
"""

from hashlib import blake2s
from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.providers.chat_answer import start_message
from forebay.providers.gemini_signatures import TEXT, THOUGHT, name_call, write_mark
from forebay.providers.gemini_usage import build_chat_usage, read_usage_metadata
from forebay.providers.json_edit import NOTHING, UNREADABLE

Delta = dict[str, Any]

_BLOCKED: Final = "content_filter"
#: Also of reasons that are not known yet, `stop`.
FINISH: Final = {
    "STOP": "stop",
    "OTHER": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": _BLOCKED,
    "RECITATION": _BLOCKED,
    "LANGUAGE": _BLOCKED,
    "BLOCKLIST": _BLOCKED,
    "PROHIBITED_CONTENT": _BLOCKED,
    "SPII": _BLOCKED,
    "MODEL_ARMOR": _BLOCKED,
    "ESCALATION": _BLOCKED,
    "PUP_LIMITED_DISABLED": _BLOCKED,
    "IMAGE_SAFETY": _BLOCKED,
    "IMAGE_PROHIBITED_CONTENT": _BLOCKED,
    "IMAGE_RECITATION": _BLOCKED,
}
#: Reasons that are failures: what the model wrote is of no use, and OpenAI has no word for it.
FAILED: Final = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"}
    | {"MISSING_THOUGHT_SIGNATURE"}
)


class _Call(msgspec.Struct, frozen=True):
    name: str
    id: str | None = None
    args: msgspec.Raw = NOTHING


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Call | None = None


class _Content(msgspec.Struct, frozen=True):
    parts: list[_Part] | None = None


class _Token(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    log_probability: float = 0.0


class _Top(msgspec.Struct, frozen=True):
    candidates: list[_Token] | None = None


class _Logprobs(msgspec.Struct, frozen=True, rename="camel"):
    chosen_candidates: list[_Token] | None = None
    top_candidates: list[_Top] | None = None


class Candidate(msgspec.Struct, frozen=True, rename="camel"):
    index: int = 0
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    logprobs_result: _Logprobs | None = None


class _Feedback(msgspec.Struct, frozen=True, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class Response(msgspec.Struct, frozen=True, rename="camel"):
    """A whole answer, or one event of a stream."""

    candidates: list[Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: msgspec.Raw = NOTHING
    response_id: str | None = None
    error: msgspec.Raw = NOTHING

    @property
    def refusal(self) -> str | None:
        """Why there is no candidate, where the prompt was blocked."""
        feedback = self.prompt_feedback
        if self.candidates or feedback is None or not feedback.block_reason:
            return None
        return feedback.block_reason_message or f"The prompt was blocked: {feedback.block_reason}."


decode_response = msgspec.json.Decoder(Response).decode


class ChoiceReader:
    """Turns the parts of one candidate into deltas; keeps what must be known of those before.

    Attributes:
        is_finished: its reason to finish has come.
    """

    __slots__ = ("_calls", "_open", "_thoughts", "answer_id", "index", "is_finished")

    def __init__(self, index: int, answer_id: str) -> None:
        self.index = index
        self.answer_id = answer_id
        self.is_finished = False
        self._calls = 0
        self._thoughts = 0  # of `thinking_blocks`
        self._open: int | None = None  # the block that a thought goes on in, or that a signature belongs to

    def read(self, candidate: Candidate) -> list[Delta]:
        """The deltas of the parts, without the reason to finish."""
        deltas: list[Delta] = []
        for part in (candidate.content.parts if candidate.content is not None else None) or ():
            deltas += self._read_part(part)
        return deltas

    def finish(self, candidate: Candidate) -> tuple[str, Delta]:
        """OpenAI's reason to finish, and what is said with it.  Raises UpstreamProtocol on a failure."""
        self.is_finished = True
        told = candidate.finish_reason or ""
        if told in FAILED:
            raise UpstreamProtocol(
                f"The model's output is of no use: Google says {told}."
                + (f" {candidate.finish_message}" if candidate.finish_message else "")
            )
        reason = FINISH.get(told, "stop")
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        if reason == _BLOCKED and candidate.finish_message:
            return reason, {"refusal": candidate.finish_message}
        return reason, {}

    def _read_part(self, part: _Part) -> list[Delta]:
        signature = part.thought_signature or ""
        if part.function_call is not None:
            return [*self._sign(name_call(self._calls), signature), self._call(part.function_call, signature)]
        if part.thought:
            return [*self._think(part.text or ""), *self._sign(THOUGHT, signature)]
        deltas = self._sign(TEXT, signature)
        if part.text:
            self._open = None
            deltas.append({"content": part.text})
        return deltas

    def _think(self, text: str) -> list[Delta]:
        if not text:
            return []
        thought = {"index": self._open_block(), "type": "thinking", "thinking": text}
        return [{"reasoning_content": text, "thinking_blocks": [thought]}]

    def _sign(self, part: str, signature: str) -> list[Delta]:
        if not signature:
            return []
        thought = {"index": self._open_block(), "type": "thinking", "signature": write_mark(part, signature)}
        self._open = None
        return [{"thinking_blocks": [thought]}]

    def _open_block(self) -> int:
        if self._open is None:
            self._open = self._thoughts
            self._thoughts += 1
        return self._open

    def _call(self, call: _Call, signature: str) -> Delta:
        self._open = None
        arguments = bytes(call.args).decode() if call.args is not NOTHING else "{}"
        if arguments == "null":
            arguments = "{}"
        made: Delta = {
            "index": self._calls,
            "id": call.id or self._name_call(call.name, arguments),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }
        if signature:
            made["extra_content"] = {"google": {"thought_signature": signature}}
        self._calls += 1
        return {"tool_calls": [made]}

    def _name_call(self, name: str, arguments: str) -> str:
        """An id, the same for the same answer; Google gives calls none where their order says it."""
        said = f"{self.answer_id}\n{self.index}\n{self._calls}\n{name}\n{arguments}"
        return f"call_{blake2s(said.encode(), digest_size=12).hexdigest()}"


def decode_answer(body: bytes, model: str) -> bytes:
    """A chat completion.  Raises UpstreamProtocol.  The time of its making is 0, because none is told."""
    try:
        answer = decode_response(body)
    except UNREADABLE as error:
        raise UpstreamProtocol(f"The upstream's answer is none of Google's: {error}") from None
    refusal = answer.refusal
    if refusal is not None:
        message = start_message(None) | {"refusal": refusal}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": _BLOCKED}]
    elif answer.candidates:
        choices = [_decode_choice(each, answer.response_id or "") for each in answer.candidates]
    else:
        raise UpstreamProtocol("The upstream's answer has no candidates, and no reason for it.")
    completion = build_head(answer.response_id or "", model, "chat.completion") | {"choices": choices}
    usage = build_chat_usage(read_usage_metadata(answer.usage_metadata))
    return msgspec.json.encode(completion if usage is None else completion | {"usage": usage})


def build_head(answer_id: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": 0, "model": model}


def build_logprobs(candidate: Candidate) -> dict[str, Any] | None:
    """OpenAI's log probabilities of the tokens of a candidate."""
    told = candidate.logprobs_result
    if told is None or told.chosen_candidates is None:
        return None
    tops = told.top_candidates or []
    content = []
    for at, token in enumerate(told.chosen_candidates):
        others = (tops[at].candidates or []) if at < len(tops) else []
        content.append(_build_token(token) | {"top_logprobs": [_build_token(each) for each in others]})
    return {"content": content, "refusal": None}


def _build_token(token: _Token) -> dict[str, Any]:
    spelled = token.token.encode("utf-8", "surrogatepass")
    return {"token": token.token, "logprob": token.log_probability, "bytes": list(spelled)}


def _decode_choice(candidate: Candidate, answer_id: str) -> dict[str, Any]:
    reader = ChoiceReader(candidate.index, answer_id)
    deltas = reader.read(candidate)
    reason, last = reader.finish(candidate)
    return {
        "index": candidate.index,
        "message": _join([*deltas, last]),
        "logprobs": build_logprobs(candidate),
        "finish_reason": reason,
    }


def _join(deltas: list[Delta]) -> Delta:
    """The message that the deltas are pieces of."""
    texts: dict[str, str] = {}
    blocks: dict[int, dict[str, str]] = {}
    calls: list[Delta] = []
    for delta in deltas:
        for name in ("content", "reasoning_content", "refusal"):
            if name in delta:
                texts[name] = texts.get(name, "") + delta[name]
        for thought in delta.get("thinking_blocks", ()):
            block = blocks.setdefault(thought["index"], {"type": "thinking", "thinking": "", "signature": ""})
            block["thinking"] += thought.get("thinking", "")
            block["signature"] += thought.get("signature", "")
        calls += [
            {name: each[name] for name in each if name != "index"} for each in delta.get("tool_calls", ())
        ]
    message = start_message(texts.pop("content", None if calls else "")) | texts
    if blocks:
        message["thinking_blocks"] = list(blocks.values())
    if calls:
        message["tool_calls"] = calls
    return message
