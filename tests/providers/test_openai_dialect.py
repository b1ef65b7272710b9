"""The dialect: requests keep their bytes, answers say what they cost, errors read as OpenAI's."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core import errors
from forebay.core.events import Tokens
from forebay.core.routes import Endpoint
from forebay.providers import openai
from forebay.testing.openai import chat_completion, embeddings, usage

CHAT = Endpoint.CHAT


def encode(body: bytes, model: str = "m", endpoint: Endpoint = CHAT) -> bytes:
    made = openai.encode_request(body, openai.read_request(body), endpoint, model)
    return made if isinstance(made, bytes) else b"".join(made)


# --- requests -----------------------------------------------------------------------------------------------

#: Spellings that a decoder and an encoder would not give back.
ODD = (
    b'{ "model"\t:\r\n"m" , "big": 123456789012345678901234567890, "exp":1E+2, "neg":-0.0,'
    b' "esc":"\\u00e9\\/\\ud83d\\ude00",'
    b' "unknown":{"b":1,"a":[ ]}, "twice":1, "twice":2, "messages":[{"role":"assistant","content":null},'
    b'{"role":"assistant","content":""},{"role":"user","content":" \\n "}] }\n'
)


@pytest.mark.parametrize("endpoint", Endpoint)
def test_a_request_that_needs_no_change_is_the_callers_own_bytes(endpoint: Endpoint) -> None:
    assert encode(ODD, endpoint=endpoint) is ODD


@pytest.mark.parametrize("endpoint", Endpoint)
def test_under_another_name_only_the_models_value_changes(endpoint: Endpoint) -> None:
    once = ODD.replace(b', "twice":2', b"")
    assert encode(once, "other", endpoint) == once.replace(b'"m"', b'"other"', 1)


def test_a_field_named_twice_keeps_the_bytes_of_the_value_that_counts() -> None:
    edited = encode(ODD, "other")
    assert json.loads(edited) == json.loads(ODD) | {"model": "other"}
    assert b'"\\u00e9\\/\\ud83d\\ude00"' in edited
    assert b"123456789012345678901234567890" in edited
    assert b"1E+2" in edited


@pytest.mark.parametrize("name", ['ü/"quoted"\\', "org/model:7b", "模型"])
def test_a_models_name_there_may_hold_any_character(name: str) -> None:
    assert json.loads(encode(b'{"model":"m"}', name))["model"] == name


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","stream":true}',
        b' {\n"stream":true ,"model":"m"}\n',
        b'{"stream":true,"model":"m","x":[]}',
    ],
)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])
@pytest.mark.parametrize("model", ["m", "other"])
def test_usage_is_asked_for_in_streams(body: bytes, endpoint: Endpoint, model: str) -> None:
    edited = encode(body, model, endpoint)
    assert json.loads(edited) == json.loads(body) | {
        "model": model,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("null", {"include_usage": True}),
        ("{}", {"include_usage": True}),
        ('{"include_usage":false}', {"include_usage": True}),
        ('{"include_usage":null,"x":1e2}', {"include_usage": True, "x": 100.0}),
        ('{"continuous_usage_stats":true}', {"continuous_usage_stats": True, "include_usage": True}),
    ],
)
def test_other_stream_options_stay(given: str, sent: dict[str, Any]) -> None:
    body = b'{"model":"m","stream":true,"stream_options":%b}' % given.encode()
    assert json.loads(encode(body))["stream_options"] == sent
    assert not openai.read_request(body).wants_usage


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        (b'{"model":"m"}', CHAT),
        (b'{"model":"m","stream":false}', CHAT),
        (b'{"model":"m","stream":null}', CHAT),
        (b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}', CHAT),
        (b'{"model":"m","stream":true}', Endpoint.EMBEDDINGS),
    ],
)
def test_usage_is_not_asked_for_where_it_comes_anyway(body: bytes, endpoint: Endpoint) -> None:
    assert encode(body, endpoint=endpoint) is body


@pytest.mark.parametrize(
    ("body", "error", "param"),
    [
        (b"", errors.InvalidJSON, None),
        (b" ", errors.InvalidJSON, None),
        (b"{", errors.InvalidJSON, None),
        (b"[]", errors.InvalidJSON, None),
        (b"null", errors.InvalidJSON, None),
        (b'"m"', errors.InvalidJSON, None),
        (b'{"model":"m"}}', errors.InvalidJSON, None),
        (b'{"model":"m",}', errors.InvalidJSON, None),
        (b"{'model':'m'}", errors.InvalidJSON, None),
        (b'\xef\xbb\xbf{"model":"m"}', errors.InvalidJSON, None),
        (b'{"model":"\xff"}', errors.InvalidJSON, None),
        ('{"model":"m"}'.encode("utf-16"), errors.InvalidJSON, None),
        (b'{"x":' + b"[" * 10_000 + b"]" * 10_000 + b',"model":"m"}', errors.InvalidJSON, None),
        (b"[" * 10_000, errors.InvalidJSON, None),
        (b"{}", errors.MissingField, "model"),
        (b'{"Model":"m"}', errors.MissingField, "model"),
        (b'{"model":""}', errors.InvalidValue, "model"),
        (b'{"model":null}', errors.InvalidValue, "model"),
        (b'{"model":7}', errors.InvalidValue, "model"),
        (b'{"model":["m"]}', errors.InvalidValue, "model"),
        (b'{"model":"m","stream":"true"}', errors.InvalidValue, "stream"),
        (b'{"model":"m","stream":1}', errors.InvalidValue, "stream"),
        (b'{"model":"m","stream_options":[]}', errors.InvalidValue, "stream_options"),
        (
            b'{"model":"m","stream_options":{"include_usage":"yes"}}',
            errors.InvalidValue,
            "stream_options.include_usage",
        ),
    ],
)
def test_a_request_that_cannot_be_read_says_what_is_wrong(
    body: bytes, error: type[errors.ForebayError], param: str | None
) -> None:
    with pytest.raises(error) as caught:
        openai.read_request(body)
    assert type(caught.value) is error
    assert caught.value.param == param
    assert caught.value.status == 400
    assert caught.value.message


def test_a_request_with_broken_names_or_too_many_is_refused_where_it_must_be_edited() -> None:
    for body in (
        b'{"model":"m","\xff":1}',
        b'{"model":"m"' + b"".join(b',"%d":1' % n for n in range(2000)) + b"}",
    ):
        assert encode(body) is body
        with pytest.raises(errors.InvalidJSON):
            encode(body, "other")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_body_breaks_the_reader(body: bytes) -> None:
    try:
        view = openai.read_request(body)
    except errors.CallerError:
        return
    openai.encode_request(body, view, CHAT, "other")


@pytest.mark.parametrize("more", [b"", b',"stream":true', b',"stream":true,"stream_options":null'])
@pytest.mark.parametrize("model", ["m", "other"])
def test_a_large_body_is_edited_without_a_copy(more: bytes, model: str) -> None:
    body = b'{"model":"m","messages":["' + b"x" * (8 << 20) + b'"]%b}' % more
    view = openai.read_request(body)
    tracemalloc.start()
    try:
        made = openai.encode_request(body, view, CHAT, model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    whole = made if isinstance(made, bytes) else b"".join(made)
    expected: dict[str, Any] = json.loads(body) | {"model": model}
    if more:
        expected["stream_options"] = {"include_usage": True}
    assert json.loads(whole) == expected


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (chat_completion(tokens=usage(7, 5)), Tokens(input=7, output=5)),
        (chat_completion(tokens=usage(7, 0)), Tokens(input=7, output=0)),
        (chat_completion(tokens=usage(7, 50, reasoning=45)), Tokens(input=7, output=5, output_reasoning=45)),
        (chat_completion(tokens=usage(7, 5, cached=7)), Tokens(input=0, input_cached=7, output=5)),
        (embeddings([[1.0]], prompt_tokens=3), Tokens(input=3, output=0)),
        ({"usage": None}, None),
        ({"usage": {}}, None),
        ({"usage": {"prompt_tokens": -5, "completion_tokens": 1}}, None),
        ({"usage": {"prompt_tokens": 1 << 64, "completion_tokens": 1}}, None),
        (
            {"usage": {"prompt_tokens": 5, "completion_tokens": 4, "prompt_tokens_details": None}},
            Tokens(input=5, output=4),
        ),
        ({}, None),
        ([], None),
    ],
)
def test_tokens_of_an_answer(answer: object, tokens: Tokens | None) -> None:
    assert openai.read_answer(json.dumps(answer).encode()) == tokens


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b'{"usage":', b"\xff", b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"]
)
def test_an_answer_that_cannot_be_read_reports_nothing(body: bytes) -> None:
    assert openai.read_answer(body) is None


def test_details_larger_than_their_total_do_not_go_below_zero() -> None:
    body = json.dumps({"usage": usage(5, 5, cached=9, reasoning=9)}).encode()
    assert openai.read_answer(body) == Tokens(input=0, input_cached=9, output=0, output_reasoning=9)


@given(st.binary(), st.integers(0, 10**6))
def test_an_estimate_is_never_nothing(body: bytes, events: int) -> None:
    tokens = openai.estimate_tokens(body, events)
    assert tokens.input_total >= 1
    assert tokens.output_total >= events


# --- errors -------------------------------------------------------------------------------------------------


def all_errors() -> list[type[errors.ForebayError]]:
    found, queue = [], [errors.ForebayError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_has_the_envelope(kind: type[errors.ForebayError]) -> None:
    if kind.__init__ is not errors.ForebayError.__init__:
        pytest.skip("an error of another layer, with arguments of its own")
    error = kind('with "quotes" and é', param="model")
    envelope = {"error": {"message": error.message, "type": kind.type, "param": "model", "code": kind.code}}
    assert json.loads(openai.encode_error(error)) == envelope
    raw = openai.encode_error_event(error)
    assert raw.startswith(b"data: ")
    assert raw.endswith(b"\n\n")
    assert json.loads(raw[6:]) == envelope


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"message": "too long", "code": 400}, 400),
        ({"message": "too long", "code": "400"}, 400),
        ({"message": "too long", "type": "BadRequestError", "param": None, "code": 400}, 400),
        ({"message": "too long", "type": "exceed_context_size_error", "n_ctx": 512}, 400),
        ({"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}, 400),
        ({"message": "too long", "type": "invalid_request_error", "code": None}, 400),
        ({"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}, 429),
        ({"message": "busy", "type": "overloaded_error"}, 503),
        ({"message": "broken", "type": "server_error", "code": 503}, 503),
        ({"message": "broken", "code": 200}, 502),
        ({"message": "broken", "code": 99999}, 502),
        ({"message": "broken", "code": {"a": 1}}, 502),
        ({"message": "broken"}, 502),
        ({}, 502),
        ("a string", 502),
        (None, 502),
    ],
)
def test_the_status_that_fits_an_error_in_a_stream(error: object, status: int) -> None:
    assert openai.read_error_status(json.dumps(error).encode()) == status


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"error":{"message":"x"}}', b'{"message":"x"}'),
        (b'{"error":{},"x":1}', b"{}"),
        (b'{"error":"x"}', None),
        (b'{"error":null}', None),
        (b'{"detail":"Not Found"}', None),
        (b"<html>", None),
        (b"", None),
    ],
)
def test_an_error_is_in_the_dialect_only_with_an_object(body: bytes, found: bytes | None) -> None:
    assert openai.read_error(body) == found
