"""What a request asks for in tokens, read for keys that have limits of their own.  Pure.

It reads a body only as far as a limit needs it, and changes none: `openai.encode_request` puts in what a
caller left out.  What it cannot read it refuses, because an engine might read it otherwise.
"""

from typing import Final

import msgspec

from forebay.core.errors import ContextTooLong, InvalidJSON, InvalidValue, OutputTooLong
from forebay.core.routes import Endpoint
from forebay.providers.json_edit import NOTHING, UNREADABLE
from forebay.providers.openai_estimate import BYTES_PER_TOKEN
from forebay.providers.openai_media import MediaFinder, find_media

#: More bytes than this stand for one token in hardly any text of any tokenizer.
BYTES_PER_TOKEN_MAX: Final = 16
_PROMPT_FIELDS: Final = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.EMBEDDINGS: "input",
    Endpoint.MESSAGES: "messages",
    Endpoint.COUNT_TOKENS: "messages",
    Endpoint.RESPONSES: "input",
    Endpoint.RERANK: "documents",
    Endpoint.SCORE: "text_2",
}
#: One prompt each.
_SINGLE: Final = frozenset({Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS, Endpoint.RESPONSES})

_PAIRS: Final = frozenset({Endpoint.RERANK, Endpoint.SCORE})  #: one prompt for each pair of texts


class _Wanted(msgspec.Struct, frozen=True):
    """Kept as bytes: what is of the wrong type is told by its name."""

    max_tokens: msgspec.Raw = NOTHING
    max_completion_tokens: msgspec.Raw = NOTHING
    n_predict: msgspec.Raw = NOTHING  # llama.cpp's own, which wins there over the others
    n: msgspec.Raw = NOTHING
    best_of: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    input: msgspec.Raw = NOTHING
    documents: msgspec.Raw = NOTHING
    text_1: msgspec.Raw = NOTHING
    text_2: msgspec.Raw = NOTHING


_LIMITS: Final = ("max_tokens", "max_completion_tokens", "n_predict")
_decode_wanted = msgspec.json.Decoder(_Wanted).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def find_output_cap(body: bytes, endpoint: Endpoint, tokens_max: int) -> int | None:
    """The limit to be set for each choice where the request names none, else None.

    Raises:
        OutputTooLong: all choices together may become longer than `tokens_max`.
        InvalidValue: a field that says how long is no number that says it.
        InvalidJSON: the body can't be read.
    """
    wanted = _read(body)
    named = {name: _read_count(name, raw, least=0) for name in _LIMITS if (raw := _get(wanted, name))}
    choices = max(_read_count(name, _get(wanted, name) or b"1", least=1) for name in ("n", "best_of"))
    prompts = _count_prompts(wanted, endpoint)
    times = choices * prompts
    for name, tokens in named.items():
        if tokens * times > tokens_max:
            raise OutputTooLong(_explain(name, tokens, choices, prompts, tokens_max), param=name)
    if named:
        return None
    if times > tokens_max:
        name = "n" if choices > 1 else "prompt"
        raise OutputTooLong(_explain("max_tokens", 1, choices, prompts, tokens_max), param=name)
    return tokens_max // times


def check_context(body: bytes, endpoint: Endpoint, tokens_max: int, find: MediaFinder = find_media) -> None:
    """Refuses a prompt that is too long whatever the tokenizer; how long others are, their engine knows.

    Of several prompts, the longest counts, and it is no shorter than the mean.

    Raises:
        ContextTooLong: even at `BYTES_PER_TOKEN_MAX` bytes a token it has more than `tokens_max`.
    """
    bytes_max = tokens_max * BYTES_PER_TOKEN_MAX
    if len(body) <= bytes_max:
        return
    size = len(body) - sum(find(body, files=True))
    if size > bytes_max:
        size //= _count_prompts(_read(body), endpoint)
    if size > bytes_max:
        raise ContextTooLong(
            f"the prompt has about {size // BYTES_PER_TOKEN} tokens; this key allows {tokens_max} "
            "(`context_max_tokens`)",
            param=_PROMPT_FIELDS[endpoint],
        )


def _explain(name: str, tokens: int, choices: int, prompts: int, tokens_max: int) -> str:
    times = [f"{count} {what}" for count, what in ((choices, "choices"), (prompts, "prompts")) if count > 1]
    asked = " times ".join([f"`{name}` {tokens}", *times])
    return (
        f"{asked} is more than the {tokens_max} tokens of output that this key allows (`output_max_tokens`)"
    )


def _get(wanted: _Wanted, name: str) -> bytes:
    """A field's bytes; none where it is absent or null, which mean the same."""
    raw = bytes(getattr(wanted, name))
    return b"" if raw == b"null" else raw


def _read(body: bytes) -> _Wanted:
    try:
        return _decode_wanted(body)
    except UNREADABLE as error:
        raise InvalidJSON(f"the request body is not valid JSON: {error}") from None


def _read_count(name: str, raw: bytes, *, least: int) -> int:
    if raw.isdigit() and len(raw) < 20 and int(raw) >= least:
        return int(raw)
    raise InvalidValue(
        f"`{name}` must be a whole number from {least} on, because this key's output is limited "
        "(`output_max_tokens`)",
        param=name,
    )


def _count_prompts(wanted: _Wanted, endpoint: Endpoint) -> int:
    """How many texts are answered one by one: a list of numbers is one text, given as tokens."""
    if endpoint in _SINGLE:
        return 1
    if endpoint in _PAIRS:
        return max(map(_count_list, (wanted.documents, wanted.text_1, wanted.text_2)))
    raw = wanted.prompt if endpoint is Endpoint.COMPLETIONS else wanted.input
    try:
        parts = _decode_list(raw)
    except UNREADABLE:
        return 1  # one text
    return len(parts) if parts and bytes(parts[0])[:1] in (b'"', b"[") else 1


def _count_list(raw: msgspec.Raw) -> int:
    """How many texts a field has; 1 where it is no list."""
    try:
        return max(1, len(_decode_list(raw)))
    except UNREADABLE:
        return 1
