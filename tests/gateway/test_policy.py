"""The decisions as tables and properties: what comes after an attempt, and who may make a request."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core import errors
from forebay.core.errors import Next, TargetError
from forebay.core.keys import KeyEntry
from forebay.core.routes import Endpoint
from forebay.gateway.policy.admit import explain_refusal
from forebay.gateway.policy.attempt import (
    ELSEWHERE_STATUSES,
    Attempts,
    Step,
    choose_after_error,
    choose_after_status,
)
from forebay.testing.gateway import make_route

KINDS: list[type[TargetError]] = [
    errors.UpstreamError, errors.ConnectFailed, errors.ConnectTimeout, errors.ConnectionsExhausted,
    errors.FirstTokenTimeout, errors.IdleTimeout, errors.TotalTimeout, errors.StaleConnection,
    errors.UpstreamReset, errors.UpstreamTruncated, errors.UpstreamProtocol, errors.UpstreamRedirect,
    errors.UpstreamCredentials, errors.TargetMisconfigured, errors.AnswerTooLarge,
]  # fmt: skip


def make_entry(**fields: Any) -> KeyEntry:
    return KeyEntry(**({"id": "k", "digest": b"", "name": "n", "prefix": "fb-"} | fields))


def attempts(
    *, made: int = 1, limit: int = 3, left: int = 1, content_sent: bool = False, resent: bool = False
) -> Attempts:
    return Attempts(made=made, limit=limit, targets_left=left, content_sent=content_sent, resent=resent)


@pytest.mark.parametrize(
    ("kind", "alone", "with_another"),
    [
        (errors.StaleConnection, Step.SAME, Step.SAME),
        (errors.AnswerTooLarge, Step.STOP, Step.STOP),
        *[
            (kind, Step.STOP, Step.NEXT)
            for kind in KINDS
            if kind not in (errors.StaleConnection, errors.AnswerTooLarge)
        ],
    ],
)
def test_after_an_error(kind: type[TargetError], alone: Step, with_another: Step) -> None:
    assert choose_after_error(attempts(left=0), kind("x")) is alone
    assert choose_after_error(attempts(left=1), kind("x")) is with_another


@pytest.mark.parametrize("status", range(300, 600))
def test_after_a_status(status: int) -> None:
    elsewhere = status in {401, 403, 408, 429, 500, 502, 503, 504, 529}
    assert choose_after_status(attempts(), status) is (Step.NEXT if elsewhere else Step.STOP)
    assert choose_after_status(attempts(left=0), status) is Step.STOP
    assert choose_after_status(attempts(made=3), status) is Step.STOP
    assert choose_after_status(attempts(content_sent=True), status) is Step.STOP


def test_a_stale_connection_is_replaced_once_and_then_counts() -> None:
    stale = errors.StaleConnection("x")
    assert choose_after_error(attempts(made=3, left=0), stale) is Step.SAME, "it costs no attempt"
    assert choose_after_error(attempts(resent=True), stale) is Step.NEXT
    assert choose_after_error(attempts(resent=True, left=0), stale) is Step.STOP


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_follows_once_content_is_out(kind: type[TargetError]) -> None:
    for made, left, resent in product((1, 2), (0, 5), (False, True)):
        known = attempts(made=made, left=left, resent=resent, content_sent=True)
        assert choose_after_error(known, kind("x")) is Step.STOP


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.lists(st.sampled_from([*KINDS, 200, 400, 404, 429, 500, 503, "content"]), min_size=20, max_size=20),
)
def test_any_run_of_luck_stays_within_the_limits(
    targets: int, limit: int, luck: list[type[TargetError] | int | str]
) -> None:
    """Carries the decisions out as the shell does."""
    tried = [0] * targets
    known = Attempts(made=0, limit=limit, targets_left=targets)
    step, at, sends = Step.NEXT, -1, 0
    for outcome in luck:
        if step is Step.NEXT:
            at += 1
            known.made += 1
            known.targets_left -= 1
            known.resent = False
        elif step is Step.SAME:
            known.resent = True
        else:
            break
        tried[at] += 1
        sends += 1
        if outcome == "content":
            known.content_sent = True
            step = choose_after_error(known, errors.UpstreamReset("x"))
            assert step is Step.STOP
        elif isinstance(outcome, int):
            step = choose_after_status(known, outcome) if outcome != 200 else Step.STOP
            if step is Step.NEXT:
                assert outcome in ELSEWHERE_STATUSES
        else:
            assert isinstance(outcome, type)
            error = outcome("x")
            step = choose_after_error(known, error)
            if step is Step.SAME:
                assert error.next is Next.RETRY_HERE
    assert step is Step.STOP, "it comes to an end"
    assert known.made <= min(limit, targets)
    assert all(count <= 2 for count in tried)
    assert sends <= 2 * min(limit, targets)
    assert tried == sorted(tried, key=bool, reverse=True), "in order, and none is skipped"


# --- admit --------------------------------------------------------------------------------------------------

NAMES = st.text(alphabet="abAB-/:.é*?[]", min_size=1, max_size=8)


@given(
    NAMES,
    st.sampled_from(list(Endpoint)),
    st.lists(st.sampled_from(list(Endpoint)), unique=True, min_size=1),
    st.frozensets(NAMES, max_size=4),
    st.lists(st.sampled_from(list(Endpoint)), unique=True),
    st.booleans(),
    st.booleans(),
)
def test_a_refusal_has_the_reason_that_comes_first(
    model: str,
    endpoint: Endpoint,
    served: list[Endpoint],
    allowed: frozenset[str],
    endpoints: list[Endpoint],
    exists: bool,
    waits: bool,
) -> None:
    urls = () if waits else ("http://a/v1",)
    route = make_route(model, *urls, endpoints=served) if exists else None
    key = make_entry(models=tuple(allowed), endpoints=tuple(endpoints), regions=("eu",))
    error = explain_refusal(model, endpoint, route, key, allowed)
    assert error.param == (None if isinstance(error, errors.EndpointForbidden) else "model")
    if not exists:
        assert isinstance(error, errors.ModelNotFound)
    elif not key.allows(model):
        assert isinstance(error, errors.Forbidden)
    elif endpoint not in served:
        assert isinstance(error, errors.EndpointUnsupported)
        assert all(path.value in error.message for path in served)
    elif endpoints and endpoint not in endpoints:
        assert isinstance(error, errors.EndpointForbidden)
    elif waits:
        assert isinstance(error, errors.EngineNotRunning)
    else:
        assert isinstance(error, errors.TargetForbidden)
        assert "eu" in error.message


def test_a_refusal_names_few_models_and_none_that_the_key_may_not_call() -> None:
    allowed = frozenset(f"model-{number:03}" for number in range(500))
    error = explain_refusal("x", Endpoint.CHAT, None, make_entry(), allowed)
    assert "model-000" in error.message
    assert len(error.message) < 300
    assert "none" in explain_refusal("x", Endpoint.CHAT, None, make_entry(), frozenset()).message


def test_a_refusal_for_want_of_targets_says_what_the_key_is_bound_to() -> None:
    route = make_route("m", "http://a/v1")
    for bounds, said in (
        ({"regions": ("eu", "us")}, "only to the regions eu, us"),
        ({"tier_max": "autoscaled"}, "no further than to the tier autoscaled"),
        ({"regions": ("eu",), "tier_max": "quantized"}, "eu and no further than to the tier quantized"),
    ):
        error = explain_refusal("m", Endpoint.CHAT, route, make_entry(**bounds), {})
        assert isinstance(error, errors.TargetForbidden)
        assert said in error.message


@pytest.mark.parametrize(
    ("patterns", "model", "allowed"),
    [
        (("*",), "any/thing:1", True),
        ((), "m", False),
        (("m",), "m", True),
        (("m",), "M", False),
        (("m",), "mm", False),
        (("gpt-*", "m"), "gpt-4", True),
        (("org/*",), "org/a/b", True),
        (("org/*",), "organ/a", False),
        (("m?",), "m1", True),
        (("[m",), "[m", True),
    ],
)
def test_what_a_key_may_call(patterns: tuple[str, ...], model: str, allowed: bool) -> None:
    entry = make_entry(models=patterns)
    assert entry.allows(model) is allowed
