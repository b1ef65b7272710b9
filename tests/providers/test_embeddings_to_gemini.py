"""OpenAI's embeddings at a target that is Google's Gemini API."""

import json
from typing import Any, get_type_hints

import httpx
import openai
import pytest
from openai.types import embedding_create_params

from forebay.core.errors import InvalidValue, MissingField, UpstreamProtocol
from forebay.core.events import Tokens
from forebay.providers import openai as dialect
from forebay.providers.embeddings_to_gemini import IDLE, MAPPED, REFUSED, EmbeddingsToGemini

TRANSLATOR = EmbeddingsToGemini()
ANSWER = {"embeddings": [{"values": [0.5, -1]}, {"values": [1, 2]}]}


def encode(**asked: Any) -> dict[str, Any]:
    body = json.dumps({"model": "public", "input": "a"} | asked).encode()
    made: dict[str, Any] = json.loads(TRANSLATOR.encode_request(body, "embed", stream=False))
    return made


def request(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "models/embed", "content": {"parts": [{"text": text}]}} | more


def test_every_parameter_is_mapped_idle_or_refused() -> None:
    documented = get_type_hints(embedding_create_params.EmbeddingCreateParams).keys()
    assert documented <= MAPPED | IDLE | REFUSED.keys()


def test_texts_are_requests_of_a_batch() -> None:
    assert encode() == {"requests": [request("a")]}
    assert encode(input=["a", "b"], dimensions=64, user="u", encoding_format="base64") == {
        "requests": [request(text, outputDimensionality=64) for text in ("a", "b")]
    }


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"input": [1, 2]}, "input[0]"),
        ({"input": [[1, 2]]}, "input[0]"),
        ({"input": 3}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"novelty": 1}, "novelty"),
        ({"dimensions": "x"}, "dimensions"),
    ],
)
def test_what_can_not_be_said_is_refused_by_its_name(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        encode(**asked)
    assert caught.value.param == param


def test_a_request_without_input_says_so() -> None:
    with pytest.raises(MissingField):
        TRANSLATOR.encode_request(b"{}", "m", stream=False)


def test_the_real_client_reads_the_answer() -> None:
    told = json.dumps(ANSWER | {"usageMetadata": {"promptTokenCount": 6}}).encode()
    body = TRANSLATOR.decode_answer(told, "embed")
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    client = openai.OpenAI(api_key="k", base_url="http://h", http_client=httpx.Client(transport=transport))
    made = client.embeddings.create(model="m", input=["a", "b"])
    assert [(each.index, list(each.embedding)) for each in made.data] == [(0, [0.5, -1]), (1, [1, 2])]
    assert made.usage.prompt_tokens == 6
    assert dialect.read_answer(body) == Tokens(input=6, output=0)


def test_an_answer_that_counts_nothing_has_no_usage() -> None:
    assert "usage" not in json.loads(TRANSLATOR.decode_answer(json.dumps(ANSWER).encode(), "m"))


@pytest.mark.parametrize("body", [b"", b"{}", b'{"embeddings":[{"values":["x"]}]}'])
def test_what_is_no_answer_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.decode_answer(body, "m")


def test_requests_are_addressed_as_google_wants_it() -> None:
    assert TRANSLATOR.build_path("/v1beta", "embed", stream=False) == (
        "/v1beta/models/embed:batchEmbedContents"
    )
    assert TRANSLATOR.build_headers("k") == [("x-goog-api-key", "k")]
    assert TRANSLATOR.build_headers("") == []
    with pytest.raises(UpstreamProtocol):
        TRANSLATOR.new_stream("m")
