"""Streams of Gemini's `streamGenerateContent` as OpenAI's chat.  Pure.

Each event is an answer of its own with what is new; calls of functions come whole.  Usage stands in every
event and grows, so that of the last counts.  The dialect has no event for its end: it is well ended if each
candidate has said why it finished by the time the wire ends.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import UpstreamProtocol
from forebay.net.sse import EventSplitter, encode_event, parse_event
from forebay.providers.gemini_answer import (
    Candidate,
    ChoiceReader,
    Response,
    build_head,
    build_logprobs,
    decode_response,
)
from forebay.providers.gemini_errors import describe_error, read_error
from forebay.providers.gemini_usage import NO_USAGE, build_chat_usage, read_usage_metadata
from forebay.providers.json_edit import NOTHING, UNREADABLE

_DONE: Final = b"data: [DONE]\n\n"
CHOICES_MAX: Final = 128  #: of one answer; Google makes 8 at most


class GeminiStream:
    """One stream on its way; `forebay.core.translation.StreamTranslator`.

    Args:
        model: what the chunks call the model.
        event_max_bytes: the longest event that is held while its end has not come.
    """

    __slots__ = ("_choices", "_id", "_is_over", "_model", "_splitter", "_usage")

    def __init__(self, model: str, *, event_max_bytes: int) -> None:
        self._splitter = EventSplitter(event_max_bytes)
        self._model = model
        self._id = ""
        self._choices: dict[int, ChoiceReader] = {}
        self._usage = NO_USAGE
        self._is_over = False  # by its end, or by an error: nothing follows

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._translate, self._splitter.feed(data)))

    def finish(self) -> bytes:
        """The last event, if only its blank line is missing, and the end if all choices came to theirs."""
        rest = self._splitter.finish()
        try:
            out = self._translate(rest) if rest else b""
        except UpstreamProtocol:
            out = b""
        if self._is_over or not self._choices:
            return out
        if not all(choice.is_finished for choice in self._choices.values()):
            return out
        self._is_over = True
        return out + self._write_usage() + _DONE

    def _translate(self, raw: bytes) -> bytes:
        data = parse_event(raw).data
        if self._is_over or not data:
            return b""
        try:
            response = decode_response(data)
        except UNREADABLE as error:
            raise UpstreamProtocol(f"The upstream sent an event that is none of Google's: {error}") from None
        if bytes(response.error) not in (b"", b"null"):
            return self._fail(describe_error(read_error(response.error)))
        self._id = self._id or response.response_id or ""
        if response.usage_metadata is not NOTHING:
            self._usage = self._usage.update(read_usage_metadata(response.usage_metadata))
        if (refusal := response.refusal) is not None and not self._choices:
            return self._refuse(refusal)
        return self._continue(response)

    def _continue(self, response: Response) -> bytes:
        out = b""
        for candidate in response.candidates or ():
            choice, begun = self._find_choice(candidate.index)
            out += begun
            if choice.is_finished or self._is_over:
                continue
            deltas: list[dict[str, Any]] = choice.read(candidate)
            logprobs = build_logprobs(candidate)
            for at, delta in enumerate(deltas):  # probabilities are of all that came, and told once
                out += self._write(choice.index, delta, logprobs=logprobs if at == 0 else None)
            if candidate.finish_reason:
                out += self._end_choice(choice, candidate, None if deltas else logprobs)
        return out

    def _find_choice(self, index: int) -> tuple[ChoiceReader, bytes]:
        choice = self._choices.get(index)
        if choice is not None:
            return choice, b""
        if len(self._choices) >= CHOICES_MAX:
            raise UpstreamProtocol(f"The upstream's stream has more than {CHOICES_MAX} candidates.")
        choice = self._choices[index] = ChoiceReader(index, self._id)
        return choice, self._write(index, {"role": "assistant", "content": ""})

    def _end_choice(
        self, choice: ChoiceReader, candidate: Candidate, logprobs: dict[str, Any] | None
    ) -> bytes:
        try:
            reason, said = choice.finish(candidate)
        except UpstreamProtocol as error:
            code = (candidate.finish_reason or "").lower()
            return self._fail({"message": error.message, "type": "api_error", "param": None, "code": code})
        return self._write(choice.index, said, reason, logprobs=logprobs)

    def _refuse(self, refusal: str) -> bytes:
        choice, begun = self._find_choice(0)
        choice.is_finished = True
        return begun + self._write(0, {"refusal": refusal}, "content_filter")

    def _fail(self, error: dict[str, str | None]) -> bytes:
        self._is_over = True
        return encode_event(msgspec.json.encode({"error": error}))

    def _write_usage(self) -> bytes:
        usage = build_chat_usage(self._usage)
        if usage is None:
            return b""
        chunk = build_head(self._id, self._model, "chat.completion.chunk") | {"choices": [], "usage": usage}
        return encode_event(msgspec.json.encode(chunk))

    def _write(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        *,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = build_head(self._id, self._model, "chat.completion.chunk") | {"choices": [choice]}
        return encode_event(msgspec.json.encode(chunk))
