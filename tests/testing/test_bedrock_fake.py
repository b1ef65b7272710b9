"""The fake Bedrock is what AWS's own client takes it for."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from botocore.session import Session

from forebay.testing.bedrock import (
    CREDENTIALS,
    REGION,
    converse,
    converse_events,
    error_answer,
    exception,
    stream_answer,
    text,
    thinking,
    tool_use,
    usage,
    well_behaved,
)
from forebay.testing.openai import ToolCall
from forebay.testing.threaded import ThreadedUpstream

MODEL = "anthropic.claude-haiku-4-5-20251001-v1:0"
QUICK = Config(retries={"total_max_attempts": 1}, read_timeout=20)
ASK = [{"role": "user", "content": [{"text": "Hello"}]}]
CALL = ToolCall(id="tooluse_1", name="look", arguments='{"at":"sea","deep":[1,2]}')
BLOCKS = (thinking("Let me see …", "sig=="), text("Grüße 😀"), tool_use(CALL))


def connect(url: str, *, secret: str = CREDENTIALS.secret_access_key, region: str = REGION) -> Any:
    return Session().create_client(
        "bedrock-runtime",
        region_name=region,
        endpoint_url=url,
        aws_access_key_id=CREDENTIALS.access_key_id,
        aws_secret_access_key=secret,
        aws_session_token=CREDENTIALS.session_token,
        config=QUICK,
    )


@pytest.fixture
def upstream() -> Iterator[ThreadedUpstream]:
    with ThreadedUpstream(well_behaved(*BLOCKS, tokens=usage(9, 4, cache_read=3, cache_write=2))) as made:
        yield made


def test_the_client_of_aws_is_answered_whole(upstream: ThreadedUpstream) -> None:
    answer = connect(upstream.origin).converse(modelId=MODEL, messages=ASK)
    assert answer["output"]["message"]["content"] == list(BLOCKS)
    assert (answer["stopReason"], answer["usage"]["totalTokens"]) == ("tool_use", 18)
    assert upstream.requests[0].path == "/model/anthropic.claude-haiku-4-5-20251001-v1%3A0/converse"


def test_the_client_of_aws_reads_the_stream(upstream: ThreadedUpstream) -> None:
    events = list(connect(upstream.origin).converse_stream(modelId=MODEL, messages=ASK)["stream"])
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == "Grüße 😀"
    assert "".join(delta["toolUse"]["input"] for delta in deltas if "toolUse" in delta) == CALL.arguments
    assert deltas[-1].keys() == {"toolUse"}
    assert [next(iter(event)) for event in events][-2:] == ["messageStop", "metadata"]
    assert events[-1]["metadata"]["usage"]["cacheReadInputTokens"] == 3


def test_a_signature_that_is_not_right_is_refused(upstream: ThreadedUpstream) -> None:
    for client in (connect(upstream.origin, secret="wrong"), connect(upstream.origin, region="us-east-1")):
        with pytest.raises(ClientError) as raised:
            client.converse(modelId=MODEL, messages=ASK)
        assert raised.value.response["Error"]["Code"] == "InvalidSignatureException"
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_errors_are_the_client_s_errors() -> None:
    with ThreadedUpstream() as upstream:
        client = connect(upstream.origin)
        begun = converse_events(converse("Hello"))[:3]
        upstream.enqueue(
            error_answer(429, "ThrottlingException", "Too many tokens."),
            stream_answer([*begun, exception("throttlingException", "Slow down.")], cut_every=7),
        )
        with pytest.raises(client.exceptions.ThrottlingException, match=r"Too many tokens\."):
            client.converse(modelId=MODEL, messages=ASK)
        with pytest.raises(EventStreamError, match=r"throttlingException.*Slow down\."):
            list(client.converse_stream(modelId=MODEL, messages=ASK)["stream"])
