"""The setting `dialect` of a target: what its model answers by it; each mistake is told at its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.config import ConfigProblem, check_config, dump_config, load_config
from forebay.app.config_dialect_checks import complete_endpoints
from forebay.app.config_problems import Severity
from forebay.app.snapshot import compile_snapshot
from forebay.core.routes import Endpoint, decode_snapshot, encode_snapshot
from forebay.providers.translators import can_answer, find_way, list_dialects

CHAT, MESSAGES, COUNT = Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS
CLAUDE = "url: https://a.example/v1, dialect: anthropic"
ENDPOINTS = st.lists(st.sampled_from(list(Endpoint)), min_size=1, max_size=5)
DIALECTS = st.lists(st.sampled_from(list_dialects()), min_size=1, max_size=3)


def write(folder: Path, endpoints: str, *targets: str) -> Path:
    file = folder / "forebay.yaml"
    head = f"models:\n  m:\n    endpoints: [{endpoints}]\n    targets:\n"
    file.write_text(head + "".join(f"      - {{{target}}}\n" for target in targets))
    return file


def problems_of(folder: Path, endpoints: str, *targets: str) -> tuple[ConfigProblem, ...]:
    return check_config(write(folder, endpoints, *targets), {})[1]


def test_a_dialect_reaches_the_worker(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "chat/completions",
        "url: https://one.example/v1, dialect: anthropic",
        "url: https://two.example/v1",
    )
    config = load_config(file, {})
    route = decode_snapshot(encode_snapshot(compile_snapshot(config, [], {}))).table.routes[0]
    assert [target.dialect for target in route.targets] == ["anthropic", "openai"]
    assert route.endpoints[0] == CHAT
    assert {MESSAGES, COUNT} <= set(route.endpoints)
    again = tmp_path / "again.yaml"
    again.write_text(dump_config(config))
    assert load_config(again, {}).models == config.models
    assert check_config(file, {})[1] == ()


def test_without_chat_nothing_follows(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "embeddings", "url: https://one.example/v1"), {})
    assert compile_snapshot(config, [], {}).table.routes[0].endpoints == (Endpoint.EMBEDDINGS,)


@pytest.mark.parametrize(
    ("endpoints", "target", "key", "message"),
    [
        ("messages", "url: https://a.example/v1, dialect: klingon", "targets[0].dialect", "no such dialect"),
        ("embeddings", CLAUDE, "dialect", "can't answer `embeddings`"),
        ("completions", CLAUDE, "dialect", "can't answer `completions`"),
        ("messages", "engine: smollm2-135m, dialect: anthropic", "dialect", "engines on this machine speak"),
    ],
)  # fmt: skip
def test_mistakes_are_told_where_they_stand(
    tmp_path: Path, endpoints: str, target: str, key: str, message: str
) -> None:
    found = [each for each in problems_of(tmp_path, endpoints, target) if each.severity is Severity.ERROR]
    assert len(found) == 1, found
    assert (found[0].line, found[0].key.endswith(key)) == (5, True)
    assert message in found[0].message


def test_a_forced_call_is_met_by_a_schema_where_llamacpp_serves(tmp_path: Path) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text(
        """
engines: {tiny: {kind: llamacpp}, words: {kind: minilm}}
pools:
  edge: {engine: llama.cpp, replicas: [http://10.0.0.1/v1]}
  old: {engine: llamacpp, forced_tools: refuse, replicas: [http://10.0.0.2/v1]}
  big: {engine: vllm, replicas: [http://10.0.0.3/v1]}
models:
  a:
    endpoints: [chat/completions]
    targets:
      - engine: tiny
      - {engine: tiny, model: other, forced_tools: native}
      - pool: edge
      - {pool: edge, url: "http://10.0.0.4/v1", dialect: anthropic}
      - pool: old
      - pool: big
      - {pool: big, forced_tools: schema, url: "http://10.0.0.5/v1"}
      - url: http://10.0.0.6/v1
"""
    )
    urls = {"tiny": "http://127.0.0.1:1/v1", "words": "http://127.0.0.1:2/v1"}
    (route,) = compile_snapshot(load_config(path), [], urls).table.routes
    assert [target.forced_tools.value for target in route.targets] == [
        *("schema", "native", "schema", "native", "refuse", "native", "schema", "native")
    ]


def test_no_other_dialect_meets_a_forced_call_by_a_schema(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, "messages", f"{CLAUDE}, forced_tools: schema")
    assert found.key.endswith("forced_tools")
    assert "is not for targets that speak `anthropic`" in found.message


def test_an_address_that_lacks_its_version_is_a_warning(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "messages", "url: https://api.example, dialect: anthropic")
    assert [(each.severity, each.message) for each in found] == [(Severity.WARNING, "does not end in /v1")]
    assert "/messages" in found[0].hint


@given(ENDPOINTS, DIALECTS)
def test_what_follows_can_be_answered(endpoints: list[Endpoint], dialects: list[str]) -> None:
    complete = complete_endpoints(endpoints, dialects)
    assert complete[: len(dict.fromkeys(endpoints))] == tuple(dict.fromkeys(endpoints))
    assert len(set(complete)) == len(complete)
    for endpoint in set(complete) - set(endpoints):
        if endpoint is not COUNT:
            assert any(can_answer(dialect, endpoint) for dialect in dialects)
    assert complete_endpoints(complete, dialects) == complete


@pytest.mark.parametrize("dialect", [each for each in list_dialects() if each != "oip"])
def test_every_dialect_answers_chat_and_messages(dialect: str) -> None:
    assert can_answer(dialect, CHAT)
    assert can_answer(dialect, MESSAGES)


def test_same_dialects_meet_without_a_translator() -> None:
    for endpoint, dialect in ((CHAT, "openai"), (MESSAGES, "anthropic"), (COUNT, "anthropic")):
        way = find_way(endpoint, dialect)
        assert way is not None
        assert (way.caller, way.target) == (None, None)
    assert find_way(Endpoint.EMBEDDINGS, "anthropic") is None
