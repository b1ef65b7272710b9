"""Sends chat requests through the translator for Bedrock, and holds each body against AWS's own client."""

import json
from typing import Any

import pytest
from botocore.session import Session
from botocore.validate import ParamValidator

from forebay.core.errors import CallerError
from forebay.providers.chat_to_bedrock import ChatToBedrock

TRANSLATOR = ChatToBedrock()
MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-pro-v1:0"
ASK: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
ASKED = [{"role": "user", "content": [{"text": "Hello"}]}]
NOW = {"type": "function", "function": {"name": "now"}}
POINT = {"cachePoint": {"type": "default"}}
CONVERSE = Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape


def translate(model: str = MODEL, messages: Any = None, **more: Any) -> dict[str, Any]:
    """What is sent, once the client of AWS has found nothing wrong with it."""
    chat = {"model": "public", "messages": ASK if messages is None else messages} | more
    made: dict[str, Any] = json.loads(
        TRANSLATOR.encode_request(json.dumps(chat).encode(), model, stream=False)
    )
    shape = Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape
    report = ParamValidator().validate(made | {"modelId": model}, shape)
    assert not report.has_errors(), report.generate_report()
    return made


def refuse(messages: Any = None, model: str = MODEL, **more: Any) -> CallerError:
    with pytest.raises(CallerError) as raised:
        translate(model, messages, **more)
    return raised.value
