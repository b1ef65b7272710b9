"""The embedding engine as a process, called by the official client and by callers that misbehave."""

import base64
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from engine_process import Engine
from openai import OpenAI

from forebay.engines.minilm import DIMENSIONS, MiniLM

MODEL = "minilm-l6-v2"
TEXTS = [
    "The cat sits on the mat.",
    "A feline is resting on a rug.",
    "Quarterly revenue grew by nine percent.",
]


def test_floats_and_base64_are_the_model_s_own_vectors(embedding_client: OpenAI, minilm: MiniLM) -> None:
    encoded = [minilm.encode(text)[0] for text in TEXTS]
    expected = minilm.embed(encoded)
    for encoding in ("float", "base64"):
        answer = embedding_client.embeddings.create(model=MODEL, input=TEXTS, encoding_format=encoding)
        data = [entry.embedding for entry in answer.data]
        rows = np.array(
            [np.frombuffer(base64.b64decode(row), "<f4") for row in data] if encoding == "base64" else data
        )
        assert np.abs(rows - expected).max() < 1e-5
        assert [entry.index for entry in answer.data] == [0, 1, 2]
        assert answer.model == MODEL
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, encoded))


def test_what_the_client_asks_for_by_default_works(embedding_client: OpenAI) -> None:
    answer = embedding_client.embeddings.create(model=MODEL, input="hello", dimensions=DIMENSIONS)
    assert len(answer.data[0].embedding) == DIMENSIONS


def test_token_ids_give_the_vectors_of_their_texts(embedding_client: OpenAI, minilm: MiniLM) -> None:
    ids = [list(minilm.encode(text)[0])[1:-1] for text in TEXTS]
    by_text = embedding_client.embeddings.create(model=MODEL, input=TEXTS)
    by_ids = embedding_client.embeddings.create(model=MODEL, input=ids)
    one = embedding_client.embeddings.create(model=MODEL, input=ids[0])
    rows = [np.array([entry.embedding for entry in answer.data]) for answer in (by_text, by_ids, one)]
    assert np.abs(rows[0] - rows[1]).max() < 1e-5
    assert np.abs(rows[0][:1] - rows[2]).max() < 1e-5
    assert by_ids.usage == by_text.usage


def test_mistakes_come_back_as_the_client_s_own_errors(embedding_client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        embedding_client.embeddings.create(model=MODEL, input="x", dimensions=100)
    assert (wrong.value.param, wrong.value.code) == ("dimensions", "invalid_value")
    with pytest.raises(openai.NotFoundError) as missing:
        embedding_client.embeddings.create(model="gpt-7", input="x")
    assert missing.value.code == "model_not_found"
    assert [model.id for model in embedding_client.models.list()] == [MODEL]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/nothing", None, 404, "unknown_url"),
        ("/v1/embeddings", None, 405, "method_not_allowed"),
        ("/v1/embeddings", b"{", 400, "invalid_json"),
        ("/v1/embeddings", b"", 400, "invalid_json"),
    ],
)
def test_errors_have_the_envelope(
    embedder: Engine, path: str, body: bytes | None, status: int, code: str
) -> None:
    got, answer = embedder.ask(path, body)
    assert got == status
    assert f'"code":"{code}"'.encode() in answer


@pytest.mark.parametrize("framing", [b"content-length: 40000000", b"transfer-encoding: chunked"])
def test_a_body_that_is_too_large_is_refused_before_all_of_it_has_come(
    embedder: Engine, framing: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", embedder.port), timeout=30) as caller:
        caller.sendall(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n" + framing + b"\r\n\r\n")
        for _ in range(33 if b"chunked" in framing else 0):
            caller.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        answer = caller.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"33554432 bytes" in answer


def test_concurrent_callers_are_batched_and_get_their_own_vectors(embedder: Engine, minilm: MiniLM) -> None:
    texts = [f"Text number {number} about rivers." for number in range(48)]
    expected = minilm.embed([minilm.encode(text)[0] for text in texts])
    before = read_counter(embedder, "batches_total")

    def ask(text: str) -> list[float]:
        with OpenAI(base_url=embedder.base_url, api_key="none", max_retries=0) as client:
            return client.embeddings.create(model=MODEL, input=text).data[0].embedding

    with ThreadPoolExecutor(16) as pool:
        rows = np.array(list(pool.map(ask, texts)))
    assert np.abs(rows - expected).max() < 1e-5
    assert read_counter(embedder, "batches_total") - before < len(texts)


def test_health_answers_while_the_model_works(embedder: Engine) -> None:
    texts = ["Rivers and dams. " * 80] * 16
    busy = threading.Thread(target=embedder.ask, args=("/v1/embeddings", {"model": MODEL, "input": texts}))
    busy.start()
    waits, begun = [], time.monotonic()
    while busy.is_alive():
        start = time.monotonic()
        assert embedder.ask("/health") == (200, b'{"status":"ok"}')
        waits.append(time.monotonic() - start)
        time.sleep(0.02)
    # By how long the work took: if they waited for it there would be one or two answers.
    assert len(waits) > 5
    assert sorted(waits)[len(waits) // 2] < max(0.1, (time.monotonic() - begun) / 8)


def test_a_caller_that_leaves_takes_its_texts_along(embedder: Engine) -> None:
    texts = ["Rivers and dams. " * 80] * 400  # half a minute of work
    body = json.dumps({"model": MODEL, "input": texts}).encode()
    with socket.create_connection(("127.0.0.1", embedder.port)) as caller:
        caller.sendall(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
        caller.sendall(body)
        wait_for(lambda: read_counter(embedder, "waiting") > 0)
    wait_for(lambda: read_counter(embedder, "waiting") == 0)
    status, _ = embedder.ask("/v1/embeddings", {"model": MODEL, "input": "quick"}, timeout_s=25)
    assert status == 200


def read_counter(engine: Engine, name: str) -> float:
    _, text = engine.ask("/metrics")
    lines = [line for line in text.decode().splitlines() if line.startswith(f"forebay_embeddings_{name} ")]
    return float(lines[0].rpartition(" ")[2])


def wait_for(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
