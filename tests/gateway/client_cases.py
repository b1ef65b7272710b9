"""What the official clients are made to ask, what they must make of the answers, and the drivers for both.

`drive_python` drives the Python clients, `ask_node` those for Node, all jobs of it in one process
(tests/node/drive.mjs).  Both say the same of an answer: `text`, `thinking`, `calls` (id, name, arguments),
`finish` (`stop`, `tool_calls`), `input`, `output` and `cached` tokens, `then` (the text of the next turn, in
which the client's own objects go back with the results of the tools); and of an error its class, `status`,
`type`, `code` and `message`.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai

from forebay.testing.obliging import RESULT_SEEN, SIGHT, TEXT, THOUGHT, VALUE

NODE = Path(__file__).resolve().parents[1] / "node"
NODE_MAX_S = 120
RESULT = "21 degrees"
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60)).decode()
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
PLACE = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
NAMES = ("get_weather", "get_time")
CALLS = [[f"call_{at}", name, {"location": "San Francisco"}] for at, name in enumerate(NAMES, 1)]
FINISH = {"end_turn": "stop", "tool_use": "tool_calls", "completed": "stop"}
Said = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question by one API.

    Attributes:
        expected: what is said beside the usage.
        then: whether a turn with the results of tools follows.
    """

    name: str
    api: str
    body: dict[str, Any]
    expected: Said
    then: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A case at a model."""

    id: str
    api: str
    model: str
    body: dict[str, Any]
    stream: bool = False
    then: bool = False
    key: str | None = field(default=None)


def _say(text: str = "", **more: Any) -> Said:
    return {"text": text, "thinking": "", "calls": [], "finish": "stop"} | more


_TOOLS = _say(calls=CALLS, finish="tool_calls", then=RESULT_SEEN)
_KEPT = _say(json.dumps({"city": VALUE}, ensure_ascii=False, separators=(",", ":")))
_URL = f"data:image/png;base64,{PIXEL}"


def _chat(name: str, expected: Said, *parts: Any, then: bool = False, **more: Any) -> Case:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": list(parts) or "Hello"},
    ]
    return Case(name=name, api="chat", body={"messages": messages} | more, expected=expected, then=then)


def _message(name: str, expected: Said, *parts: Any, then: bool = False, **more: Any) -> Case:
    body: dict[str, Any] = {"max_tokens": 4096, "system": "Be brief."}
    body["messages"] = [{"role": "user", "content": list(parts) or "Hello"}]
    return Case(name=name, api="messages", body=body | more, expected=expected, then=then)


def _response(name: str, expected: Said, *parts: Any, then: bool = False, **more: Any) -> Case:
    body: dict[str, Any] = {"instructions": "Be brief.", "store": False}
    body["input"] = [{"role": "user", "content": list(parts) or "Hello"}]
    return Case(name=name, api="responses", body=body | more, expected=expected, then=then)


CASES = [
    _chat("text", _say(TEXT)),
    _chat("thinking", _say(TEXT, thinking=THOUGHT), reasoning_effort="low"),
    _chat(
        "tools",
        _TOOLS,
        then=True,
        tools=[{"type": "function", "function": {"name": name, "parameters": PLACE}} for name in NAMES],
    ),
    _chat(
        "schema",
        _KEPT,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
        },
    ),
    _chat(
        "picture",
        _say(SIGHT),
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": _URL}},
    ),
    _message("text", _say(TEXT)),
    _message(
        "thinking", _say(TEXT, thinking=THOUGHT), thinking={"type": "enabled", "budget_tokens": 2048}
    ),
    _message(
        "tools",
        _TOOLS,
        then=True,
        tools=[{"name": name, "description": "d", "input_schema": PLACE} for name in NAMES],
    ),
    _message("schema", _KEPT, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
    _message(
        "picture",
        _say(SIGHT),
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
    ),
    _response("text", _say(TEXT)),
    _response("thinking", _say(TEXT, thinking=THOUGHT), reasoning={"effort": "low", "summary": "auto"}),
    _response(
        "tools",
        _TOOLS,
        then=True,
        tools=[{"type": "function", "name": name, "parameters": PLACE, "strict": False} for name in NAMES],
    ),
    _response(
        "schema",
        _KEPT,
        text={"format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}},
    ),
    _response(
        "picture",
        _say(SIGHT),
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": _URL, "detail": "auto"},
    ),
]  # fmt: skip
PLAIN = {case.api: case.body for case in CASES if case.name == "text"}


# --- Node ---------------------------------------------------------------------------------------------------


def explain_no_node() -> str | None:
    """Why the Node clients can't be driven here; None if they can."""
    if shutil.which("node") is None:
        return "there is no node on this machine"
    if not (NODE / "node_modules").is_dir():
        return "the Node clients are not installed: make setup"
    return None


def ask_node(origin: str, key: str, jobs: list[Job]) -> dict[str, Said]:
    """What was said to each job, by its id."""
    told = {
        "origin": origin,
        "key": key,
        "jobs": [{name: getattr(job, name) for name in Job.__slots__} for job in jobs],
    }
    done = subprocess.run(
        ["node", "drive.mjs"], cwd=NODE, input=json.dumps(told), capture_output=True, text=True,
        timeout=NODE_MAX_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Said] = json.loads(done.stdout)
    return said


# --- Python -------------------------------------------------------------------------------------------------


@contextmanager
def drive_python(origin: str, key: str) -> Iterator[Callable[[Job], Said]]:
    """Clients, and what asks them: what was said to a job."""
    settings: dict[str, Any] = {"api_key": key, "max_retries": 0, "timeout": 30}
    with (
        openai.OpenAI(base_url=origin + "/v1", **settings) as gpt,
        anthropic.Anthropic(base_url=origin, **settings) as claude,
    ):
        yield lambda job: _ask(gpt, claude, job)


def _ask(gpt: openai.OpenAI, claude: anthropic.Anthropic, job: Job) -> Said:
    if job.key is not None:
        gpt, claude = gpt.with_options(api_key=job.key), claude.with_options(api_key=job.key)
    ask = {"chat": _ask_chat, "messages": _ask_message, "responses": _ask_response}.get(job.api, _ask_rest)
    try:
        said, following = ask(gpt, claude, job, job.body | {"model": job.model})
        if job.then:
            said["then"] = ask(gpt, claude, job, following)[0]["text"]
        return said
    except openai.APIError as error:
        return _describe(error, error.type, error.code)
    except anthropic.APIError as error:
        told = error.body.get("error") if isinstance(error.body, dict) else None
        return _describe(error, (told or {}).get("type"), None)


def _describe(error: Any, kind: str | None, code: str | None) -> Said:
    status = getattr(error, "status_code", None)
    return {
        "error": type(error).__name__,
        "status": status,
        "type": kind,
        "code": code,
        "message": str(error),
    }


Answered = tuple[Said, dict[str, Any]]


def _ask_chat(gpt: openai.OpenAI, claude: anthropic.Anthropic, job: Job, body: dict[str, Any]) -> Answered:
    if job.stream:
        with gpt.chat.completions.stream(**body, stream_options={"include_usage": True}) as events:
            answer: Any = events.get_final_completion()
    else:
        answer = gpt.chat.completions.create(**body)
    message = answer.choices[0].message
    calls = message.tool_calls or []
    details = answer.usage.prompt_tokens_details
    said = {
        "text": message.content or "",
        "thinking": getattr(message, "reasoning_content", None) or "",
        "calls": [[each.id, each.function.name, json.loads(each.function.arguments)] for each in calls],
        "finish": answer.choices[0].finish_reason,
        "input": answer.usage.prompt_tokens,
        "output": answer.usage.completion_tokens,
        "cached": details.cached_tokens if details else None,
    }
    results = [{"role": "tool", "tool_call_id": each.id, "content": RESULT} for each in calls]
    return said, body | {"messages": [*body["messages"], message, *results]}


def _ask_message(gpt: openai.OpenAI, claude: anthropic.Anthropic, job: Job, body: dict[str, Any]) -> Answered:
    if job.stream:
        with claude.messages.stream(**body) as events:
            answer: Any = events.get_final_message()
    else:
        answer = claude.messages.create(**body)
    calls = [block for block in answer.content if block.type == "tool_use"]
    said = {
        "text": "".join(block.text for block in answer.content if block.type == "text"),
        "thinking": "".join(block.thinking for block in answer.content if block.type == "thinking"),
        "calls": [[block.id, block.name, block.input] for block in calls],
        "finish": FINISH.get(answer.stop_reason, answer.stop_reason),
        "input": answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0),
        "output": answer.usage.output_tokens,
        "cached": answer.usage.cache_read_input_tokens,
    }
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": RESULT} for block in calls]
    turn = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    return said, body | {"messages": [*body["messages"], *turn]}


def _ask_response(
    gpt: openai.OpenAI, claude: anthropic.Anthropic, job: Job, body: dict[str, Any]
) -> Answered:
    if job.stream:
        with gpt.responses.stream(**body) as events:
            answer: Any = events.get_final_response()
    else:
        answer = gpt.responses.create(**body)
    calls = [item for item in answer.output if item.type == "function_call"]
    thoughts = [
        part.text
        for item in answer.output
        if item.type == "reasoning"
        for part in [*(item.content or []), *(item.summary or [])]
    ]
    said = {
        "text": answer.output_text,
        "thinking": "".join(thoughts),
        "calls": [[item.call_id, item.name, json.loads(item.arguments)] for item in calls],
        "finish": "tool_calls" if calls else FINISH.get(answer.status, answer.status),
        "input": answer.usage.input_tokens,
        "output": answer.usage.output_tokens,
        "cached": answer.usage.input_tokens_details.cached_tokens,
    }
    results = [{"type": "function_call_output", "call_id": each.call_id, "output": RESULT} for each in calls]
    return said, body | {"input": [*body["input"], *answer.output, *results]}


def _ask_rest(gpt: openai.OpenAI, claude: anthropic.Anthropic, job: Job, body: dict[str, Any]) -> Answered:
    if job.api == "count_tokens":
        return {"input": claude.messages.count_tokens(**body).input_tokens}, {}
    answer = gpt.embeddings.create(**body)
    vectors = [len(each.embedding) for each in answer.data]
    return {"vectors": vectors, "input": answer.usage.prompt_tokens}, {}
