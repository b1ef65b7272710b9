"""Errors of Google's as callers of chat see them, and what is read from their bodies."""

import json

import pytest
from gemini_side import TRANSLATOR

from forebay.testing.gemini import error, error_info, retry_info

TOO_LONG = "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576)."
ERRORS = [
    (400, "INVALID_ARGUMENT", "Bad.", "invalid_request_error", None),
    (400, "INVALID_ARGUMENT", TOO_LONG, "invalid_request_error", "context_length_exceeded"),
    (400, "FAILED_PRECONDITION", "Not here.", "invalid_request_error", None),
    (401, "UNAUTHENTICATED", "Who?", "authentication_error", "invalid_api_key"),
    (402, "RESOURCE_EXHAUSTED", "Pay.", "rate_limit_error", "insufficient_quota"),
    (403, "PERMISSION_DENIED", "No.", "permission_error", None),
    (404, "NOT_FOUND", "models/x is not found.", "not_found_error", "model_not_found"),
    (429, "RESOURCE_EXHAUSTED", "Quota exceeded.", "rate_limit_error", "rate_limit_exceeded"),
    (499, "CANCELLED", "Left.", "upstream_error", None),
    (500, "INTERNAL", "Oops.", "api_error", None),
    (503, "UNAVAILABLE", "Later.", "overloaded_error", None),
    (504, "DEADLINE_EXCEEDED", "Slow.", "timeout_error", None),
]


@pytest.mark.parametrize(("status", "name", "words", "kind", "code"), ERRORS)
def test_errors_keep_googles_words(status: int, name: str, words: str, kind: str, code: str | None) -> None:
    body = json.dumps(error(status, name, words)).encode()
    expected = {"error": {"message": words, "type": kind, "param": None, "code": code}}
    assert json.loads(TRANSLATOR.decode_error(status, body)) == expected
    assert json.loads(TRANSLATOR.decode_error(status, b"[" + body + b"]")) == expected  # of a stream


def test_a_key_that_is_not_valid_is_our_fault_though_it_is_told_with_400() -> None:
    refused = error(400, "INVALID_ARGUMENT", "API key not valid.", error_info("API_KEY_INVALID"))
    body = json.dumps(refused).encode()
    assert TRANSLATOR.read_status(400, body) == 401
    assert json.loads(TRANSLATOR.decode_error(401, body))["error"]["type"] == "authentication_error"
    assert TRANSLATOR.read_status(400, json.dumps(error(400, "INVALID_ARGUMENT")).encode()) == 400
    assert TRANSLATOR.read_status(503, b"<html>") == 503


@pytest.mark.parametrize(
    ("delay", "seconds"), [("22s", 22), ("10.689924287s", 11), ("0s", 0), ("soon", None), ("-3s", None)]
)
def test_when_to_come_again_is_read_from_the_body(delay: str, seconds: int | None) -> None:
    body = json.dumps(error(429, "RESOURCE_EXHAUSTED", "Q.", error_info("X"), retry_info(delay))).encode()
    assert TRANSLATOR.read_retry_after_s(body) == seconds
    assert TRANSLATOR.read_retry_after_s(b"<html>") is None
    assert TRANSLATOR.read_retry_after_s(b"[]") is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"error":"x"}', b"\xff"])
def test_what_is_no_error_of_googles_is_told_without_its_text(body: bytes) -> None:
    made = json.loads(TRANSLATOR.decode_error(502, body))["error"]
    assert made["type"] == "upstream_error"
    assert "502" in made["message"]
    assert "html" not in made["message"]
