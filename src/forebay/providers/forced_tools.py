"""A forced call of a tool at a server of OpenAI's chat whose engine does not enforce one.  Pure.

The answer is made to follow a JSON schema of the tools that may be called (`forced_schema`), which such
engines do enforce, and is turned back into calls (`forced_answer`).  Tools stay in the request, so that the
model reads of them; `tool_choice` becomes `none`, so that no engine looks for calls of its own form.  This is
for requests that force a call alone: all others pass such a target untouched.
"""

from typing import Any, Final

import msgspec

from forebay.core.errors import MissingField
from forebay.providers.chat_tools import FunctionTool, read_choice, read_parallel, read_tools
from forebay.providers.forced_answer import ForcedStream, decode_answer
from forebay.providers.forced_schema import build_schema
from forebay.providers.json_edit import UNREADABLE
from forebay.providers.openai_wire import OpenAIWire
from forebay.providers.strict_fields import Fields, read, read_body, refuse
from forebay.providers.translation import EVENT_MAX_BYTES, Headers, StreamTranslator

TARGET: Final = "an engine that is made to call by a JSON schema"
_CHAT: Final = "chat/completions"
_BAD_REQUEST: Final = 400
#: By which llama.cpp says that it can't enforce a schema.
_OF_SCHEMAS: Final = ("grammar", "JSON schema")

_decode_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_decode_error = msgspec.json.Decoder(dict[str, Any]).decode


class ForcedTools:
    """`forebay.core.translation` says what each part is for: `TargetTranslator`, `NamingTranslator`.

    Args:
        answer_id: of the answer that is translated.
        refuses: whether such requests are refused instead.
    """

    def __init__(self, *, answer_id: str = "", refuses: bool = False) -> None:
        self._answer_id = answer_id
        self._refuses = refuses
        self._wire = OpenAIWire()

    def name_answer(self, answer_id: str) -> "ForcedTools":
        return ForcedTools(answer_id=answer_id, refuses=self._refuses)

    def encode_request(self, body: bytes, model: str, *, stream: bool) -> bytes:
        if self._refuses:
            raise refuse(
                "tool_choice",
                "the engine of this model can't be made to call a tool; say auto, or leave it out",
            )
        fields = read_body(body)
        tools = _choose_tools(fields)
        schema = build_schema(tools, is_parallel=read_parallel(fields) is True)
        wanted = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema, "strict": True}}
        request: dict[str, Any] = dict(fields)
        request.pop("parallel_tool_calls", None)
        request |= {"model": model, "tool_choice": "none", "response_format": wanted}
        if stream:
            options = read(_decode_options, fields.get("stream_options", b"null"), "stream_options") or {}
            request["stream_options"] = {**options, "include_usage": True}
        return msgspec.json.encode(request)

    def decode_answer(self, body: bytes, model: str) -> bytes:
        return decode_answer(body, self._answer_id)

    def decode_error(self, status: int, body: bytes) -> bytes:
        """The target's own, and where it could not take the schema, with what that schema was."""
        if status != _BAD_REQUEST:
            return body
        try:
            error = _decode_error(body)["error"]
            told = error["message"]
        except (*UNREADABLE, KeyError, TypeError):
            return body
        if not isinstance(told, str) or not any(word in told for word in _OF_SCHEMAS):
            return body
        message = f"`tools`: the engine of this model can't enforce the schema of a forced tool: {told}"
        return msgspec.json.encode({"error": error | {"message": message, "param": "tools"}})

    def new_stream(self, model: str, *, event_max_bytes: int = EVENT_MAX_BYTES) -> StreamTranslator:
        return ForcedStream(event_max_bytes=event_max_bytes, answer_id=self._answer_id)

    def build_path(self, base_path: str, model: str, *, stream: bool) -> str:
        path = self._wire.build_path(base_path, _CHAT, model)
        assert path is not None
        return path

    def build_headers(self, secret: str) -> Headers:
        return self._wire.build_headers(secret)


def _choose_tools(fields: Fields) -> list[FunctionTool]:
    """Those that may be called.  Raises InvalidValue, MissingField where there is none."""
    tools = read_tools(fields, TARGET)
    if not tools:
        raise MissingField("`tool_choice` forces a call, and the request has no `tools`", param="tools")
    choice = read_choice(fields, TARGET)
    names = choice.names if choice.name is None else frozenset({choice.name})
    if names is None:
        return tools
    known = {tool.function.name for tool in tools}
    for name in sorted(names - known):
        raise refuse("tool_choice", f"there is no tool {name!r} in `tools`")
    return [tool for tool in tools if tool.function.name in names]
