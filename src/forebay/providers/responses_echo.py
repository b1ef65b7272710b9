"""What a response repeats of its request, with all the fields that a response has and a request need not.

Pure.  What the request did not say stands there as OpenAI documents its default.
"""

from typing import Any, Final

import msgspec

from forebay.providers.json_edit import UNREADABLE

_TEXT: Final = msgspec.Raw(b'{"format":{"type":"text"}}')
_NULL: Final = msgspec.Raw(b"null")
Fields = dict[str, msgspec.Raw]
#: What a response says of a part that its request left out.
_FUNCTION: Final = {"description": _NULL, "parameters": _NULL, "strict": _NULL}
_SCHEMA: Final = {"description": _NULL, "strict": msgspec.Raw(b"false")}
_REASONING: Final = {"effort": _NULL, "summary": _NULL}


class Echo(msgspec.Struct, frozen=True):
    """What a response repeats of its request, with what stands there if the request is silent."""

    instructions: msgspec.Raw = msgspec.Raw(b"null")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"null")
    max_tool_calls: msgspec.Raw = msgspec.Raw(b"null")
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    parallel_tool_calls: msgspec.Raw = msgspec.Raw(b"true")
    prompt_cache_key: msgspec.Raw = msgspec.Raw(b"null")
    reasoning: msgspec.Raw = msgspec.Raw(b"null")
    safety_identifier: msgspec.Raw = msgspec.Raw(b"null")
    service_tier: msgspec.Raw = msgspec.Raw(b'"default"')
    temperature: msgspec.Raw = msgspec.Raw(b"1.0")
    text: msgspec.Raw = _TEXT
    tool_choice: msgspec.Raw = msgspec.Raw(b'"auto"')
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    top_p: msgspec.Raw = msgspec.Raw(b"1.0")
    truncation: msgspec.Raw = msgspec.Raw(b'"disabled"')
    user: msgspec.Raw = msgspec.Raw(b"null")


_DEFAULTS: Final = Echo()
_decode_echo = msgspec.json.Decoder(Echo).decode
_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_tools = msgspec.json.Decoder(list[Fields]).decode
_encode = msgspec.json.encode


def read_echo(request: bytes) -> Echo:
    """What the response to a request repeats of it; nothing where it can't be read."""
    try:
        echo = _decode_echo(request)
    except UNREADABLE:
        return _DEFAULTS
    # Null says nothing, and clients want lists and words where a response has them.
    changed: dict[str, Any] = {
        name: getattr(_DEFAULTS, name)
        for name in echo.__struct_fields__
        if bytes(getattr(echo, name)) == b"null"
    }
    for name, complete in _COMPLETIONS.items():
        raw = getattr(echo, name)
        if name in changed or raw is getattr(_DEFAULTS, name):
            continue
        try:
            changed[name] = msgspec.Raw(_encode(complete(raw)))
        except UNREADABLE:  # the translation of the request has refused it, if it matters
            continue
    return msgspec.structs.replace(echo, **changed)


def _complete_tools(raw: msgspec.Raw) -> list[Fields]:
    return [_FUNCTION | tool if _says(tool, "function") else tool for tool in _decode_tools(raw)]


def _complete_text(raw: msgspec.Raw) -> Fields:
    text = {"format": msgspec.Raw(b'{"type":"text"}')} | _decode_fields(raw)
    form = _decode_fields(text["format"])
    if _says(form, "json_schema"):
        text["format"] = msgspec.Raw(_encode(_SCHEMA | form))
    return text


def _complete_reasoning(raw: msgspec.Raw) -> Fields:
    return _REASONING | _decode_fields(raw)


_COMPLETIONS: Final = {
    "tools": _complete_tools,
    "text": _complete_text,
    "reasoning": _complete_reasoning,
}


def _says(fields: Fields, kind: str) -> bool:
    return bytes(fields.get("type", _NULL)) == b'"%b"' % kind.encode()
