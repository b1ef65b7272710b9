"""What the gateway relies on in llama.cpp's server (docs/engines.md), so that a new version tells us."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_process import Engine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Say hi."}]


@contextmanager
def open_request(engine: Engine, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", engine.port), timeout=30) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        )
        yield connection


def read_stream(engine: Engine, path: str, **fields: Any) -> list[Any]:
    """The events' data: objects, and the last one's text."""
    status, body = engine.ask(path, {"stream": True, "max_tokens": 3, "temperature": 0} | fields)
    assert status == 200
    assert body.endswith(b"\n\n")
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n")[:-1]]
    return [*map(json.loads, events[:-1]), events[-1]]


def count_busy(engine: Engine) -> int:
    _, text = engine.ask("/metrics")
    found = re.findall(r"^llamacpp:requests_(?:processing|deferred) (\d+)$", text.decode(), re.MULTILINE)
    return sum(map(int, found))


def test_a_chat_stream_without_the_option_tells_no_usage(llama: Engine) -> None:
    *chunks, done = read_stream(llama, CHAT, messages=HI)
    assert done == "[DONE]"
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert [("timings" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_chat_stream_with_the_option_tells_usage_once_without_choices(llama: Engine) -> None:
    *chunks, done = read_stream(llama, CHAT, messages=HI, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert [("usage" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_a_completion_stream_tells_usage_in_its_last_choice_asked_or_not(
    llama: Engine, options: dict[str, Any]
) -> None:
    *chunks, done = read_stream(llama, COMPLETIONS, prompt="Once", **options)
    assert done == "[DONE]"
    assert [("usage" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_usage_tells_cached_tokens(llama: Engine) -> None:
    asked = {"prompt": "One two three four five six seven eight nine ten", "max_tokens": 1}
    for _ in range(2):
        _, body = llama.ask(COMPLETIONS, asked)
    usage = json.loads(body)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_usage_of_several_choices_counts_only_the_first(llama: Engine) -> None:
    """The gateway must not believe it: `n` and lists of prompts are under-reported."""
    _, body = llama.ask(CHAT, {"messages": HI, "n": 2, "max_tokens": 3, "ignore_eos": True})
    answer = json.loads(body)
    assert len(answer["choices"]) == 2
    assert answer["usage"]["completion_tokens"] == 3


def test_a_stream_never_splits_a_character(llama: Engine) -> None:
    text = "é河🌊👩‍🚀"
    chunks = read_stream(llama, CHAT, messages=HI, max_tokens=40, grammar=f'root ::= "{text}"')[:-1]
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "words"),
    [
        (CHAT, b"{", 400, "invalid_request_error", "parse error"),
        (CHAT, b'{"messages":[{"role":"user","content":"\xff"}]}', 400, "invalid_request_error", "UTF-8"),
        (CHAT, {}, 400, "invalid_request_error", "'messages' is required"),
        (CHAT, {"messages": HI, "temperature": "hot"}, 400, "invalid_request_error", "temperature"),
        (CHAT, {"messages": HI, "n": 5}, 400, "invalid_request_error", "1 <= value <= 4"),
        ("/v1/embeddings", {"input": "a"}, 501, "not_supported_error", "embeddings"),
        ("/v1/nothing", {}, 404, "not_found_error", "Not Found"),
    ],
)
def test_errors_are_enveloped_with_a_number_as_code(
    llama: Engine, path: str, body: Any, status: int, kind: str, words: str
) -> None:
    got, answer = llama.ask(path, body)
    error = json.loads(answer)["error"]
    assert (got, error["code"], error["type"]) == (status, status, kind)
    assert words in error["message"]


def test_unknown_fields_and_any_model_name_are_taken(llama: Engine) -> None:
    status, body = llama.ask(CHAT, {"model": "x", "messages": HI, "max_tokens": 1, "unknown": {"a": [1]}})
    assert (status, json.loads(body)["model"]) == (200, "smollm2-135m")


def test_connections_are_kept_for_five_seconds_and_a_hundred_requests(llama: Engine) -> None:
    with socket.create_connection(("127.0.0.1", llama.port), timeout=30) as connection:
        answers = connection.makefile("rb")
        for number in range(1, 101):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            head = b"".join(iter(answers.readline, b"\r\n"))
            assert answers.read(15) == b'{"status":"ok"}'
            ending = b"Connection: close" if number == 100 else b"Keep-Alive: timeout=5, max=100"
            assert ending in head, number
        assert answers.read() == b""


@pytest.mark.parametrize(
    ("body", "stated", "closes"),
    [
        ({"prompt": "a", "max_tokens": 1}, b"Keep-Alive: timeout=5, max=100", False),
        ({"prompt": "a", "max_tokens": 1, "stream": True}, b"Keep-Alive: timeout=5, max=100", True),
        ({}, b"Connection: close", True),
    ],
)
def test_a_connection_ends_with_a_stream_or_an_error(
    llama: Engine, body: dict[str, Any], stated: bytes, closes: bool
) -> None:
    """After a stream it does so in spite of what the head says."""
    with open_request(llama, COMPLETIONS, body) as connection:
        connection.settimeout(60 if closes else 2)
        got = bytearray()
        ended = False
        try:
            while chunk := connection.recv(65536):
                got += chunk
            ended = True
        except TimeoutError:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert ended == closes
    assert stated in got


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_ends_its_generation(llama: Engine, stream: bool) -> None:
    asked = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True, "stream": stream}
    with open_request(llama, COMPLETIONS, asked):
        deadline = time.monotonic() + 60
        while not count_busy(llama):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    # Without a stream it is noticed after a second in which no answer of any kind was ready: don't ask.
    for _ in range(20):
        time.sleep(1.5)
        if not count_busy(llama):
            return
    raise AssertionError("it generates for nobody")
