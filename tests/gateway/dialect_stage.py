"""A worker between callers of two dialects and targets of two: the real clients, and what each target saw."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from gateway_stage import UPSTREAM_SECRET, Stage

from forebay.core.routes import Endpoint, GatewayLimits, Route, Target, Timeouts
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import ToolCall
from forebay.testing.steps import Gate
from forebay.testing.threaded import find_closed_port

ENDPOINTS = (Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS)
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60)).decode()
CALLERS = ("openai", "anthropic")
TARGETS = ("openai", "anthropic")
PATHS = {"openai": "/chat/completions", "anthropic": "/messages"}
#: What there is to messages at their own besides is in `test_messages_untouched`.
PAIRS = [(caller, target) for caller in CALLERS for target in TARGETS]
TRANSLATED = [("openai", "anthropic"), ("anthropic", "openai")]
#: Two calls at once, the second without arguments.
CALLS = [
    ToolCall(id="call_1", name="look", arguments='{"at":"sea","depth":3}'),
    ToolCall(id="call_2", name="now", arguments="{}"),
]
BRIEF = Timeouts(connect_s=0.5, first_token_s=0.5, idle_s=0.5, total_s=20)


def make_routes(openai_url: str, anthropic_url: str) -> list[Route]:
    """Models named for their targets' dialect, and `mixed`, whose first target speaks Anthropic's."""
    routes: list[Route] = []
    for dialect, url in (("openai", openai_url), ("anthropic", anthropic_url)):
        settings: dict[str, Any] = {"endpoints": ENDPOINTS, "dialect": dialect}
        routes += [
            make_route(dialect, url, target_model="there", api_key="env:TEST_UPSTREAM_SECRET", **settings),
            make_route(f"{dialect}-brief", url, timeouts=BRIEF, **settings),
            make_route(f"{dialect}-dead", f"http://127.0.0.1:{find_closed_port(keep=True)}/v1", **settings),
        ]
    mixed = tuple(
        Target(id=f"mixed-{dialect}", pool=dialect, url=url, model="there", dialect=dialect)
        for dialect, url in (("anthropic", anthropic_url), ("openai", openai_url))
    )
    return [*routes, Route(model="mixed", endpoints=ENDPOINTS, targets=mixed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a caller got, whatever it speaks."""

    text: str
    calls: tuple[tuple[str, str, Any], ...]  #: id, name, arguments
    stop: str  #: Anthropic's word for it
    input: int
    output: int
    request_id: str


STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Callers:
    """Both clients at one worker."""

    def __init__(self, worker: GatewayProcess) -> None:
        self.worker = worker
        self.gpt = openai.OpenAI(base_url=worker.url, api_key=worker.key, max_retries=0)
        self.claude = anthropic.Anthropic(base_url=worker.origin, api_key=worker.key, max_retries=0)
        headers = {"authorization": f"Bearer {worker.key}"}
        self.http = httpx.Client(base_url=worker.url, headers=headers, timeout=60)

    def close(self) -> None:
        self.gpt.close()
        self.claude.close()
        self.http.close()

    def ask(self, caller: str, model: str, *, stream: bool, **more: Any) -> Said:
        """One question in either dialect, put together by its own client."""
        return (self._chat if caller == "openai" else self._message)(model, stream=stream, **more)

    def post(self, caller: str, model: str, *, stream: bool = False, **more: Any) -> httpx.Response:
        """The same without a client."""
        return self.http.post(PATHS[caller], json=build_body(caller, model, stream=stream, **more))

    def read(self, caller: str, model: str, begun: Gate, **more: Any) -> httpx.Response:
        """A stream, without a client; opens the gate once its first bytes are here."""
        path, body = PATHS[caller], build_body(caller, model, stream=True, **more)
        with self.http.stream("POST", path, json=body) as answer:
            return read_through(answer, begun)

    def _chat(self, model: str, *, stream: bool, **more: Any) -> Said:
        asked: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hello"}]} | more
        if not stream:
            raw = self.gpt.chat.completions.with_raw_response.create(**asked)
            answer, request_id = raw.parse(), raw.headers["x-request-id"]
        else:
            with self.gpt.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                for _ in events:
                    pass
                answer = events.get_final_completion()
                request_id = events._response.headers["x-request-id"]
        choice = answer.choices[0]
        calls = tuple(
            (call.id, call.function.name, msgspec.json.decode(call.function.arguments or "{}"))
            for call in choice.message.tool_calls or ()
        )
        assert answer.usage is not None
        return Said(
            text=choice.message.content or "",
            calls=calls,
            stop=STOPS.get(choice.finish_reason, choice.finish_reason),
            input=answer.usage.prompt_tokens,
            output=answer.usage.completion_tokens,
            request_id=request_id,
        )

    def _message(self, model: str, *, stream: bool, **more: Any) -> Said:
        messages = [{"role": "user", "content": "Hello"}]
        asked: dict[str, Any] = {"model": model, "max_tokens": 100, "messages": messages} | more
        if not stream:
            raw = self.claude.messages.with_raw_response.create(**asked)
            answer, request_id = raw.parse(), raw.headers["request-id"]
        else:
            with self.claude.messages.stream(**asked) as events:
                answer = events.get_final_message()
                request_id = events.response.headers["request-id"]
        assert answer.stop_reason is not None
        return Said(
            text="".join(block.text for block in answer.content if block.type == "text"),
            calls=tuple(
                (block.id, block.name, block.input) for block in answer.content if block.type == "tool_use"
            ),
            stop=answer.stop_reason,
            input=answer.usage.input_tokens
            + (answer.usage.cache_read_input_tokens or 0)
            + (answer.usage.cache_creation_input_tokens or 0),
            output=answer.usage.output_tokens,
            request_id=request_id,
        )


def read_through(answer: httpx.Response, begun: Gate) -> httpx.Response:
    """The answer with its content, of which the first bytes open the gate."""
    content = b""
    for data in answer.iter_raw():
        content += data
        begun.open()
    return httpx.Response(answer.status_code, headers=answer.headers, content=content)


def build_body(caller: str, model: str, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    if caller == "anthropic":
        body["max_tokens"] = 100
    return body | ({"stream": True} if stream else {}) | more


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("dialects")
    with GatewayProcess(
        make_routes(_stages[0].url, _stages[1].url),
        folder=folder,
        limits=GatewayLimits(event_max_bytes=1 << 20),
        environment={"TEST_UPSTREAM_SECRET": UPSTREAM_SECRET},
    ) as process:
        yield process


@pytest.fixture
def callers(worker: GatewayProcess) -> Iterator[Callers]:
    """Both clients.  The worker must survive each test, and must have met no error of its own."""
    before = len(worker.log)
    made = Callers(worker)
    yield made
    made.close()
    log = worker.log[before:]
    assert worker.process.poll() is None, log
    assert "Traceback" not in log, log


@pytest.fixture
def stages(upstream: Stage, fallback: Stage) -> dict[str, Stage]:
    """The targets, by what they speak."""
    return {"openai": upstream, "anthropic": fallback}
