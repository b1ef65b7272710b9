"""Limits over real workers and callers: exact, told in headers, not lost with a worker or the authority."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from limits_rig import Authority, ask, ask_many, workers
from raw_caller import RawCaller

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import chat_completion, chat_stream, usage, well_behaved
from forebay.testing.steps import Sleep, Stall
from forebay.testing.threaded import ThreadedUpstream

REQUESTS = Limit(
    id="r", owner="team test", measure=Measure.REQUESTS, amount=25, period=Period.MONTH, kind=Kind.CALENDAR
)
TOKENS = Limit(
    id="t", owner="key k1", measure=Measure.TOTAL_TOKENS, amount=1000, period=Period.MONTH, kind=Kind.CALENDAR
)
PLACES = Limit(id="c", owner="project test", measure=Measure.CONCURRENT, amount=3)


@pytest.mark.parametrize("stream", [False, True])
def test_exactly_the_amount_is_served_by_all_workers_together(tmp_path: Path, stream: bool) -> None:
    with ThreadedUpstream(well_behaved("Hello")) as upstream, Authority(tmp_path, (REQUESTS,)) as authority:
        with workers(tmp_path, 3, upstream.url, (REQUESTS,)) as started:
            answers = ask_many(started[0].url, 60, stream=stream)
            assert sorted(answer.status_code for answer in answers) == [200] * 25 + [429] * 35
            assert len(upstream.requests) == 25
            refused = next(answer for answer in answers if answer.status_code == 429)
            error = refused.json()["error"]
            assert error["code"] == "rate_limit_exceeded"
            assert "25 requests a month of team test" in error["message"]
            assert int(refused.headers["retry-after"]) > 0
            assert refused.headers["x-ratelimit-limit-requests"] == "25"
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            served = next(answer for answer in answers if answer.status_code == 200)
            assert 0 <= int(served.headers["x-ratelimit-remaining-requests"]) < 25
            assert served.headers["x-ratelimit-reset-requests"].endswith("s")
            started[0].until(lambda: len(started[0].records()) == 60)
            assert {record.error for record in started[0].records() if record.status == 429} == {
                "rate_limit_exceeded"
            }
            assert authority.left()["r"] == 0


def test_what_an_answer_cost_is_what_the_limit_loses(tmp_path: Path) -> None:
    answers = [
        json_answer(chat_completion(tokens=usage(30, 20))),
        sse_answer(chat_stream(["a"], tokens=usage(30, 70))),
    ]
    limits = (TOKENS, PLACES)
    with ThreadedUpstream(lambda request: answers[b'"stream":true' in request.body]) as upstream:
        with Authority(tmp_path, limits) as authority, workers(tmp_path, 2, upstream.url, limits) as started:
            url = started[0].url
            for number in range(7):  # one is refused while a busy worker is slow to return what it holds
                started[0].until(lambda: ask(url, max_tokens=400, stream=number > 3).status_code == 200)  # noqa: B023
            started[0].until(lambda: authority.left() == {"t": 1000 - 4 * 50 - 3 * 100, "c": 3})
            assert ask(url, max_tokens=600).status_code == 429, "it might take more than there is"


def test_a_caller_that_leaves_gives_back_its_place_and_no_token_that_nobody_counted(tmp_path: Path) -> None:
    limits = (PLACES, TOKENS)
    with ThreadedUpstream([Stall()]) as upstream:
        with (
            Authority(tmp_path, limits) as authority,
            workers(tmp_path, 1, upstream.url, limits) as (worker,),
        ):
            for number in range(6):
                with RawCaller(worker.port) as caller:
                    caller.post("chat/completions", {"model": "m", "messages": [], "max_tokens": 50})
                    upstream.wait_requests(number + 1)
            worker.until(lambda: authority.left()["c"] == 3)
            left = authority.left()["t"]
            assert left <= 1000 - 6 * 50
            assert ask(worker.url, max_tokens=left + 1).status_code == 429


def test_a_worker_that_is_killed_frees_its_places_and_spends_nothing_twice(tmp_path: Path) -> None:
    limits = (PLACES, REQUESTS)
    with ThreadedUpstream([Sleep(30)]) as upstream, Authority(tmp_path, limits) as authority:
        with workers(tmp_path, 1, upstream.url, limits) as (worker,):
            with ThreadPoolExecutor(3) as pool:
                waiting = [pool.submit(ask, worker.url) for _ in range(3)]
                upstream.wait_requests(3)
                assert ask(worker.url).status_code == 429
                worker.kill()
                for each in waiting:
                    assert isinstance(each.exception(), httpx.HTTPError)
        with workers(tmp_path, 1, upstream.url, limits) as (worker,):
            worker.until(lambda: authority.left()["c"] == 3)
            assert authority.left()["r"] <= 22


def test_an_authority_that_is_killed_and_comes_back_has_forgotten_nothing(tmp_path: Path) -> None:
    with ThreadedUpstream(well_behaved("Hello")) as upstream, ExitStack() as stack:
        first = Authority(tmp_path, (REQUESTS,)).__enter__()
        started = stack.enter_context(workers(tmp_path, 2, upstream.url, (REQUESTS,)))
        url = started[0].url
        assert [answer.status_code for answer in ask_many(url, 10)] == [200] * 10
        first.__exit__()
        away = [answer.status_code for answer in ask_many(url, 40)]
        assert set(away) <= {200, 429}
        stack.enter_context(Authority(tmp_path, (REQUESTS,)))
        served = 10 + away.count(200)
        # Each worker goes on with its part of what it last heard to be left, which may be more than there is.
        assert served <= 10 + 25 + 2
        started[0].until(lambda: ask(url).status_code == 429 or served == 25)
        total = len(upstream.requests)
        assert total <= max(served, 25) + 2, "what was let in meanwhile counts"
        assert [answer.status_code for answer in ask_many(url, 20)].count(200) <= max(0, 25 - total)
