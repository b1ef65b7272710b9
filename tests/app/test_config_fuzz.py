"""Whatever stands in `forebay.yaml`, it is loaded or refused in words, and no secret comes back in them."""

import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forebay.app.config import ConfigInvalid, ConfigProblem, load_config
from forebay.app.config_source import parse_source

#: Generation takes its time where the cores are shared; nothing here depends on time.
SLOW_BOX = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _check_text(text: str | bytes) -> object:
    """The whole way of a file's content, less the file."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        file.flush()
        return load_config(Path(file.name), {})


def _refusal(text: str | bytes) -> tuple[ConfigProblem, ...]:
    try:
        _check_text(text)
    except ConfigInvalid as error:
        return error.problems
    return ()


PLACES = (
    "models: {{m: {{endpoints: [embeddings], targets: [{{url: 'https://h/v1', api_key: {0}}}]}}}}",
    "models: {{m: {{endpoints: [embeddings], targets: [{{url: {0}}}]}}}}",
    "models: {{m: {{endpoints: [embeddings], targets: [{{url: 'https://h/v1', apikey: {0}}}]}}}}",
    "models: {{m: {{endpoints: [embeddings], targets: [{{url: 'https://h/v1', tier: {0}}}]}}}}",
    "gateway: {{port: {0}, host: {0}}}",
    "engines: {{e: {{kind: {0}}}}}",
    "version: {0}",
    "limits: {{rules: [{{key: {0}, requests: 1, per: day}}]}}",
    "limits: {{rules: [{{team: {0}, requests: 1, models: [{0}]}}, {{team: {0}, requests: {0}}}]}}",
)


@SLOW_BOX
@given(
    secret=st.text("ABCDEFabcdef0123456789-_", min_size=12, max_size=40).map(lambda text: f"sk-{text}"),
    place=st.sampled_from(PLACES),
    around=st.sampled_from(["{}", "https://me:{}@host/v1", "env:{}", "https://h/v1?key={}"]),
)
def test_no_message_repeats_what_stood_in_the_file(secret: str, place: str, around: str) -> None:
    text = place.format(f'"{around.format(secret)}"')
    with pytest.raises(ConfigInvalid) as caught:
        _check_text(text)
    assert secret not in str(caught.value)


@SLOW_BOX
@given(st.binary(max_size=200))
@example(b"%YAML 99999999999999999999999.1\n---\na")
@example(b"%TAG ! \xc2\xa0\n---\na")
@example(b'a: "\\U99999999"')
@example(b"a: !!int x")
@example(b"a: !!float ''\n")
@example(b"a: !!int ''\n")
@example(b"a: !!bool maybe")
@example(b"a: !!timestamp x")
@example(b"!!float a: 1")
@example(b"a: 1" + b"0" * 5000)
@example(b"a: 0b\n")
@example(b"a: 1:" + b"59:" * 400 + b"1")
@example(b"\xff\xfea\x00")
@example(b"\xef\xbb\xbfversion: 1")
@example(b"<<: 1")
@example(b"<<: [1, {a: 2}]")
@example(b"? !!null\n: 1")
@example(b"a: %")
@example(b"- - - ? !x")
def test_any_bytes_load_or_are_refused(data: bytes) -> None:
    assert all(problem.message for problem in _refusal(data))


KEYS = """
version gateway port models engines targets engine url kind llamacpp m drain minilm endpoints api_key <<
timeouts data dir host model tls_ca tier limits
"""
WORDS = st.sampled_from([*KEYS.split(), ""])
SCALARS = st.one_of(
    WORDS,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.just("env:X"),
    st.just("\0"),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=25,
)


@SLOW_BOX
@given(st.dictionaries(WORDS, TREES, max_size=5))
def test_any_tree_of_values_loads_or_is_refused_at_lines_of_the_file(tree: dict[str, object]) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True, sort_keys=False)
    count = text.count("\n") + 1
    assert all(problem.line is None or 1 <= problem.line <= count for problem in _refusal(text))


RULE_KEYS = """
team project key each requests total_tokens concurrent_requests per window time_zone models weights
"""
RULE_WORDS = st.sampled_from(RULE_KEYS.split())
RULES = st.lists(st.dictionaries(RULE_WORDS, TREES | st.sampled_from(["day", "calendar", "a/b"])), max_size=4)


@SLOW_BOX
@given(RULES)
def test_any_rules_of_limits_load_or_are_refused_at_lines_of_the_file(rules: list[object]) -> None:
    text = yaml.safe_dump({"limits": {"rules": rules}}, allow_unicode=True, sort_keys=False)
    count = text.count("\n") + 1
    assert all(problem.line is None or 1 <= problem.line <= count for problem in _refusal(text))


EXAMPLE = (
    (Path(__file__).parents[2] / "docs" / "configuration.md")
    .read_text()
    .split("```yaml\n")[1]
    .split("```")[0]
)
EDITS = st.tuples(
    st.integers(0, len(EXAMPLE)),
    st.integers(0, 9),
    st.text("{}[]:&*!%@`|>-?#\"'\\\t\n ,<0xA~", max_size=4),
)


@SLOW_BOX
@given(st.lists(EDITS, min_size=1, max_size=6))
def test_a_good_file_with_slips_of_the_hand_loads_or_is_refused(edits: list[tuple[int, int, str]]) -> None:
    text = EXAMPLE
    for start, removed, added in edits:
        text = text[:start] + added + text[start + removed :]
    assert all(problem.message for problem in _refusal(text))


@SLOW_BOX
@given(st.dictionaries(st.text(max_size=6), st.text(max_size=20) | st.integers() | st.booleans(), max_size=6))
def test_values_are_read_as_yaml_reads_them(tree: dict[str, object]) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    assert parse_source(text.encode(), None).data == yaml.safe_load(text)
