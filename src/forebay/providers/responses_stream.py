"""A stream of OpenAI's chat as one of its Responses.  Pure.

Items are told apart by their place, so that calls of several tools go on as they come; text and thinking end
where something else begins.  The last event holds the whole response, and so all of it is kept until then,
up to the length that an event may have.  A stream that was cut has no last event.
"""

from typing import Any, Final

import msgspec

from forebay.net.sse import EventTooLarge, encode_event
from forebay.providers.chat_answer import Thought
from forebay.providers.chat_events import ChatEvents, Chunk, ChunkCall, ChunkFunction, Delta
from forebay.providers.responses_answer import (
    Item,
    Response,
    build_call,
    build_message,
    build_reasoning,
    build_refusal,
    build_response,
    build_text,
    build_usage,
    find_status,
    read_error,
)
from forebay.providers.responses_echo import Echo

_REST_BYTES: Final = 256  #: of an item beside its words


class _Open:
    """An item that has begun.

    Attributes:
        at: its place in the output.
        pieces: of its words.
        signed: pieces of signed thinking.
    """

    __slots__ = ("at", "item", "kind", "pieces", "signed")

    def __init__(self, kind: str, at: int, item: Item) -> None:
        self.kind = kind
        self.at = at
        self.item = item
        self.pieces: list[str] = []
        self.signed: list[Thought] = []


class ResponsesStream(ChatEvents):
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        echo: what the response repeats of its request.
        event_max_bytes: the longest event, read or made: the last one holds the whole response.
    """

    PING = b":\n\n"

    __slots__ = ("_calls", "_echo", "_held_bytes", "_open", "_output", "_response", "_sequence")

    def __init__(self, echo: Echo, *, event_max_bytes: int) -> None:
        super().__init__(event_max_bytes=event_max_bytes)
        self._echo = echo
        self._response: Response | None = None
        self._output: list[Item] = []
        self._open: _Open | None = None  # text, a refusal or thinking
        self._calls: dict[int, _Open] = {}
        self._sequence = 0
        self._held_bytes = 0

    @property
    def _is_begun(self) -> bool:
        return self._response is not None

    def _start(self, chunk: Chunk) -> bytes:
        self._response = build_response(self._id, chunk.created, chunk.model, self._echo)
        told = {"response": self._response}
        return self._write("response.created", told) + self._write("response.in_progress", told)

    def _add_delta(self, delta: Delta) -> bytes:
        out = b""
        thinking = delta.reasoning_content or delta.reasoning
        if thinking is None and delta.thinking_blocks:
            thinking = "".join(thought.thinking or "" for thought in delta.thinking_blocks)
        if thinking or delta.thinking_blocks:
            out += self._add_words("reasoning", thinking or "", delta.thinking_blocks or [])
        if delta.content:
            out += self._add_words("output_text", delta.content)
        if delta.refusal:
            out += self._add_words("refusal", delta.refusal)
        return out + b"".join(map(self._add_call, delta.tool_calls or ()))

    def _add_words(self, kind: str, words: str, signed: list[Thought] | None = None) -> bytes:
        out = b""
        part = self._open
        if part is None or part.kind != kind:
            out += self._begin_words(kind)
            part = self._open
        assert part is not None
        for thought in signed or ():
            self._hold(sum(len(each or "") for each in (thought.thinking, thought.signature, thought.data)))
            part.signed.append(thought)
        if not words:
            return out
        self._hold(len(words))
        if kind == "reasoning" and not part.pieces:
            out += self._write_part("added", part, {"type": "reasoning_text", "text": ""})
        part.pieces.append(words)
        name = {"reasoning": "reasoning_text"}.get(kind, kind)
        told = self._place(part) | {"delta": words} | ({"logprobs": []} if kind == "output_text" else {})
        return out + self._write(f"response.{name}.delta", told)

    def _begin_words(self, kind: str) -> bytes:
        before = self._open
        if kind != "reasoning" and before is not None and before.kind in ("output_text", "refusal"):
            # Both stand in one message.
            out = self._end_part(before)
            self._open = part = _Open(kind, before.at, before.item)
        else:
            out = self._close_words()
            at = len(self._output)
            item = (
                build_reasoning(self._id, at, "", [])
                if kind == "reasoning"
                else build_message(self._id, at, "in_progress")
            )
            self._open = part = _Open(kind, at, item)
            out += self._begin_item(item, at)
        if kind != "reasoning":
            out += self._write_part("added", part, build_text() if kind == "output_text" else build_refusal())
        return out

    def _add_call(self, call: ChunkCall) -> bytes:
        function = call.function or ChunkFunction()
        known = self._calls.get(call.index)
        out = b""
        if known is None:
            out += self._close_words()
            at = len(self._output)
            item = build_call(self._id, at, call.id, function.name or "", "", "in_progress")
            known = self._calls[call.index] = _Open("function_call", at, item)
            out += self._begin_item(item, at)
        if function.arguments:
            self._hold(len(function.arguments))
            known.pieces.append(function.arguments)
            told = {"item_id": known.item["id"], "output_index": known.at, "delta": function.arguments}
            out += self._write("response.function_call_arguments.delta", told)
        return out

    def _begin_item(self, item: Item, at: int) -> bytes:
        self._hold(_REST_BYTES)
        self._output.append(item)
        return self._write("response.output_item.added", {"output_index": at, "item": item})

    def _end_part(self, part: _Open) -> bytes:
        words = "".join(part.pieces)
        place = self._place(part)
        if part.kind == "output_text":
            out = self._write("response.output_text.done", place | {"text": words, "logprobs": []})
            made = build_text(words)
        else:
            out = self._write("response.refusal.done", place | {"refusal": words})
            made = build_refusal(words)
        out += self._write_part("done", part, made)
        part.item["content"].append(made)
        return out

    def _close_words(self) -> bytes:
        part, self._open = self._open, None
        if part is None:
            return b""
        if part.kind != "reasoning":
            out = self._end_part(part)
            part.item["status"] = find_status(self._finish_reason)[0]
        else:
            words = "".join(part.pieces)
            out = b""
            if words:
                out += self._write("response.reasoning_text.done", self._place(part) | {"text": words})
                out += self._write_part("done", part, {"type": "reasoning_text", "text": words})
            part.item |= build_reasoning(self._id, part.at, words, _join(part.signed))
        return out + self._write("response.output_item.done", {"output_index": part.at, "item": part.item})

    @property
    def _finish_reason(self) -> str | None:
        return None if self._finish is None else self._finish.finish_reason

    def _close_all(self) -> bytes:
        out = self._close_words() + b"".join(map(self._close_call, self._calls.values()))
        self._calls = {}
        if not self._output:  # a model that said nothing said an empty text
            out += self._begin_words("output_text") + self._close_words()
        return out

    def _close_call(self, call: _Open) -> bytes:
        arguments = "".join(call.pieces) or "{}"
        call.item |= {"arguments": arguments, "status": "completed"}
        told = {"item_id": call.item["id"], "output_index": call.at}
        out = self._write(
            "response.function_call_arguments.done",
            told | {"name": call.item["name"], "arguments": arguments},
        )
        return out + self._write("response.output_item.done", {"output_index": call.at, "item": call.item})

    def _end(self) -> bytes:
        if self._response is None:  # an end without a beginning
            return b""
        out = self._close_all()
        self._is_over = True
        status, why = find_status(self._finish_reason)
        self._response |= {
            "status": status,
            "incomplete_details": why,
            "output": self._output,
            "usage": build_usage(self._usage),
        }
        return out + self._write(f"response.{status}", {"response": self._response})

    def _fail(self, raw: msgspec.Raw) -> bytes:
        """OpenAI tells an error twice: by itself, and as the end of the response."""
        told = read_error(raw)
        out = self._write("error", told | {"error": told | {"type": told["code"]}})
        if self._response is not None:
            self._response |= {
                "status": "failed",
                "error": {"code": told["code"], "message": told["message"]},
                "output": self._output,
            }
            out += self._write("response.failed", {"response": self._response})
        self._is_over = True
        return out

    def _place(self, part: _Open) -> dict[str, Any]:
        index = 0 if part.kind == "reasoning" else len(part.item["content"])
        return {"item_id": part.item["id"], "output_index": part.at, "content_index": index}

    def _write_part(self, what: str, part: _Open, made: Item) -> bytes:
        return self._write(f"response.content_part.{what}", self._place(part) | {"part": made})

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        if self._held_bytes > self._event_max_bytes:
            raise EventTooLarge(
                f"The answer has more than {self._event_max_bytes} bytes, and the last event of a response "
                "holds all of it (gateway.event_max_bytes)."
            )

    def _write(self, kind: str, fields: dict[str, Any]) -> bytes:
        told = {"type": kind, "sequence_number": self._sequence} | fields
        self._sequence += 1
        return encode_event(msgspec.json.encode(told), kind)


def _join(pieces: list[Thought]) -> list[Thought]:
    """Whole thoughts from their pieces, in their order."""
    whole: dict[int, list[Thought]] = {}
    for piece in pieces:
        known = whole.get(piece.index)
        if known is None or piece.type != known[0].type:
            whole[piece.index] = [piece]
        else:
            known.append(piece)
    return [_join_thought(known) for known in whole.values()]


def _join_thought(pieces: list[Thought]) -> Thought:
    if len(pieces) == 1:
        return pieces[0]
    return msgspec.structs.replace(
        pieces[0],
        thinking="".join(piece.thinking or "" for piece in pieces),
        signature="".join(piece.signature or "" for piece in pieces) or None,
        data="".join(piece.data or "" for piece in pieces) or None,
    )
