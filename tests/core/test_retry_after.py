"""All forms in which targets say when to come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.retry_after import MAX_S, read_retry_after

NOW = 1_792_411_200.0  # Mon, 19 Oct 2026 12:00:00 GMT

FORMS: list[tuple[dict[str, str], str]] = [
    ({"retry-after": "5"}, "5"),
    ({"Retry-After": " 17 "}, "17"),
    ({"retry-after": "1.2"}, "2"),
    ({"retry-after": "0"}, "0"),
    ({"retry-after": "0.01"}, "1"),
    ({"retry-after": "99999999999"}, str(MAX_S)),
    ({"retry-after": "9223372036854775807"}, str(MAX_S)),  # the longest that some languages can say
    ({"retry-after": "9" * 90}, str(MAX_S)),
    ({"retry-after": "0.3333333333333333148"}, "1"),
    ({"retry-after": "Mon, 19 Oct 2026 12:00:30 GMT"}, "30"),
    ({"retry-after": "Monday, 19-Oct-26 12:00:30 GMT"}, "30"),
    ({"retry-after": "Mon Oct 19 12:00:30 2026"}, "30"),
    ({"retry-after": "Mon, 19 Oct 2026 11:00:00 GMT"}, "0"),
    ({"retry-after": "Mon, 19 Oct 2026 09:00:05 GMT", "date": "Mon, 19 Oct 2026 09:00:00 GMT"}, "5"),
    ({"retry-after-ms": "250"}, "1"),
    ({"retry-after-ms": "2500", "retry-after": "9"}, "3"),
    ({"retry-after": "1s"}, "1"),
    ({"x-ratelimit-reset-requests": "1s"}, "1"),
    ({"x-ratelimit-reset-tokens": "6m0s"}, "360"),
    ({"x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "1m30.5s"}, "91"),
    ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "10"}, ""),
    ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, "360"),
    ({"x-ratelimit-reset-requests": "2h", "retry-after": "3"}, "3"),
    ({"x-ratelimit-reset-requests": "12"}, "12"),
    ({"x-ratelimit-reset-requests": str(int(NOW) + 40)}, "40"),
    ({"anthropic-ratelimit-tokens-reset": "2026-10-19T12:00:20Z"}, "20"),
    ({"anthropic-ratelimit-tokens-reset": "2026-10-19T12:00:20"}, ""),
    ({}, ""),
]  # fmt: skip
NOTHING = [
    "",
    "soon",
    "-5",
    "+5",
    "5 s",
    "1e3",
    "0x10",
    "nan",
    "inf",
    "٣",
    "Mon, 99 Foo 2026 00:00:00 GMT",
    ",,",
]


@pytest.mark.parametrize(("headers", "seconds"), FORMS)
def test_each_form(headers: dict[str, str], seconds: str) -> None:
    raw = {name.encode(): value.encode() for name, value in headers.items()}
    assert read_retry_after(429, raw, NOW) == seconds.encode()


@pytest.mark.parametrize("value", NOTHING)
def test_what_is_no_form_says_nothing(value: str) -> None:
    for name in (b"retry-after", b"retry-after-ms", b"x-ratelimit-reset-requests"):
        assert read_retry_after(429, {name: value.encode()}, NOW) == b""


def test_a_used_up_quota_explains_a_429_alone() -> None:
    assert read_retry_after(500, {b"x-ratelimit-reset-requests": b"5s"}, NOW) == b""
    assert read_retry_after(503, {b"retry-after": b"5"}, NOW) == b"5"


NAMES = [b"retry-after", b"retry-after-ms", b"date", b"x-ratelimit-reset-a", b"anthropic-ratelimit-b-reset"]


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=40) | st.from_regex(rb"[0-9smhd.:TZ-]+")))
def test_whatever_comes_the_answer_is_short_digits_or_nothing(headers: dict[bytes, bytes]) -> None:
    found = read_retry_after(429, headers, NOW)
    assert found == b"" or (found.isdigit() and 0 <= int(found) <= MAX_S)
