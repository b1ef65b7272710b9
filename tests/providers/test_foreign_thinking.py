"""Thinking that Anthropic can't have signed is left out of its requests, and nothing else is touched."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.routes import Endpoint
from forebay.providers.anthropic_dialect import MessagesDialect
from forebay.providers.foreign_thinking import drop_foreign_thinking

SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCkgIBRABGAI="}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
UNSIGNED = {"type": "thinking", "thinking": "Mine.", "signature": ""}
GOOGLES = {"type": "thinking", "thinking": "", "signature": "gemini:call0:c2ln"}
CALL = {"type": "tool_use", "id": "c", "name": "f", "input": {"signature": "", "type": "thinking"}}
TEXT = {"type": "text", "text": 'He said: {"type":"thinking","signature":""}'}
ASKED = {"role": "user", "content": "hi"}


def drop(*blocks: Any, role: str = "assistant", **dumping: Any) -> list[dict[str, Any]]:
    body = {"model": "m", "messages": [ASKED, {"role": role, "content": list(blocks)}, ASKED]}
    messages: list[dict[str, Any]] = json.loads(drop_foreign_thinking(json.dumps(body, **dumping).encode()))[
        "messages"
    ]
    return messages


@pytest.mark.parametrize("dumping", [{}, {"separators": (",", ":")}, {"indent": 1}])
@pytest.mark.parametrize("foreign", [UNSIGNED, GOOGLES, UNSIGNED | {"signature": None}])
def test_what_another_model_thought_is_left_out(foreign: dict[str, Any], dumping: dict[str, Any]) -> None:
    told = drop(SIGNED, foreign, REDACTED, TEXT, foreign, CALL, **dumping)
    assert told == [ASKED, {"role": "assistant", "content": [SIGNED, REDACTED, TEXT, CALL]}, ASKED]
    assert drop(foreign, **dumping) == [ASKED, ASKED], "a message of which nothing is left goes too"


def test_what_only_looks_like_it_stays_byte_for_byte() -> None:
    for blocks, role in [
        ([SIGNED, REDACTED, TEXT, CALL], "assistant"),
        ([UNSIGNED], "user"),
        (["x", 1, None, {"signature": ""}], "assistant"),
        ([{"type": "signed", "signature": ""}], "assistant"),
    ]:
        body = {"model": "m", "messages": [ASKED, {"role": role, "content": blocks}], "x": 1.50}
        spelled = json.dumps(body, indent=3).encode()
        assert drop_foreign_thinking(spelled) == spelled


def test_the_rest_of_a_changed_request_keeps_its_bytes() -> None:
    body = (
        b'{ "model":"m",\n "messages" : [{"role":"user","content":"\\u00fc"}, { "content":[{"type":'
        b'"thinking","thinking":"x","signature":""},{"type":"text","text":"a\\/b"}],\n'
        b'"role":"assistant"}], "x":1.50 }'
    )
    assert drop_foreign_thinking(body) == (
        b'{ "model":"m",\n "messages" : [{"role":"user","content":"\\u00fc"},'
        b'{ "content":[{"type":"text","text":"a\\/b"}],\n"role":"assistant"}], "x":1.50 }'
    )


@given(st.binary(max_size=60))
def test_what_cant_be_read_is_left_to_the_target(junk: bytes) -> None:
    for body in (b'"signature":""' + junk, b'{"messages":[{"content":[{"signature":""}' + junk):
        assert drop_foreign_thinking(body) == body


def test_requests_that_pass_untouched_are_read_for_it() -> None:
    body = json.dumps({"model": "m", "messages": [ASKED, {"role": "assistant", "content": [UNSIGNED, TEXT]}]})
    dialect = MessagesDialect()
    for model in ("m", "other"):
        view = dialect.read_request(body.encode())
        parts = dialect.encode_request(body.encode(), view, Endpoint.MESSAGES, model)
        made = json.loads(parts if isinstance(parts, bytes) else b"".join(parts))
        assert made == {"model": model, "messages": [ASKED, {"role": "assistant", "content": [TEXT]}]}
