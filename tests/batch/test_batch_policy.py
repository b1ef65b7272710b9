"""What becomes of a batch and of a line: decisions alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.batch.model import Status
from forebay.batch.policy import (
    BACKOFF_MAX_S,
    FINAL,
    RETRY_AFTER_MAX_S,
    Again,
    Answered,
    Happening,
    KeyUnknown,
    Refused,
    Reply,
    Window,
    judge,
    move,
)

happenings = st.lists(st.sampled_from(Happening), max_size=12)


@given(happenings)
def test_what_has_ended_stays_so_and_no_state_comes_back(happened: list[Happening]) -> None:
    seen = [Status.VALIDATING]
    for each in happened:
        after = move(seen[-1], each)
        assert not (seen[-1] in FINAL and after is not None)
        if after is not None:
            seen.append(after)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("status", [status for status in Status if status not in FINAL])
def test_every_state_leads_to_an_end(status: Status) -> None:
    reached, todo = set(), [status]
    while todo:
        now = todo.pop()
        reached.add(now)
        todo += [
            after for each in Happening if (after := move(now, each)) is not None and after not in reached
        ]
    assert reached & FINAL


replies = st.builds(
    Reply,
    status=st.sampled_from([0, 200, 201, 400, 401, 403, 404, 408, 409, 413, 429, 499, 500, 502, 503, 504]),
    retry_after_s=st.none() | st.floats(0, 1e6),
    was_sent=st.booleans(),
)


@given(replies, st.integers(0, 20), st.integers(0, 2000), st.integers(1, 10))
def test_every_reply_has_one_verdict_and_every_wait_a_bound(
    reply: Reply, tries: int, waits: int, most: int
) -> None:
    verdict = judge(reply, tries, waits, most)
    match verdict:
        case Answered():
            assert 200 <= reply.status < 300
        case KeyUnknown():
            assert reply.status == 401
        case Again(after_s):
            assert 0 <= after_s <= max(BACKOFF_MAX_S, RETRY_AFTER_MAX_S)
            if verdict.counts:
                assert tries + 1 < most
        case Refused():
            assert reply.status not in (200, 201)


@given(replies.filter(lambda reply: reply.status >= 400 and reply.status != 401), st.integers(1, 10))
def test_a_line_that_is_refused_for_itself_is_never_asked_for_ever(reply: Reply, most: int) -> None:
    tries = waits = 0
    for _ in range(100):
        match judge(reply, tries, waits, most):
            case Again(counts=counts):
                tries, waits = tries + counts, waits + 1
            case _:
                return
    is_full = reply.status == 503 or (reply.status == 429 and reply.retry_after_s is not None)
    assert is_full or not reply.was_sent, reply


@given(st.integers(1, 50), st.lists(st.booleans()))
def test_a_window_stays_within_its_bounds(most: int, went_well: list[bool]) -> None:
    window = Window(most)
    for each in went_well:
        before = window.size
        if each:
            window.succeed()
            assert window.size == min(most, before + 1)
        else:
            window.shrink()
            assert window.size == max(1, before // 2)
        assert 1 <= window.size <= most
