"""OpenAI's Responses at Google's and Amazon's dialects, through a real worker with the real client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from gateway_stage import Stage, _stages, fallback, upstream

from forebay.core.events import Outcome
from forebay.core.routes import Endpoint
from forebay.testing import bedrock, gemini
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import ToolCall

__all__ = ["_stages", "fallback", "upstream"]

BASES = {"gemini": "/v1beta", "vertex": gemini.VERTEX_BASE, "bedrock": ""}
CALL = ToolCall(id="c1", name="look", arguments='{"at":"sea"}')
TOOLS: Any = [
    {
        "type": "function",
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        "strict": False,
    }
]
clouds = pytest.mark.parametrize("dialect", sorted(BASES))
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def worker(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    routes = []
    for dialect, base in BASES.items():
        is_google = dialect != "bedrock"
        made = make_route(
            dialect,
            _stages[0].url.removesuffix("/v1") + base,
            target_model="gemini-3-pro" if is_google else "eu.anthropic.claude-sonnet",
            api_key="env:GOOGLE_KEY" if is_google else "env:BEDROCK_SIGNING",
            dialect=dialect,
            endpoints=(Endpoint.CHAT, Endpoint.RESPONSES),
        )
        targets = tuple(msgspec.structs.replace(each, region=bedrock.REGION) for each in made.targets)
        routes.append(msgspec.structs.replace(made, targets=targets))
    environment = {"GOOGLE_KEY": gemini.API_KEY, "BEDROCK_SIGNING": bedrock.write_secret()}
    folder: Path = tmp_path_factory.mktemp("clouds")
    with GatewayProcess(routes, folder=folder, environment=environment) as process:
        yield process
    assert "Traceback" not in process.log


@pytest.fixture
def client(worker: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=worker.url, api_key=worker.key, max_retries=0, timeout=30) as made:
        yield made


def speak(dialect: str) -> Any:
    """A model that thinks, says something and calls a function."""
    if dialect == "bedrock":
        return bedrock.well_behaved(
            bedrock.thinking("Hm.", "c2ln"), bedrock.text("I look."), bedrock.tool_use(CALL)
        )
    return gemini.well_behaved(
        gemini.thought("Hm."), gemini.text("I look."), gemini.function_call(CALL, "c2lnbmF0dXJl")
    )


@both
@clouds
def test_a_turn_and_the_next(
    worker: GatewayProcess, client: openai.OpenAI, upstream: Stage, dialect: str, stream: bool
) -> None:
    upstream.answer = speak(dialect)
    question: Any = {"role": "user", "content": "Look."}
    asked: dict[str, Any] = {"model": dialect, "input": [question], "tools": TOOLS}
    if stream:
        with client.responses.stream(**asked) as events:
            answer: Any = events.get_final_response()
            request_id = events._response.headers["x-request-id"]
    else:
        raw = client.responses.with_raw_response.create(**asked)
        answer, request_id = raw.parse(), raw.headers["x-request-id"]
    kinds = [item.type for item in answer.output]
    # Google signs the call, and in a stream that comes behind the text.
    signed_late = ["reasoning"] if stream and dialect != "bedrock" else []
    assert kinds == ["reasoning", "message", *signed_late, "function_call"]
    assert answer.output[0].content[0].text == "Hm."
    assert answer.output_text == "I look."
    assert (answer.output[-1].call_id, answer.output[-1].name) == ("c1", "look")
    assert answer.usage.input_tokens > 0
    record = worker.wait_record(request_id)
    assert (record.outcome, record.endpoint, record.stream) == (Outcome.OK, "responses", stream)
    assert record.tokens.input_total == answer.usage.input_tokens
    assert record.tokens.output_total == answer.usage.output_tokens
    items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
    for part in items[1]["content"]:
        part.pop("parsed", None)
    result = {"type": "function_call_output", "call_id": "c1", "output": "waves"}
    client.responses.create(model=dialect, input=[question, *items, result], tools=TOOLS)
    sent = upstream.requests[-1].body
    assert b"waves" in sent
    assert (b"c2lnbmF0dXJl" if dialect != "bedrock" else b"c2ln") in sent, "what was signed comes back"
