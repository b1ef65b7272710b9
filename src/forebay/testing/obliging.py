"""Fakes of every dialect that do what a request asks: call the tools it offers, think, keep to its schema.

`answer_as_asked` is a handler for all of them at once; it tells a dialect by the request's path.  It is for
clients and conformance suites, which send many kinds of requests and want fitting answers; what a test wants
to script itself, it scripts.  Pure, as the payloads that it is made of.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from forebay.testing import anthropic, bedrock, gemini, openai, responses
from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import ToolCall
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Sleep, Step

Payload = dict[str, Any]
TEXT: Final = "Grüße, 😀"
SIGHT: Final = "I see a picture."
RESULT_SEEN: Final = "It is 21 degrees."
THOUGHT: Final = "Let me see."
SIGNATURE: Final = "c2lnbmF0dXJl"  #: of what was thought
#: What is said to a schema: each of its properties as a text.
VALUE: Final = "Zürich"
ARGUMENTS: Final = '{"location":"San Francisco"}'
#: Names of models that fail, whatever they are asked, and the status with which they do.
FAILING: Final = {"limited": 429, "refusing": 400, "broken": 500}
#: What Anthropic says of what a request did not use.
UNTOLD: Final[Payload] = dict.fromkeys(
    [
        *("cache_creation", "cache_creation_input_tokens", "inference_geo", "output_tokens_details"),
        *("server_tool_use", "service_tier"),
    ]
)
#: The name of a model whose streams end with an error, after the first words of the answer.
BREAKING: Final = "breaking"
BREAKS_AFTER_S: Final = 0.05
WORDS: Final = "The fake refuses, as it was told."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request asks for, in whatever dialect."""

    tools: tuple[str, ...] = ()
    thinks: bool = False
    schema: Mapping[str, Any] | None = None
    has_picture: bool = False
    has_results: bool = False

    @property
    def calls(self) -> list[ToolCall]:
        """One for each tool, unless the results are there already."""
        if self.has_results:
            return []
        return [
            ToolCall(id=f"call_{at}", name=name, arguments=ARGUMENTS) for at, name in enumerate(self.tools, 1)
        ]

    @property
    def text(self) -> str | None:
        """None where nothing is said beside calls of tools."""
        if self.calls:
            return None
        if self.has_results:
            return RESULT_SEEN
        if self.schema is not None:
            fields = dict.fromkeys(self.schema.get("properties", {}), VALUE)
            return msgspec.json.encode(fields).decode()
        return SIGHT if self.has_picture else TEXT


def answer_as_asked(request: RecordedRequest) -> Script:
    """The handler; see the module."""
    if request.method == "GET":
        return json_answer(openai.models("m"))
    asked: Payload = request.json()
    path = request.path
    if BREAKING in f"{asked.get('model')} {path}":
        return _break(path)
    if path.endswith(("/converse", "/converse-stream")):
        return _fail_as(path, _fail_bedrock) or _answer_bedrock(request, asked)
    if "/models/" in path:
        return _fail_as(path, _fail_gemini) or _answer_gemini(request, asked)
    name = f"{asked.get('model')} {path}"
    if path.endswith(("/messages", "/messages/count_tokens")):
        return _fail_as(name, _fail_anthropic) or _answer_anthropic(request, asked)
    if failed := _fail_as(name, _fail_openai):
        return failed
    if path.endswith("/responses"):
        return _answer_responses(request, asked)
    if path.endswith("/chat/completions"):
        return _answer_chat(asked)
    return openai.well_behaved(TEXT)(request)


# --- what is asked ------------------------------------------------------------------------------------------


def read_chat(asked: Payload) -> Wish:
    return Wish(
        tools=tuple(tool["function"]["name"] for tool in asked.get("tools") or ()),
        thinks=asked.get("reasoning_effort") not in (None, "none"),
        schema=((asked.get("response_format") or {}).get("json_schema") or {}).get("schema"),
        has_picture=_has_part(asked["messages"], "image_url"),
        has_results=any(message["role"] == "tool" for message in asked["messages"]),
    )


def read_response(asked: Payload) -> Wish:
    items = asked["input"] if isinstance(asked["input"], list) else []
    return Wish(
        tools=tuple(tool["name"] for tool in asked.get("tools") or ()),
        thinks=bool((asked.get("reasoning") or {}).get("effort")),
        schema=((asked.get("text") or {}).get("format") or {}).get("schema"),
        has_picture=_has_part(items, "input_image"),
        has_results=any(item.get("type") == "function_call_output" for item in items),
    )


def read_message(asked: Payload) -> Wish:
    return Wish(
        tools=tuple(tool["name"] for tool in asked.get("tools") or ()),
        thinks=(asked.get("thinking") or {}).get("type") not in (None, "disabled"),
        schema=((asked.get("output_config") or {}).get("format") or {}).get("schema"),
        has_picture=_has_part(asked["messages"], "image"),
        has_results=_has_part(asked["messages"], "tool_result"),
    )


def read_converse(asked: Payload) -> Wish:
    parts = [part for message in asked["messages"] for part in message["content"]]
    form = (asked.get("outputConfig") or {}).get("textFormat")
    more = asked.get("additionalModelRequestFields") or {}
    offered = (asked.get("toolConfig") or {}).get("tools") or ()
    return Wish(
        tools=tuple(tool["toolSpec"]["name"] for tool in offered if "toolSpec" in tool),
        thinks=(more.get("thinking") or {}).get("type") not in (None, "disabled"),
        schema=msgspec.json.decode(form["structure"]["jsonSchema"]["schema"]) if form else None,
        has_picture=any("image" in part for part in parts),
        has_results=any("toolResult" in part for part in parts),
    )


def read_generate(asked: Payload) -> Wish:
    parts = [part for content in asked["contents"] for part in content["parts"]]
    config = asked.get("generationConfig") or {}
    declared = [each for tool in asked.get("tools") or () for each in tool.get("functionDeclarations", ())]
    return Wish(
        tools=tuple(each["name"] for each in declared),
        thinks=bool((config.get("thinkingConfig") or {}).get("includeThoughts")),
        schema=config.get("responseJsonSchema"),
        has_picture=any("inlineData" in part for part in parts),
        has_results=any("functionResponse" in part for part in parts),
    )


def _has_part(messages: list[Payload], kind: str) -> bool:
    return any(
        part.get("type") == kind
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


# --- what is said -------------------------------------------------------------------------------------------


def _answer_chat(asked: Payload) -> Script:
    wish = read_chat(asked)
    thought = {"reasoning_content": THOUGHT} if wish.thinks else {}
    tokens = openai.usage(9, 5, cached=4, reasoning=2 if wish.thinks else None)
    calls, model = wish.calls, str(asked.get("model"))
    if not asked.get("stream"):
        made = openai.chat_completion(wish.text, model=model, tool_calls=calls, tokens=tokens)
        made["choices"][0]["message"] |= {"refusal": None, "annotations": []} | thought
        return json_answer(made)
    with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
    if calls:
        events = openai.tool_call_stream(calls, model=model, tokens=tokens, include_usage=with_usage)
    else:
        pieces = [(wish.text or "")[at : at + 4] for at in range(0, len(wish.text or ""), 4)]
        events = openai.chat_stream(pieces, model=model, tokens=tokens, include_usage=with_usage)
    if thought:
        events.insert(1, openai.event(openai.chat_chunk(thought, model=model)))
    return sse_answer(events)


def _answer_responses(request: RecordedRequest, asked: Payload) -> Script:
    wish = read_response(asked)
    items: list[Payload | str] = [responses.reasoning(THOUGHT)] if wish.thinks else []
    items += [] if wish.text is None else [wish.text]
    items += map(responses.function_call, wish.calls)
    tokens = responses.usage(9, 5, cached=4, reasoning=2 if wish.thinks else 0)
    made = responses.response(*items, model=str(asked.get("model")), tokens=tokens)
    repeated = ("instructions", "max_output_tokens", "reasoning", "text", "tool_choice", "tools")
    made |= {name: asked[name] for name in repeated if asked.get(name) is not None}
    made["reasoning"] = {"effort": None, "summary": None} | made["reasoning"]
    blank = {"description": None, "parameters": None, "strict": True}
    made["tools"] = [blank | tool for tool in made["tools"]]
    return sse_answer(responses.response_events(made)) if asked.get("stream") else json_answer(made)


def _answer_anthropic(request: RecordedRequest, asked: Payload) -> Script:
    if "max_tokens" not in asked and not request.path.endswith("count_tokens"):
        return anthropic.error_answer(400, "invalid_request_error", "max_tokens: Field required")
    wish = read_message(asked)
    blocks = [anthropic.thinking(THOUGHT, SIGNATURE)] if wish.thinks else []
    blocks += [] if wish.text is None else [anthropic.text(wish.text)]
    blocks += map(anthropic.tool_use, wish.calls)
    thought = {"output_tokens_details": {"thinking_tokens": 2}} if wish.thinks else {}
    tokens = UNTOLD | anthropic.usage(5, 5, cache_read=4) | thought
    return anthropic.well_behaved(*blocks, tokens=tokens)(request)


def _answer_bedrock(request: RecordedRequest, asked: Payload) -> Script:
    wish = read_converse(asked)
    blocks = [bedrock.thinking(THOUGHT, SIGNATURE)] if wish.thinks else []
    blocks += [] if wish.text is None else [bedrock.text(wish.text)]
    blocks += map(bedrock.tool_use, wish.calls)
    return bedrock.well_behaved(*blocks, tokens=bedrock.usage(5, 5, cache_read=4))(request)


def _answer_gemini(request: RecordedRequest, asked: Payload) -> Script:
    if "contents" not in asked:
        return gemini.well_behaved()(request)
    wish = read_generate(asked)
    with_id = "projects/" not in request.path  # Vertex AI knows no ids of calls
    parts = [gemini.thought(THOUGHT)] if wish.thinks else []
    parts += [] if wish.text is None else [gemini.text(wish.text)]
    parts += [
        gemini.function_call(call, None if at else SIGNATURE, with_id=with_id)
        for at, call in enumerate(wish.calls)
    ]
    thoughts = 2 if wish.thinks else 0
    return gemini.well_behaved(*parts, tokens=gemini.usage(9, 5 - thoughts, cached=4, thoughts=thoughts))(
        request
    )


def _break(path: str) -> Script:
    """A stream that goes well for a while, and then tells an error in its dialect."""
    answer: Callable[[list[bytes]], list[Step]] = sse_answer
    if path.endswith("/converse-stream"):
        answer = bedrock.stream_answer
        good = bedrock.converse_events(bedrock.converse(TEXT))[:3]
        bad = bedrock.exception("internalServerException", WORDS)
    elif "/models/" in path:
        good = gemini.events(gemini.response(gemini.text(TEXT)))[:1]
        bad = gemini.event(gemini.error(500, "INTERNAL", WORDS))
    elif path.endswith("/messages"):
        good = anthropic.message_events(anthropic.message(anthropic.text(TEXT)))[:4]
        bad = anthropic.event(anthropic.error("api_error", WORDS))
    elif path.endswith("/responses"):
        good = responses.response_events(responses.response(TEXT))[:5]
        told = {"type": "error", "code": "server_error", "message": WORDS, "param": None}
        bad = responses.event(told | {"sequence_number": 5, "error": told})  # where OpenAI's clients look
    else:
        good = openai.chat_stream([TEXT])[:2]
        bad = openai.event(openai.error(WORDS))
    head, words, *rest = answer([b"".join(good), bad])
    return [head, words, Sleep(BREAKS_AFTER_S), *rest]  # so that the words are on their way already


# --- failing as asked ---------------------------------------------------------------------------------------


def _fail_as(name: str, fail: Callable[[int], Script]) -> Script | None:
    return next((fail(status) for wanted, status in FAILING.items() if wanted in name), None)


def _fail_openai(status: int) -> Script:
    kinds = {429: "rate_limit_exceeded", 400: "invalid_value"}
    fields = {"type": "invalid_request_error" if status < 500 else "server_error"}
    if status in kinds:
        fields["code"] = kinds[status]
    return openai.error_answer(status, WORDS, **fields)


def _fail_anthropic(status: int) -> Script:
    kinds = {429: "rate_limit_error", 400: "invalid_request_error"}
    return anthropic.error_answer(status, kinds.get(status, "api_error"), WORDS)


def _fail_bedrock(status: int) -> Script:
    kinds = {429: "ThrottlingException", 400: "ValidationException"}
    return bedrock.error_answer(status, kinds.get(status, "InternalServerException"), WORDS)


def _fail_gemini(status: int) -> Script:
    kinds = {429: "RESOURCE_EXHAUSTED", 400: "INVALID_ARGUMENT"}
    return gemini.error_answer(status, kinds.get(status, "INTERNAL"), WORDS)
