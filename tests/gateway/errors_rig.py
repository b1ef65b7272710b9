"""What tests of errors stand on: a request, and what an answer that refuses it must look like."""

from typing import Any

import httpx

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def assert_error(answer: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    told: dict[str, Any] = body["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert (told["code"], told["param"]) == (code, param)
    assert told["message"]
    return told
