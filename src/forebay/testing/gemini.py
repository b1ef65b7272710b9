"""Payloads of Google's Gemini API as it sends them, and a handler that behaves as it and Vertex AI do.

Payloads are plain dicts, so that a test can bend them; they are made after the public documentation.

    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        target = Target(dialect="gemini", url=f"{upstream.origin}/v1beta", api_key="env:GEMINI", ...)
"""

import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

import msgspec

from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import ToolCall
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Step

Payload = dict[str, Any]
ID = "test-response"
API_KEY = "AIzaEXAMPLE0123456789-forebay"
VERTEX_BASE = "/v1/projects/proj/locations/europe-west4/publishers/google"
_PATH = re.compile(
    rf"(/v1|/v1beta|{VERTEX_BASE})/models/([^/:]+):(generateContent|streamGenerateContent|batchEmbedContents)"
)
_KNOWN = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
    | {"cachedContent", "serviceTier", "requests"}
)


# --- payloads -----------------------------------------------------------------------------------------------


def usage(
    prompt: int = 7, candidates: int = 5, *, cached: int = 0, thoughts: int = 0, tool_use: int = 0
) -> Payload:
    """`usageMetadata`; counts of 0 are left out, as on the wire.  `prompt` holds what was cached."""
    counts = {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": cached,
        "candidatesTokenCount": candidates,
        "toolUsePromptTokenCount": tool_use,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + candidates + tool_use + thoughts,
    }
    return {name: count for name, count in counts.items() if count}


def text(words: str, signature: str | None = None) -> Payload:
    return _sign({"text": words}, signature)


def thought(words: str, signature: str | None = None) -> Payload:
    return _sign({"text": words, "thought": True}, signature)


def function_call(call: ToolCall, signature: str | None = None, *, with_id: bool = True) -> Payload:
    made: Payload = {"id": call.id} if with_id else {}
    made |= {"name": call.name, "args": msgspec.json.decode(call.arguments or "{}")}
    return _sign({"functionCall": made}, signature)


def candidate(*parts: Payload, reason: str | None = "STOP", index: int = 0) -> Payload:
    made: Payload = {"content": {"parts": list(parts), "role": "model"}}
    if reason is not None:
        made["finishReason"] = reason
    return made | ({"index": index} if index else {})


def response(*parts: Payload, reason: str | None = "STOP", tokens: Payload | None = None) -> Payload:
    """A whole answer of one candidate; "Hello" without parts."""
    return {
        "candidates": [candidate(*(parts or (text("Hello"),)), reason=reason)],
        "usageMetadata": tokens or usage(),
        "modelVersion": "gemini-test",
        "responseId": ID,
    }


def blocked(reason: str = "PROHIBITED_CONTENT") -> Payload:
    """An answer to a prompt that was blocked."""
    return {
        "promptFeedback": {"blockReason": reason},
        "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 7},
        "modelVersion": "gemini-test",
        "responseId": ID,
    }


def event(payload: Payload) -> bytes:
    """One server-sent event; lines end with CR LF at Google."""
    return b"data: " + msgspec.json.encode(payload) + b"\r\n\r\n"


def events(whole: Payload, *, fragment_chars: int = 4) -> list[bytes]:
    """The events of the stream that brings the same answer; the last has the reason and all of the usage."""
    made = []
    usage_so_far = {"promptTokenCount": whole["usageMetadata"].get("promptTokenCount", 0)}
    rest = {name: whole[name] for name in ("modelVersion", "responseId")}
    for each in whole["candidates"]:
        at = {"index": each["index"]} if each.get("index") else {}
        for part in each["content"]["parts"]:
            for piece in _cut(part, fragment_chars):
                content = {"parts": [piece], "role": "model"}
                made.append({"candidates": [{"content": content} | at], "usageMetadata": usage_so_far} | rest)
    last = [
        {"content": {"parts": [{"text": ""}], "role": "model"}}
        | {name: each[name] for name in ("finishReason", "finishMessage", "index") if name in each}
        for each in whole["candidates"]
    ]
    made.append({"candidates": last, "usageMetadata": whole["usageMetadata"]} | rest)
    return [event(payload) for payload in made]


def error(status: int, name: str, words: str = "It went wrong.", *details: Payload) -> Payload:
    made: Payload = {"code": status, "message": words, "status": name}
    return {"error": made | ({"details": list(details)} if details else {})}


def retry_info(delay: str = "22s") -> Payload:
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


def error_info(reason: str) -> Payload:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": {"service": "generativelanguage.googleapis.com"},
    }


def error_answer(status: int, name: str, words: str = "It went wrong.", *details: Payload) -> list[Step]:
    return json_answer(error(status, name, words, *details), status=status)


# --- a server that behaves ----------------------------------------------------------------------------------


def well_behaved(
    *parts: Payload | str, tokens: Payload | None = None, secret: str = API_KEY
) -> Callable[[RecordedRequest], Script]:
    """A handler of both addresses, which knows one key, serves whole and streamed, and embeds texts."""
    made = response(*(text(part) if isinstance(part, str) else part for part in parts), tokens=tokens)

    def handle(request: RecordedRequest) -> Script:
        found = _PATH.fullmatch(request.path)
        if found is None:
            return error_answer(404, "NOT_FOUND", f"no such path: {request.path}")
        if problem := _refuse_secret(request, secret, is_vertex=found[1] == VERTEX_BASE):
            return problem
        asked: Payload = request.json()
        if unknown := asked.keys() - _KNOWN:
            words = f'Invalid JSON payload received. Unknown name "{min(unknown)}": Cannot find field.'
            return error_answer(400, "INVALID_ARGUMENT", words)
        if unquote(found[2]) == "missing":
            return error_answer(404, "NOT_FOUND", "models/missing is not found for API version v1beta.")
        match found[3]:
            case "batchEmbedContents":
                embeddings = [{"values": [float(at), 0.5]} for at, _ in enumerate(asked["requests"])]
                return json_answer({"embeddings": embeddings, "usageMetadata": {"promptTokenCount": 6}})
            case "streamGenerateContent":
                if request.target.endswith("?alt=sse"):
                    return sse_answer(events(made))
                return error_answer(400, "INVALID_ARGUMENT", "this server streams events alone")
            case _:
                return json_answer(made)

    return handle


def _refuse_secret(request: RecordedRequest, secret: str, *, is_vertex: bool) -> list[Step] | None:
    if is_vertex:
        if request.header("authorization") == f"Bearer {secret}":
            return None
        words = "Request had invalid authentication credentials."
        return error_answer(401, "UNAUTHENTICATED", words, error_info("ACCESS_TOKEN_TYPE_UNSUPPORTED"))
    if request.header("x-goog-api-key") == secret:
        return None
    words = "API key not valid. Please pass a valid API key."
    return error_answer(400, "INVALID_ARGUMENT", words, error_info("API_KEY_INVALID"))


def _sign(part: Payload, signature: str | None) -> Payload:
    return part if signature is None else part | {"thoughtSignature": signature}


def _cut(part: Payload, size: int) -> Iterable[Payload]:
    """The pieces of a part; the signature comes with the last."""
    words = part.get("text", "")
    if len(words) <= size:
        yield part
        return
    begun = {name: value for name, value in part.items() if name != "thoughtSignature"}
    starts = range(0, len(words), size)
    for at in starts:
        piece = begun | {"text": words[at : at + size]}
        yield _sign(piece, part.get("thoughtSignature")) if at == starts[-1] else piece
