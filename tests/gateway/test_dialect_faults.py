"""What goes wrong between two dialects: told in the caller's own, counted once, no end that was none."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from dialect_stage import PAIRS, PATHS, TRANSLATED, Callers, build_body, callers, stages, worker
from gateway_stage import UPSTREAM_SECRET, Stage, _stages, fallback, upstream

from forebay.core.events import Outcome, UsageSource
from forebay.testing import anthropic as claude
from forebay.testing import openai as gpt
from forebay.testing.answers import chunk, json_answer, last_chunk, sse_answer, sse_head
from forebay.testing.steps import Close, Gate, Reset, Script, Send, Sleep, Stall, Step, Wait

__all__ = ["_stages", "callers", "fallback", "stages", "upstream", "worker"]

pairs = pytest.mark.parametrize(("caller", "target"), PAIRS)
translated = pytest.mark.parametrize(("caller", "target"), TRANSLATED)
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
LONG = "A long answer that nobody will hear to its end."


def read_error(caller: str, answer: httpx.Response) -> tuple[str, str]:
    """Type and message of an error that is in the caller's dialect, and in no other."""
    body = answer.json()
    if caller == "openai":
        assert set(body) == {"error"}
        assert set(body["error"]) >= {"message", "type", "param", "code"}
    else:
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
    return body["error"]["type"], body["error"]["message"]


def read_events(body: bytes) -> list[Any]:
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def assert_broken(caller: str, body: bytes) -> dict[str, Any]:
    """The stream ends with one error in the caller's dialect, and nothing in it says that it ended well."""
    *before, last = read_events(body)
    assert "[DONE]" not in before
    if caller == "openai":
        assert set(last) == {"error"}
        assert not any(choice.get("finish_reason") for each in before for choice in each.get("choices", ()))
    else:
        assert last["type"] == "error"
        assert not {"message_stop", "message_delta"} & {each["type"] for each in before}
    return dict(last["error"])


def fail(target: str, status: int, words: str, **headers: str) -> list[Step]:
    payload = (
        gpt.error(words, type="invalid_request_error")
        if target == "openai"
        else claude.error("invalid_request_error", words)
    )
    return json_answer(payload, status=status, headers=list(headers.items()))


def begin(target: str, count: int = 6) -> list[bytes]:
    """The first events of a long answer, some of them content."""
    if target == "openai":
        return gpt.chat_stream([LONG[at : at + 4] for at in range(0, len(LONG), 4)])[:count]
    return claude.message_events(claude.message(claude.text(LONG)))[:count]


# --- errors -------------------------------------------------------------------------------------------------


@both
@pairs
def test_an_error_of_the_target_keeps_status_and_words(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, stream: bool
) -> None:
    stages[target].answer = fail(target, 400, f"the picture is bad, said {UPSTREAM_SECRET}")
    answer = callers.post(caller, target, stream=stream)
    kind, words = read_error(caller, answer)
    assert (answer.status_code, kind) == (400, "invalid_request_error")
    assert words == "the picture is bad, said [redacted]"
    record = callers.worker.wait_record(answer.headers["x-request-id"])
    assert (record.error, record.outcome, record.usage_source) == (
        "upstream_400", Outcome.FAILED, UsageSource.NONE
    )  # fmt: skip


@pairs
def test_the_clients_raise_what_they_should(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    stages[target].answer = fail(target, 429, "Slow down.", **{"retry-after": "7"})
    raised = openai.RateLimitError if caller == "openai" else anthropic.RateLimitError
    with pytest.raises(raised, match=r"Slow down\.") as caught:
        callers.ask(caller, target, stream=False)
    assert caught.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize(("status", "told"), [(401, 502), (302, 502), (404, 404), (500, 500), (529, 529)])
@translated
def test_pages_of_proxies_become_errors(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, status: int, told: int
) -> None:
    page = b"<html>secret page</html>"
    head = b"HTTP/1.1 %d Odd\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % (status, len(page))
    stages[target].answer = [Send(head + page)]
    answer = callers.post(caller, target)
    read_error(caller, answer)
    assert answer.status_code == told


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b"nonsense", b'{"type":"message"}', b'{"choices":[]}', b"\xff\xfe"]
)
@translated
def test_an_answer_that_is_none_is_the_targets_fault(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, body: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    stages[target].answer = [Send(head + body)]
    answer = callers.post(caller, target)
    read_error(caller, answer)
    assert answer.status_code == 502
    record = callers.worker.wait_record(answer.headers["x-request-id"])
    assert record.error == "upstream_protocol_error"
    assert record.usage_source is UsageSource.ESTIMATED, "somebody worked on it"


@translated
def test_an_error_that_came_with_a_good_status(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    stages[target].answer = fail(target, 200, "Not so.")
    answer = callers.post(caller, target)
    assert (answer.status_code, read_error(caller, answer)[1]) == (400, "Not so.")


@pairs
def test_a_target_that_is_away(callers: Callers, caller: str, target: str) -> None:
    answer = callers.post(caller, f"{target}-dead")
    read_error(caller, answer)
    assert answer.status_code == 503


# --- what can't be said -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "target", "more", "param"),
    [
        ("openai", "anthropic", {"n": 2}, "n"),
        ("openai", "anthropic", {"seed": 3}, "seed"),
        ("openai", "anthropic", {"surely_new": 1}, "surely_new"),
        ("anthropic", "openai", {"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ("anthropic", "openai", {"surely_new": 1}, "surely_new"),
    ],
)
def test_what_can_not_be_said_is_named(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, more: dict[str, Any], param: str
) -> None:
    labels = {"target": f"{target}-0", "result": "failed"}
    before = callers.worker.metric("forebay_attempts_total", **labels)
    answer = callers.post(caller, target, **more)
    kind, words = read_error(caller, answer)
    assert (answer.status_code, kind) == (400, "invalid_request_error")
    assert f"`{param}`" in words
    assert stages[target].requests == []
    record = callers.worker.wait_record(answer.headers["x-request-id"])
    assert (record.error, record.usage_source) == ("invalid_value", UsageSource.NONE)
    assert callers.worker.metric("forebay_attempts_total", **labels) == before, "the target is not ill"


def test_another_target_takes_what_one_can_not_be_told(callers: Callers, stages: dict[str, Stage]) -> None:
    before = callers.worker.metric("forebay_attempts_total", target="mixed-anthropic", result="failed")
    stages["openai"].answer = gpt.well_behaved("Here.")
    answer = callers.post("openai", "mixed", seed=3)
    assert answer.json()["choices"][0]["message"]["content"] == "Here."
    assert stages["anthropic"].requests == []
    assert stages["openai"].request.json()["seed"] == 3
    after = callers.worker.metric("forebay_attempts_total", target="mixed-anthropic", result="failed")
    assert after == before, "the target that was not asked is not ill"


@both
@pytest.mark.parametrize("caller", ["openai", "anthropic"])
def test_a_target_of_another_dialect_answers_where_the_first_fails(
    callers: Callers, stages: dict[str, Stage], caller: str, stream: bool
) -> None:
    stages["anthropic"].answer = claude.well_behaved("There.")
    stages["openai"].answer = gpt.well_behaved("Here.")
    # After a refusal the first is left alone for a while: until it is asked again.
    callers.worker.until(lambda: callers.ask(caller, "mixed", stream=stream).text == "There.")
    stages["anthropic"].answer = claude.error_answer(529, "overloaded_error", "Overloaded")
    said = callers.ask(caller, "mixed", stream=stream)
    assert said.text == "Here."
    record = callers.worker.wait_record(said.request_id)
    assert (record.target, record.attempts, record.outcome) == ("mixed-openai", 2, Outcome.OK)


# --- streams (S1, S5, S6, S7) -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ([Reset()], "upstream_reset"),
        ([last_chunk(), Close()], "upstream_truncated"),
        ([Stall()], "upstream_idle_timeout"),
        ([chunk(b"data: " + b"x" * (1 << 21)), Stall()], "upstream_event_too_large"),
    ],
    ids=["reset", "truncated", "silent", "too large"],
)
@pairs
def test_a_cut_stream_ends_with_an_error_of_the_callers(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, ending: list[Step], code: str
) -> None:
    begun = Gate()
    stages[target].answer = [*sse_head(), *map(chunk, begin(target)), Wait(begun), *ending]
    model = f"{target}-brief" if code == "upstream_idle_timeout" else target
    answer = callers.read(caller, model, begun)
    assert answer.status_code == 200
    assert_broken(caller, answer.content)
    record = callers.worker.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.error) == (Outcome.FAILED, code)
    assert record.usage_source is UsageSource.ESTIMATED
    assert record.tokens.output
    assert record.answer_bytes == len(answer.content)


@pairs
def test_an_error_inside_a_stream_is_told_in_the_callers_dialect(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    words = f"Overloaded, said {UPSTREAM_SECRET}"
    failure = (
        gpt.event(gpt.error(words, type="overloaded_error"))
        if target == "openai"
        else claude.event(claude.error("overloaded_error", words))
    )
    begun = Gate()
    steps = [*sse_head(), *map(chunk, begin(target)), Wait(begun), chunk(failure), last_chunk()]
    stages[target].answer = steps
    answer = callers.read(caller, target, begun)
    told = assert_broken(caller, answer.content)
    assert told["message"] == "Overloaded, said [redacted]"
    assert told["type"] == "overloaded_error"
    record = callers.worker.wait_record(answer.headers["x-request-id"])
    assert (record.outcome, record.error) == (Outcome.FAILED, "upstream_error")


@pairs
def test_an_error_before_the_first_content_has_its_true_status(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    if target == "openai":
        events = [*begin(target, 1), gpt.event(gpt.error("No.", type="invalid_request_error"))]
    else:
        events = [*begin(target, 2), claude.event(claude.error("invalid_request_error", "No."))]
    stages[target].answer = sse_answer(events)
    answer = callers.post(caller, target, stream=True)
    assert (answer.status_code, read_error(caller, answer)) == (400, ("invalid_request_error", "No."))


@translated
def test_a_caller_that_leaves_is_charged_what_it_saw(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    def go_on() -> Iterator[Step]:
        yield from sse_head()
        yield from map(chunk, begin(target))
        while True:
            yield Sleep(0.05)
            yield chunk(begin(target)[-1])

    def answer_on(request: object) -> Script:
        return go_on()

    stages[target].answer = answer_on
    with callers.http.stream("POST", PATHS[caller], json=build_body(caller, target, stream=True)) as answer:
        seen = b""
        for data in answer.iter_raw():
            seen += data
            if seen.count(b"data: ") >= 12:
                break
    stages[target].wait_closed(stages[target].wait_request())
    record = callers.worker.wait_record(answer.headers["x-request-id"])
    assert (record.status, record.outcome) == (499, Outcome.ABANDONED)
    assert record.usage_source is UsageSource.ESTIMATED
    assert record.tokens.input
    assert (record.tokens.output or 0) >= 5
    callers.worker.wait_idle()


@translated
def test_a_caller_that_leaves_a_whole_answer(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    stages[target].answer = [Stall()]
    for _ in range(10):
        with pytest.raises(httpx.TimeoutException):
            callers.http.post(PATHS[caller], json=build_body(caller, target), timeout=0.3)
        if stages[target].requests:  # else it gave up before the target was asked
            break
    stages[target].wait_closed(stages[target].wait_request())
    callers.worker.wait_idle()


# --- sizes (F5) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [32 * 1024 + 1, 4 << 20])
@translated
def test_bodies_and_answers_of_many_sizes(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str, size: int
) -> None:
    words = "word " * (size // 5)
    stages[target].answer = gpt.well_behaved(words) if target == "openai" else claude.well_behaved(words)
    said = callers.ask(caller, target, stream=False, messages=[{"role": "user", "content": words}])
    assert said.text == words
    sent = stages[target].request.json()["messages"][0]["content"]
    assert sent == words or sent == [{"type": "text", "text": words}]
    callers.worker.wait_idle()
    assert callers.worker.metric("forebay_memory_held_bytes") == 0


@pairs
def test_connections_to_targets_are_kept(
    callers: Callers, stages: dict[str, Stage], caller: str, target: str
) -> None:
    stages[target].answer = gpt.well_behaved("Hi") if target == "openai" else claude.well_behaved("Hi")
    # Those of streams are kept by servers that were seen to keep them, which others of these tests do not.
    for _ in range(4):
        callers.ask(caller, target, stream=False)
    assert len({request.connection for request in stages[target].requests}) == 1
