"""The main job, end to end: the official client, the gateway, and a real language model."""

import asyncio
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import llm_comply
import openai
import pytest
from llm_comply.cli import _SPEC_FILES, _get_tests
from llm_comply.http import close_client
from whole import Whole, running, wait_until

pytestmark = pytest.mark.e2e
CHAT, EMBEDDER = "smollm2-135m", "minilm-l6-v2"
TOKENS_TO_THE_END = 1500
FRANCE = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """What `make run` starts, on free ports."""
    folder = tmp_path_factory.mktemp("embedded")
    config = "gateway: {port: 0, drain: {deadline_s: 10}}\ncontrol: {port: 0}\n"
    with running(folder, config, "--ask", "What is the capital of France?") as whole:
        wait_until(lambda: "Ctrl-C ends it" in whole.output(), 60, "the question is answered")
        yield whole


@pytest.fixture(scope="module")
def client(whole: Whole) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=whole.url, api_key=whole.key, max_retries=0, timeout=120) as client:
        yield client


def test_the_first_answer_is_printed_with_how_to_call(whole: Whole) -> None:
    output = whole.output()
    assert "Paris" in output
    assert whole.key in output
    assert whole.url in output
    assert "\x1b" not in output, "plain text where there is no terminal"


def test_the_models_are_listed(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {CHAT, EMBEDDER}
    assert client.models.retrieve(CHAT).id == CHAT


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=CHAT, messages=FRANCE, temperature=0, max_tokens=20)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 10
    assert answer.usage.completion_tokens > 3


def test_a_streamed_chat_says_the_same_and_hides_the_usage_that_nobody_asked_for(
    client: openai.OpenAI,
) -> None:
    whole = client.chat.completions.create(model=CHAT, messages=FRANCE, temperature=0, max_tokens=20)
    events = list(
        client.chat.completions.create(model=CHAT, messages=FRANCE, temperature=0, max_tokens=20, stream=True)
    )
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text == whole.choices[0].message.content
    assert len(events) > 4, "token by token"
    assert all(event.usage is None and event.choices for event in events)


def test_a_stream_ends_with_usage_for_those_who_ask(client: openai.OpenAI) -> None:
    *events, last = client.chat.completions.create(
        model=CHAT,
        messages=FRANCE,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8 or events[-1].choices[0].finish_reason == "stop"


def test_a_forced_call_of_a_tool_comes_back_though_the_engine_forces_none(client: openai.OpenAI) -> None:
    schema: Any = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    asked: Any = {"model": CHAT, "messages": FRANCE, "tools": tools, "temperature": 0, "max_tokens": 60}
    answer = client.chat.completions.create(**asked, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments)["unit"] in ("C", "F")
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_completions(client: openai.OpenAI, stream: bool) -> None:
    prompt = "One, two, three, four, five, six, seven,"
    if stream:
        events = list(
            client.completions.create(model=CHAT, prompt=prompt, max_tokens=8, temperature=0, stream=True)
        )
        text = "".join(event.choices[0].text for event in events)
    else:
        answer = client.completions.create(model=CHAT, prompt=prompt, max_tokens=8, temperature=0)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
        text = answer.choices[0].text
    assert "eight" in text


def test_json_by_a_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"enum": [1, 20, 300]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=CHAT,
        messages=[{"role": "user", "content": "Describe a person."}],
        max_tokens=80,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": schema, "strict": True},
        },
    )
    person = json.loads(answer.choices[0].message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings(client: openai.OpenAI, encoding: str) -> None:
    texts = ["A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose again."]
    options = {"encoding_format": "float"} if encoding == "float" else {}  # the client's default is base64
    answer = client.embeddings.create(model=EMBEDDER, input=texts, **options)
    cat, kitten, rates = (item.embedding for item in answer.data)
    assert len(cat) == 384
    assert math.isclose(sum(x * x for x in cat), 1.0, rel_tol=1e-3)
    near, far = (sum(a * b for a, b in zip(cat, other, strict=True)) for other in (kitten, rates))
    assert near > far + 0.2
    assert answer.usage.prompt_tokens > 15


def test_many_at_once_are_batched_and_all_answered(whole: Whole) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        answer = await client.chat.completions.create(
            model=CHAT,
            messages=[{"role": "user", "content": f"Say the number {number}."}],
            max_tokens=6,
            temperature=0,
        )
        return answer.choices[0].message.content or ""

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=whole.url, api_key=whole.key, max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(8)))

    assert all(asyncio.run(ask_all()))


def test_a_caller_that_leaves_stops_the_engine(whole: Whole, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=CHAT,
        messages=[{"role": "user", "content": "Write a very long story about the sea."}],
        max_tokens=TOKENS_TO_THE_END,
        stream=True,
        temperature=0,
        extra_body={"ignore_eos": True},  # so that it does not end before its caller leaves
    )
    for _, _event in zip(range(5), stream, strict=False):
        pass
    stream.close()

    def last_abandoned() -> dict[str, object] | None:
        rows = json.loads(whole.command("usage", "--by", "status", "--json").stdout)["rows"]
        return next((row for row in rows if row["status"] == 499), None)

    wait_until(lambda: last_abandoned() is not None, 60, "the record of the abandoned stream")
    row = last_abandoned()
    assert row is not None
    assert int(str(row["tokens_output"])) < TOKENS_TO_THE_END / 2, "the engine did not go on to the end"


@pytest.mark.parametrize(
    ("ask", "error", "code"),
    [
        ({"model": "nothing-like-it", "messages": FRANCE}, openai.NotFoundError, "model_not_found"),
        ({"model": EMBEDDER, "messages": FRANCE}, openai.BadRequestError, "endpoint_not_supported"),
    ],
)
def test_refusals_are_the_clients_own_errors(
    client: openai.OpenAI, ask: dict[str, object], error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**ask)  # type: ignore[call-overload]
    assert caught.value.code == code


def test_a_wrong_key_is_refused(whole: Whole) -> None:
    with (
        openai.OpenAI(base_url=whole.url, api_key="fb-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_usage_is_on_record(whole: Whole, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=CHAT, messages=FRANCE, max_tokens=3, temperature=0)
    assert answer.usage is not None
    vector = client.embeddings.create(model=EMBEDDER, input="The cat sat.", encoding_format="float")
    models: dict[str, dict[str, Any]] = {}

    def has_both() -> bool:
        rows = json.loads(whole.command("usage", "--by", "key,model", "--json").stdout)["rows"]
        models.update({row["model"]: row for row in rows if row["key_name"] == "local"})
        return {CHAT, EMBEDDER} <= set(models)

    wait_until(has_both, 60, "both are on record")
    assert models[CHAT]["tokens_output"] >= answer.usage.completion_tokens
    assert models[EMBEDDER]["tokens_input"] >= vector.usage.prompt_tokens > 0
    table = whole.command("usage").stdout
    assert re.search(rf"local\s+{CHAT}\s", table)


def test_the_doctor_finds_nothing_wrong(whole: Whole) -> None:
    done = whole.command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for model in (CHAT, EMBEDDER):
        assert f"model of {model}: answers, in " in done.stdout


def test_the_example_of_the_readme_runs(whole: Whole) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    for shown, real in (("http://127.0.0.1:8080/v1", whole.url), ("fb-...", whole.key)):
        assert code.count(f'"{shown}"') == 1
        code = code.replace(shown, real)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


# --- the same model for Anthropic's client ------------------------------------------------------------------


COLD: dict[str, Any] = {"extra_body": {"temperature": 0}}  # of which newer clients know nothing


@pytest.fixture(scope="module")
def claude(whole: Whole) -> Iterator[anthropic.Anthropic]:
    origin = whole.state.gateway_url
    with anthropic.Anthropic(base_url=origin, api_key=whole.key, max_retries=0, timeout=120) as client:
        yield client


def test_a_message_says_what_the_chat_says(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    chat = client.chat.completions.create(model=CHAT, messages=FRANCE, temperature=0, max_tokens=20)
    answer = claude.messages.create(model=CHAT, messages=FRANCE, max_tokens=20, **COLD)
    assert [block.text for block in answer.content] == [chat.choices[0].message.content]
    assert answer.stop_reason == "end_turn"
    assert chat.usage is not None
    seen = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert (seen, answer.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)


def test_a_message_is_streamed_and_recorded(whole: Whole, claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(model=CHAT, messages=FRANCE, max_tokens=20, **COLD) as stream:
        pieces = list(stream.text_stream)
        answer = stream.get_final_message()
    assert len(pieces) > 4, "token by token"
    assert "Paris" in "".join(pieces)
    assert answer.usage.output_tokens > 3
    counted = f'forebay_tokens_total{{endpoint="messages",model="{CHAT}",type="output"}}'
    url = f"{whole.state.gateway_url}/metrics"
    wait_until(lambda: counted in httpx.get(url, timeout=60).text, 60, "the tokens are counted")


def test_where_a_message_stops_and_what_it_can_not_ask(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(
        model=CHAT, messages=FRANCE, max_tokens=20, stop_sequences=["Paris"], **COLD
    )
    assert "Paris" not in "".join(block.text for block in answer.content)
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        claude.messages.create(model="nobody", messages=FRANCE, max_tokens=20)
    with pytest.raises(anthropic.BadRequestError, match="does not serve /v1/messages"):
        claude.messages.create(model=EMBEDDER, messages=FRANCE, max_tokens=20)


def test_tokens_of_a_message_are_counted_about_right(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model=CHAT, messages=FRANCE)
    answer = claude.messages.create(model=CHAT, messages=FRANCE, max_tokens=1)
    truth = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert truth / 3 < counted.input_tokens < truth * 3


# --- conformance --------------------------------------------------------------------------------------------

#: What so small a model can't be asked for: it sees no pictures, thinks of nothing, and calls what it likes.
BEYOND = ("tool-calling", "image-input", "reasoning-summary", "thinking-display")
TRIES = 12  #: what it says is left to chance, and now and then it does not come to an end
#: The engine's own bytes pass untouched in chat, and lack what OpenAI says where there is nothing.
UNSAID = ["'logprobs' is a required property", "'refusal' is a required property"]


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")
@pytest.mark.parametrize("form", ["openai-chat", "anthropic", "open-responses"])
def test_a_conformance_suite_passes_with_a_real_model(whole: Whole, form: str) -> None:
    checks = [each for each in _get_tests(form) if not each.id.endswith(BEYOND)]
    config = llm_comply.ComplianceConfig(whole.url, whole.key, CHAT, timeout=60, ignore_errors=UNSAID)
    spec = llm_comply.SpecLoader(str(Path(llm_comply.__file__).parent / "specs" / _SPEC_FILES[form]))
    assert len(checks) >= 6
    left = checks
    for _ in range(TRIES):
        suite = llm_comply.TestRunner(config, left, spec).run_all()
        close_client()
        failed = {each.id: each.errors for each in suite.results if each.errors}
        left = [each for each in left if each.id in failed]
        if not left:
            break
    assert failed == {}
    assert suite.passed == len(suite.results)
