"""Known faults of gateways in limits, and their neighbours, over real workers; see `docs/testing.md`."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from faults_scene import MONTH, OWNERS, STREAMS, WAYS, Scene, good, scene, tokens_of
from gateway_stage import Stage
from limits_rig import Authority, ask, ask_many, workers
from raw_caller import RawCaller

from forebay.core.events import Outcome, Tokens, UsageSource
from forebay.core.limits import Limit, Measure, Period, Weights, WhenAway
from forebay.testing.answers import chunk, json_answer, sse_answer, sse_head
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.openai import (
    chat_completion,
    chat_stream,
    completion,
    embeddings,
    error_answer,
    rate_limited,
    usage,
)
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Close, Gate, Reset, Script, Send, Stall, Wait
from forebay.testing.threaded import ThreadedUpstream
from forebay.testing.upstream import Answer

__all__ = ["scene"]


# --- L1: slots ----------------------------------------------------------------------------------------------

#: How three requests may fail: the model that they name, and what the upstream does.
FAILURES: dict[str, tuple[str, Answer]] = {
    "the upstream times out": ("hasty", [Stall()]),
    "the upstream resets": ("hasty", [Reset()]),
    "the upstream closes": ("hasty", [Close()]),
    "the upstream fails": ("hasty", error_answer(500)),
    "the upstream is busy": ("hasty", rate_limited()),
    "the upstream is mute behind its head": ("hasty", [*sse_head(), Stall()]),
    "nobody listens": ("dead", []),
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("owner", OWNERS[::2])
def test_L1_slots_come_back_however_requests_fail(
    scene: Scene, upstream: Stage, owner: str, how: str
) -> None:
    key = f"fb-test-of-{owner}"
    model, upstream.answer = FAILURES[how]
    for path, stream in WAYS:
        failed = ask(scene.url, path, key=key, model=model, stream=stream, max_tokens=9)
        assert failed.status_code >= 400, failed.text
        assert "the limit of" not in failed.text
    upstream.answer = good
    for path, stream in WAYS:
        served = ask(scene.url, path, key=key, stream=stream, max_tokens=9)
        assert served.status_code == 200, served.text
    scene.wait_left(owner, places=2)


@pytest.mark.parametrize("moment", ["before the answer", "in mid stream"])
@pytest.mark.parametrize("owner", OWNERS)
def test_L1_slots_come_back_from_callers_that_leave(
    scene: Scene, upstream: Stage, owner: str, moment: str
) -> None:
    key = f"fb-test-of-{owner}"
    events = chat_stream(["a", "b"])[:3]
    upstream.answer = (
        [Stall()] if moment == "before the answer" else [*sse_head(), *map(chunk, events), Stall()]
    )
    for number in range(1, 4):
        with RawCaller(scene.gateway.port) as caller:
            body = {"model": "m", "messages": [], "stream": moment == "in mid stream"}
            caller.post("chat/completions", body, headers=(f"authorization: Bearer {key}",))
            request = upstream.wait_request(number)
            if moment == "in mid stream":
                caller.read_until(b'"b"')
        upstream.wait_closed(request)
    upstream.answer = good
    scene.gateway.until(lambda: ask(scene.url, key=key).status_code == 200)
    scene.wait_left(owner, places=2)


def test_L1_a_third_request_finds_no_slot_while_two_run(scene: Scene, upstream: Stage) -> None:
    gate = Gate()
    upstream.answer = [Wait(gate), *json_answer(chat_completion())]
    key = "fb-test-of-team default"
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(ask, scene.url, key=key) for _ in range(2)]
        upstream.wait_request(2)
        assert ask(scene.url, key=key).status_code == 429
        gate.open()
        assert [each.result().status_code for each in running] == [200, 200]
    scene.wait_left("team default", places=2)


# --- L2: many at once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "path", "stream"),
    [*((2, path, stream) for path, stream in WAYS), *((n, *WAYS[1]) for n in (1, 4))],
)
def test_L2_parallel_requests_do_not_exceed_a_limit_whatever_the_processes(
    tmp_path: Path, processes: int, path: str, stream: bool
) -> None:
    """20 at once of 600 tokens each under a limit of 1,000: one is let in, and no more is ever used."""
    limit = tokens_of("team default", 1000)
    prompt = {"input": "x" * 2400} if path == "embeddings" else {"max_tokens": 560}
    gate = Gate()

    def answer(request: RecordedRequest) -> Script:
        return [Wait(gate), *use_tokens(path, stream, 600)]

    with ThreadedUpstream(answer) as upstream, Authority(tmp_path, (limit,)) as authority:
        with workers(tmp_path, processes, upstream.url, (limit,)) as started, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask_many, started[0].url, 20, path, stream=stream, **prompt)
            upstream.wait_requests(1)
            with suppress(TimeoutError):  # what is asserted below says more
                started[0].until(lambda: len(started[0].records()) >= 19, 30)
            gate.open()
            statuses = [each.status_code for each in asked.result()]
            assert sorted(statuses) == [200] + [429] * 19
            started[0].until(lambda: authority.left()[limit.id] == 400)
            assert ask(started[0].url, path, stream=stream, **prompt).status_code == 429


def use_tokens(path: str, stream: bool, total: int, prompt: int = 40) -> Script:
    """An answer that took so many tokens."""
    if path == "embeddings":
        return json_answer(embeddings([[1.0]], prompt_tokens=total))
    counted = usage(prompt, total - prompt)
    if stream:
        return sse_answer(STREAMS[path](["a"], tokens=counted))
    whole = chat_completion if path == "chat/completions" else completion
    return json_answer(whole("a", tokens=counted))


@pytest.mark.parametrize("processes", [1, 3])
def test_L2_what_answers_take_beyond_their_reservation_is_the_only_excess(
    tmp_path: Path, processes: int
) -> None:
    """Callers name no length, and answers take four times the guess: the excess is that of those let in."""
    limit = tokens_of("key k1", 2000)
    reserved, used = 256 + 10, 1024
    with ThreadedUpstream(lambda _: use_tokens("chat/completions", False, used)) as upstream:
        with Authority(tmp_path, (limit,)) as authority:
            with workers(tmp_path, processes, upstream.url, (limit,)) as started:
                statuses = [each.status_code for each in ask_many(started[0].url, 20)]
                served = statuses.count(200)
                assert 1 <= served <= 2000 // (reserved - 10) + 1
                # All is told to the authority, and nothing more is let in until time has paid it off.
                started[0].until(lambda: authority.left()[limit.id] == 2000 - served * used)
                assert ask(started[0].url).status_code == (429 if served >= 2 else 200)


# --- L4: classes of tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_L4_classes_are_disjoint_in_the_record_and_under_weights(tmp_path: Path, stream: bool) -> None:
    """OpenAI's prompt count includes what was cached, and its completion count includes reasoning."""
    counted = usage(100, 50, cached=80, reasoning=30)
    weighted = Limit(
        id="w",
        owner="key k1",
        measure=Measure.TOTAL_TOKENS,
        amount=10_000,
        weights=Weights(input_cached=100, output_reasoning=2000),
        **MONTH,
    )
    even = tokens_of("team default")
    script = (
        sse_answer(chat_stream(["a"], tokens=counted))
        if stream
        else json_answer(chat_completion(tokens=counted))
    )
    with ThreadedUpstream(script) as upstream, Authority(tmp_path, (weighted, even)) as authority:
        with workers(tmp_path, 1, upstream.url, (weighted, even)) as (worker,):
            answer = ask(worker.url, stream=stream, max_tokens=60)
            record = worker.wait_record(answer.headers["x-request-id"])
            assert record.tokens == Tokens(input=20, input_cached=80, output=20, output_reasoning=30)
            expected = {"w": 10_000 - (20 + 8 + 20 + 60), even.id: 10**6 - 150}
            worker.until(lambda: authority.left() == expected)


# --- L5: refunds --------------------------------------------------------------------------------------------

#: What the upstream does, and whether anybody knows that nothing was used.
ENDINGS: dict[str, tuple[str, Answer, bool]] = {
    "a reset": ("hasty", [Reset()], False),
    "a timeout": ("hasty", [Stall()], False),
    "500": ("hasty", error_answer(500), False),
    "502": ("hasty", error_answer(502), False),
    "504": ("hasty", error_answer(504), False),
    "no sense": ("hasty", [Send(b"boom\r\n\r\n")], False),
    "400": ("hasty", error_answer(400), True),
    "429": ("hasty", rate_limited(), True),
    "nobody listens": ("dead", [], True),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_L5_an_unknown_use_is_never_refunded(scene: Scene, upstream: Stage, name: str) -> None:
    """Each way to ask once, 900 tokens each at least."""
    owner = "project test"
    model, upstream.answer, is_known = ENDINGS[name]
    before = scene.wait_settled(owner)

    def fail(way: tuple[str, bool]) -> int:
        path, stream = way
        length: dict[str, Any] = {"input": "x" * 4000} if path == "embeddings" else {"max_tokens": 900}
        url, key = scene.url, "fb-test-of-tokens"
        return ask(url, path, key=key, model=model, stream=stream, **length).status_code

    with ThreadPoolExecutor(len(WAYS)) as pool:
        assert min(pool.map(fail, WAYS)) >= 400
    left = scene.wait_settled(owner)
    if is_known:
        assert left == before
    else:
        assert left <= before - 900 * len(WAYS)


@pytest.mark.parametrize("path", STREAMS)
def test_L5_nor_is_that_of_a_stream_that_breaks_after_content(
    scene: Scene, upstream: Stage, path: str
) -> None:
    owner = "project test"
    events = STREAMS[path](["a", "b", "c"], include_usage=False, done=False)[:3]
    before = scene.wait_settled(owner)
    for number, last in enumerate((Reset(), Close(), Stall())):
        upstream.answer = [*sse_head(), *map(chunk, events), last]
        answer = ask(scene.url, path, key=f"fb-test-of-{owner}", model="hasty", stream=True, max_tokens=900)
        assert b'"error"' in answer.content
        record = scene.gateway.wait_record(answer.headers["x-request-id"])
        assert (record.outcome, record.usage_source) == (Outcome.FAILED, UsageSource.ESTIMATED), number
    assert scene.wait_settled(owner) <= before - 3 * 900


# --- L6: what a refusal says --------------------------------------------------------------------------------

AMOUNTS = {
    Measure.REQUESTS: 1,
    Measure.INPUT_TOKENS: 1000,
    Measure.OUTPUT_TOKENS: 1000,
    Measure.TOTAL_TOKENS: 1500,
}


@pytest.mark.parametrize("measure", AMOUNTS)
def test_L6_our_429_says_which_limit_of_whom_and_when(
    tmp_path: Path, upstream: Stage, measure: Measure
) -> None:
    upstream.answer = lambda request: use_tokens(
        request.path.removeprefix("/v1/"), bool(request.json().get("stream")), 2000, prompt=1000
    )
    limits = tuple(
        Limit(id=owner, owner=owner, measure=measure, amount=AMOUNTS[measure], period=Period.HOUR)
        for owner in OWNERS
    )
    keys = {f"fb-test-of-{limit.owner}": (limit,) for limit in limits}
    size = {"max_tokens": 700, "user": "x" * 2400}
    with Authority(tmp_path, limits), workers(tmp_path, 1, upstream.url, limits, keys=keys) as (worker,):
        for limit in limits:
            key = f"fb-test-of-{limit.owner}"
            assert ask(worker.url, key=key, **size).status_code == 200
            for path, stream in WAYS:
                if path == "embeddings" and measure is Measure.OUTPUT_TOKENS:
                    continue  # it takes none
                whole = {"input": "x" * 3600} if path == "embeddings" else size
                check_refusal(worker, limit, ask(worker.url, path, key=key, stream=stream, **whole))


def check_refusal(worker: GatewayProcess, limit: Limit, refused: httpx.Response) -> None:
    assert refused.status_code == 429, refused.text
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert limit.describe() in error["message"]
    assert limit.owner in error["message"]
    assert 0 < int(refused.headers["retry-after"]) <= 3 * 3600
    kind = "requests" if limit.measure is Measure.REQUESTS else "tokens"
    assert refused.headers[f"x-ratelimit-limit-{kind}"] == str(limit.amount)
    assert refused.headers[f"x-ratelimit-reset-{kind}"].endswith("s")
    assert refused.headers["content-type"] == "application/json"
    record = worker.wait_record(refused.headers["x-request-id"])
    assert (record.status, record.tokens, record.usage_source) == (429, Tokens(), UsageSource.NONE)


def test_L6_our_429_for_places_says_so(scene: Scene, upstream: Stage) -> None:
    gate = Gate()
    upstream.answer = [Wait(gate), *json_answer(chat_completion())]
    for owner in OWNERS:
        key = f"fb-test-of-{owner}"
        before = len(upstream.requests)
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(ask, scene.url, key=key) for _ in range(2)]
            upstream.wait_request(before + 2)
            refused = ask(scene.url, key=key, stream=True)
            gate.open()
            assert [each.result().status_code for each in running] == [200, 200]
        assert f"2 concurrent requests at a time of {owner}" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        gate = Gate()
        upstream.answer = [Wait(gate), *json_answer(chat_completion())]
        scene.wait_left(owner, places=2)


def test_L6_our_503_says_when_to_come_again(tmp_path: Path, upstream: Stage) -> None:
    """Nobody can tell what is left; all connections are in use; the gateway shuts down."""
    limit = tokens_of("key k1")
    gate = Gate()
    upstream.answer = [Wait(gate), *json_answer(chat_completion())]
    few = make_route("few", upstream.url.replace("127.0.0.1", "localhost"), connections_max=1)
    routes = [make_route("m", upstream.url), few]
    free = "fb-test-key-without-limits"
    with workers(
        tmp_path,
        1,
        upstream.url,
        (limit,),
        keys={TEST_KEY: (limit,), free: ()},
        routes=routes,
        when_away=WhenAway.CLOSED,
    ) as (worker,):
        told = {"quota_unavailable": ask(worker.url)}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, worker.url, key=free, model="few")
            upstream.wait_request(1)
            told["upstream_connections_exhausted"] = ask(worker.url, key=free, model="few")
            with httpx.Client(base_url=worker.url, headers={"authorization": f"Bearer {free}"}) as late:
                late.get("/models")  # a connection from before the shutdown
                gate.open()
                assert running.result().status_code == 200
    for code, answer in told.items():
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, code)
        assert int(answer.headers["retry-after"]) >= 1, error
