"""What providers say of their quotas in the headers of answers, in all forms, and what says nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.rate_limits import RESET_GUESS_S, read_quota_used
from forebay.core.retry_after import MAX_S

NOW = 1_792_411_200.0  # Mon, 19 Oct 2026 12:00:00 GMT

FORMS: list[tuple[dict[str, str], tuple[float, float] | None]] = [
    (
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-tokens": "30000",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        (0.8, 360.0),
    ),
    ({"X-RateLimit-Limit-Tokens": "100", "X-RateLimit-Remaining-Tokens": "25"}, (0.75, RESET_GUESS_S)),
    (
        {
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "5",
            "anthropic-ratelimit-requests-reset": "2026-10-19T12:00:20Z",
            "anthropic-ratelimit-input-tokens-limit": "100000",
            "anthropic-ratelimit-input-tokens-remaining": "100000",
        },
        (0.9, 20.0),
    ),
    (
        {
            "anthropic-ratelimit-tokens-limit": "10",
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-tokens-reset": "2026-10-19T09:00:05Z",
            "date": "Mon, 19 Oct 2026 09:00:00 GMT",
        },
        (1.0, 5.0),
    ),
    ({"x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "12"}, (0.0, RESET_GUESS_S)),
    (
        {
            "x-ratelimit-limit-tokens": "10",
            "x-ratelimit-remaining-tokens": "5",
            "x-ratelimit-reset-tokens": "9" * 9 + "h",
        },
        (0.5, float(MAX_S)),
    ),
    ({"x-ratelimit-remaining-requests": "3"}, None),
    ({"x-ratelimit-limit-requests": "0", "x-ratelimit-remaining-requests": "0"}, None),
    ({"x-ratelimit-limit-requests": "many", "x-ratelimit-remaining-requests": "-1"}, None),
    ({"x-ratelimit-limit-requests": "9" * 400, "x-ratelimit-remaining-requests": "9" * 400}, None),
    ({}, None),
]


def encode(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


@pytest.mark.parametrize(("headers", "used"), FORMS)
def test_the_quota_that_is_used_up_the_most_is_read(
    headers: dict[str, str], used: tuple[float, float] | None
) -> None:
    found = read_quota_used(encode(headers), NOW)
    assert found == (None if used is None else pytest.approx(used))


NAMES = st.sampled_from(
    [
        f"{prefix}{part}"
        for prefix in ("x-ratelimit-remaining-", "x-ratelimit-limit-", "x-ratelimit-reset-")
        for part in ("requests", "tokens")
    ]
    + [f"anthropic-ratelimit-tokens-{what}" for what in ("limit", "remaining", "reset")]
    + ["date"]
)


@given(
    st.dictionaries(
        NAMES, st.text(st.characters(max_codepoint=255), max_size=80) | st.integers(0, 200).map(str)
    )
)
def test_whatever_headers_hold_it_is_a_share_or_nothing(headers: dict[str, str]) -> None:
    found = read_quota_used({name.encode(): value.encode("latin-1") for name, value in headers.items()}, NOW)
    if found is not None:
        used, reset_s = found
        assert 0 <= used <= 1
        assert 0 <= reset_s <= MAX_S
