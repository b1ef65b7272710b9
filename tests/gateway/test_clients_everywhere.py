"""The official clients for Python and Node, each API at each dialect: the same is said, whoever asks.

One Node process asks all of its questions at once, and each test takes its own answer out.
"""

from collections.abc import Callable, Iterator

import pytest
from client_cases import CASES, PLAIN, Case, Job, Said, ask_node, drive_python, explain_no_node
from pairs_stage import DIALECTS, EMBEDDERS, Pairs, name_model, pairs

from forebay.testing.obliging import BREAKING

__all__ = ["pairs"]

APIS = ("chat", "messages", "responses")
LANGUAGES = ("python", "node")
#: What a failing model's name says, and the error that clients make of it.
ERRORS = {
    "limited": ("RateLimitError", 429),
    "refusing": ("BadRequestError", 400),
    "broken": ("InternalServerError", 500),
}
#: Types of errors in Anthropic's dialect.
TYPES = {429: "rate_limit_error", 400: "invalid_request_error", 500: "api_error", 404: "not_found_error"}
Ask = Callable[[Job], Said]


def make_job(case: Case, dialect: str, stream: bool) -> Job:
    return Job(
        id=f"{case.api} {case.name} {dialect} {stream}", api=case.api, model=name_model(dialect),
        body=case.body, stream=stream, then=case.then,
    )  # fmt: skip


def fail(api: str, name: str, dialect: str, stream: bool) -> Job:
    body = PLAIN[api]
    return Job(
        id=f"fail {api} {name} {dialect} {stream}", api=api, model=f"{name}-{dialect}", body=body,
        stream=stream,
    )  # fmt: skip


def embed(dialect: str) -> Job:
    body = {"input": ["a", "b"], "encoding_format": "float"}
    return Job(id=f"embed {dialect}", api="embeddings", model=f"embed-{dialect}", body=body)


def count(dialect: str) -> Job:
    body = {"messages": PLAIN["messages"]["messages"]}
    return Job(id=f"count {dialect}", api="count_tokens", model=name_model(dialect), body=body)


def refuse(api: str, why: str) -> Job:
    model, key = ("no-such-model", None) if why == "model" else (name_model("openai"), "fb-wrong")
    return Job(id=f"refuse {api} {why}", api=api, model=model, body=PLAIN[api], key=key)


WHOLE_OR_STREAM = (False, True)
JOBS = [
    *(make_job(case, to, stream) for case in CASES for to in DIALECTS for stream in WHOLE_OR_STREAM),
    *(fail(api, name, to, s) for api in APIS for name in ERRORS for to in DIALECTS for s in WHOLE_OR_STREAM),
    *(fail(api, BREAKING, to, True) for api in APIS for to in DIALECTS),
    *map(embed, EMBEDDERS),
    *map(count, DIALECTS),
    *(refuse(api, why) for api in APIS for why in ("model", "key")),
]


@pytest.fixture(scope="module")
def said_by_node(pairs: Pairs) -> dict[str, Said]:
    if why := explain_no_node():
        pytest.skip(why)
    return ask_node(pairs.worker.origin, pairs.worker.key, JOBS)


@pytest.fixture(scope="module")
def python(pairs: Pairs) -> Iterator[Ask]:
    with drive_python(pairs.worker.origin, pairs.worker.key) as ask:
        yield ask


@pytest.fixture(params=LANGUAGES)
def ask(request: pytest.FixtureRequest) -> Ask:
    if request.param == "python":
        made: Ask = request.getfixturevalue("python")
        return made
    said: dict[str, Said] = request.getfixturevalue("said_by_node")
    return lambda job: said[job.id]


both = pytest.mark.parametrize("stream", WHOLE_OR_STREAM, ids=["whole", "stream"])
at_each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@both
@at_each_dialect
@pytest.mark.parametrize("case", CASES, ids=[f"{case.api}-{case.name}" for case in CASES])
def test_what_a_client_makes_of_an_answer(ask: Ask, case: Case, dialect: str, stream: bool) -> None:
    said = dict(ask(make_job(case, dialect, stream)))
    assert [said.pop(name, None) for name in ("input", "output", "cached")] == [9, 5, 4], said
    if dialect == "vertex" and said["calls"]:  # which gives calls no ids: they get some
        assert all(each[0].startswith("call_") for each in said["calls"])
        said["calls"] = [[f"call_{at}", *each[1:]] for at, each in enumerate(said["calls"], 1)]
    assert said == case.expected


@both
@at_each_dialect
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("api", APIS)
def test_errors_have_their_class_and_words(ask: Ask, api: str, name: str, dialect: str, stream: bool) -> None:
    said = ask(fail(api, name, dialect, stream))
    kind, status = ERRORS[name]
    assert (said["error"], said["status"]) == (kind, status), said
    assert "The fake refuses" in said["message"]
    if api == "messages":
        assert said["type"] == TYPES[status]
    else:
        assert said["type"]
        assert (said["code"] == "rate_limit_exceeded") is (status == 429)


@at_each_dialect
@pytest.mark.parametrize("api", APIS)
def test_an_error_inside_a_stream_is_raised(ask: Ask, api: str, dialect: str) -> None:
    said = ask(fail(api, BREAKING, dialect, True))
    assert said.get("error", "").endswith("Error"), said
    assert "The fake refuses" in said["message"]


@pytest.mark.parametrize("api", APIS)
def test_refusals_of_the_gateway_have_their_class(ask: Ask, api: str) -> None:
    said = ask(refuse(api, "model"))
    assert (said["error"], said["status"]) == ("NotFoundError", 404)
    assert "no-such-model" in said["message"]
    said = ask(refuse(api, "key"))
    assert (said["error"], said["status"]) == ("AuthenticationError", 401)


@pytest.mark.parametrize("dialect", EMBEDDERS)
def test_embeddings(ask: Ask, dialect: str) -> None:
    said = ask(embed(dialect))
    assert len(said["vectors"]) == 2
    assert said["input"] > 0


@at_each_dialect
def test_tokens_are_counted(ask: Ask, dialect: str) -> None:
    assert ask(count(dialect))["input"] > 0
