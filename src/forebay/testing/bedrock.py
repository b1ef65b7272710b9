"""Payloads of Amazon Bedrock's Converse API as it sends them, and a handler that behaves as it does.

Payloads are plain dicts, so that a test can bend them; they are made after the public documentation.  The
handler checks the signature of each request, and speaks AWS's binary event streams.

    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        target = Target(dialect="bedrock", url=upstream.origin, region=REGION, api_key="env:BEDROCK", ...)
"""

import calendar
import hmac
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from forebay.providers.eventstream import MEDIA_TYPE, encode_message
from forebay.providers.sigv4 import ALGORITHM, Credentials, Scope, sign_request
from forebay.testing.answers import Framing, answer, cut, json_answer
from forebay.testing.openai import ToolCall
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Step

Payload = dict[str, Any]
REGION = "eu-central-1"
CREDENTIALS = Credentials(
    access_key_id="AKIDEXAMPLEFOREBAY01",
    secret_access_key="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    session_token="IQoJb3JpZ2luX2VjEXAMPLE//////////wEaDGV1LWNlbnRyYWw=",
)
API_KEY = "bedrock-api-key-EXAMPLE0123456789"
SKEW_MAX_S = 300  #: how far a signature's time may be from the server's

_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=([^/]+)/(\d{{8}})/([^/]+)/bedrock/aws4_request, "
    r"SignedHeaders=([^,]+), Signature=([0-9a-f]{64})"
)
_PATH = re.compile(r"/model/([^/]+)/(converse|converse-stream)")
_SIGNED_ANYWAY = ("x-amz-date", "x-amz-security-token")


def write_secret(credentials: Credentials = CREDENTIALS) -> str:
    """The credentials as a target's `api_key` has them."""
    parts = (credentials.access_key_id, credentials.secret_access_key, credentials.session_token)
    return ":".join(part for part in parts if part)


# --- payloads -----------------------------------------------------------------------------------------------


def usage(
    input: int = 7, output: int = 5, *, cache_read: int | None = None, cache_write: int | None = None
) -> Payload:
    """A usage object; what caches did only where it is given, beside the input and not within it."""
    result: Payload = {"inputTokens": input, "outputTokens": output}
    if cache_read is not None:
        result["cacheReadInputTokens"] = cache_read
    if cache_write is not None:
        result["cacheWriteInputTokens"] = cache_write
    return result | {"totalTokens": input + output + (cache_read or 0) + (cache_write or 0)}


def text(words: str) -> Payload:
    return {"text": words}


def thinking(words: str, signature: str) -> Payload:
    return {"reasoningContent": {"reasoningText": {"text": words, "signature": signature}}}


def tool_use(call: ToolCall) -> Payload:
    arguments = msgspec.json.decode(call.arguments or "{}")
    return {"toolUse": {"toolUseId": call.id, "name": call.name, "input": arguments}}


def converse(
    *blocks: Payload | str, stop_reason: str | None = None, tokens: Payload | None = None
) -> Payload:
    """A whole answer; "Hello" without blocks.  `stop_reason` None is what the blocks suggest."""
    content = [text(block) if isinstance(block, str) else block for block in blocks] or [text("Hello")]
    has_calls = any("toolUse" in block and "type" not in block["toolUse"] for block in content)
    suggested = "tool_use" if has_calls else "end_turn"
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": stop_reason or suggested,
        "usage": tokens or usage(),
        "metrics": {"latencyMs": 321},
    }


def event(kind: str, payload: Payload) -> bytes:
    """One message of an event stream."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return encode_message(headers, msgspec.json.encode(payload))


def exception(kind: str, words: str = "It went wrong.") -> bytes:
    """An exception inside a stream, such as `throttlingException`."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return encode_message(headers, msgspec.json.encode({"message": words}))


def converse_events(answer: Payload, *, fragment_chars: int = 4) -> list[bytes]:
    """The messages of the stream that brings the same answer, padded as Bedrock pads them."""
    events = [event("messageStart", {"role": "assistant", "p": "abcdefg"})]
    for index, block in enumerate(answer["output"]["message"]["content"]):
        events += _block_events(index, block, fragment_chars)
    events.append(event("messageStop", {"stopReason": answer["stopReason"], "p": "abc"}))
    return [*events, event("metadata", {name: answer[name] for name in ("usage", "metrics")} | {"p": "ab"})]


def stream_answer(events: Iterable[bytes], *, cut_every: int | None = None) -> list[Step]:
    """A stream as a whole answer, one message a piece or cut elsewhere."""
    pieces = list(events)
    if cut_every is not None:
        pieces = list(cut(b"".join(pieces), every=cut_every))
    return answer(pieces, headers=[("content-type", MEDIA_TYPE)], framing=Framing.CHUNKED)


def error_answer(status: int, kind: str, words: str = "It went wrong.") -> list[Step]:
    """An error as a whole answer: its name is in a header, as with every service of this protocol."""
    named = f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"
    return json_answer({"message": words}, status=status, headers=[("x-amzn-errortype", named)])


# --- a server that behaves ----------------------------------------------------------------------------------


def well_behaved(
    *blocks: Payload | str,
    tokens: Payload | None = None,
    credentials: Credentials = CREDENTIALS,
    region: str = REGION,
) -> Callable[[RecordedRequest], Script]:
    """A handler that serves Converse whole and streamed, to those who have the credentials or `API_KEY`."""

    def handle(request: RecordedRequest) -> Script:
        problem = find_problem(request, credentials, region, int(time.time()))
        if problem is not None:
            return error_answer(403, "InvalidSignatureException", problem)
        found = _PATH.fullmatch(request.path)
        if found is None:
            return error_answer(404, "UnknownOperationException", f"no such path: {request.path}")
        asked = request.json()
        if not asked.get("messages"):
            return error_answer(400, "ValidationException", "there are no messages")
        if unquote(found[1]) == "missing":
            return error_answer(404, "ResourceNotFoundException", "Could not resolve the foundation model.")
        made = converse(*blocks, tokens=tokens)
        return json_answer(made) if found[2] == "converse" else stream_answer(converse_events(made))

    return handle


def find_problem(request: RecordedRequest, credentials: Credentials, region: str, wall_s: int) -> str | None:
    """What is wrong with a request's signature, None if nothing is."""
    given = request.header("authorization") or ""
    if given == f"Bearer {API_KEY}":
        return None
    found = _AUTHORIZATION.fullmatch(given)
    if found is None:
        return "The request has no signature."
    key_id, _, signed_region, names, _ = found.groups()
    if key_id != credentials.access_key_id:
        return "The security token included in the request is invalid."
    if signed_region != region:
        return f"Credential should be scoped to a valid region: {region}."
    if (request.header("x-amz-security-token") or "") != credentials.session_token:
        return "The security token included in the request is invalid."
    if "host" not in names.split(";") or "x-amz-date" not in names.split(";"):
        return "'Host' and 'X-Amz-Date' must be signed."
    at_s = _read_time(request.header("x-amz-date") or "")
    if at_s is None or abs(at_s - wall_s) > SKEW_MAX_S:
        return "Signature expired."
    headers = [(name, request.header(name) or "") for name in names.split(";") if name not in _SIGNED_ANYWAY]
    scope = Scope(region=region, service="bedrock", wall_s=at_s)
    signed = sign_request(
        request.method, request.target, headers, bytes(request.body), credentials=credentials, scope=scope
    )
    if not hmac.compare_digest(dict(signed)["authorization"], given):
        return "The request signature we calculated does not match the signature you provided."
    return None


def _read_time(text: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(text, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return None


def _block_events(index: int, block: Payload, fragment_chars: int) -> list[bytes]:
    events: list[bytes] = []
    deltas: Sequence[Payload]
    if "toolUse" in block:
        call = block["toolUse"]
        start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
        events.append(event("contentBlockStart", {"contentBlockIndex": index, "start": start}))
        spelled = msgspec.json.encode(call["input"]).decode() if call["input"] else ""
        deltas = [{"toolUse": {"input": part}} for part in _cut(spelled, fragment_chars)]
    elif "reasoningContent" in block:
        thought = block["reasoningContent"]
        if "redactedContent" in thought:
            deltas = [{"reasoningContent": thought}]
        else:
            words = thought["reasoningText"]
            deltas = [{"reasoningContent": {"text": part}} for part in _cut(words["text"], fragment_chars)]
            deltas.append({"reasoningContent": {"signature": words["signature"]}})
    else:
        deltas = [{"text": part} for part in _cut(block["text"], fragment_chars)]
    for delta in deltas:
        events.append(event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta, "p": "abcd"}))
    return [*events, event("contentBlockStop", {"contentBlockIndex": index})]


def _cut(whole: str, size: int) -> list[str]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]
