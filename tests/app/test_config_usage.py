"""The setting `usage` of a target: what rules become, and that each mistake is told at its line."""

from pathlib import Path

import pytest

from forebay.app.config import ConfigProblem, check_config, dump_config, load_config
from forebay.app.config_problems import Severity
from forebay.app.config_usage import RULES_MAX
from forebay.app.snapshot import compile_snapshot
from forebay.core.routes import decode_snapshot, encode_snapshot
from forebay.core.usage_rules import UsageRule

HEAD = """models:
  m:
    endpoints: [chat/completions]
    targets:
      - url: https://provider.example/v1
        usage:
"""
PRICED = "prices:\n  book:\n    - usd_per_unit: {searches: 0.01}\n"


def write(folder: Path, *rules: str, more: str = "") -> Path:
    file = folder / "forebay.yaml"
    file.write_text(HEAD + "".join(f"          - {{{rule}}}\n" for rule in rules) + more)
    return file


def problems_of(folder: Path, *rules: str, more: str = "") -> tuple[ConfigProblem, ...]:
    return check_config(write(folder, *rules, more=more), {})[1]


def test_rules_reach_the_worker_as_they_were_written(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "class: input_cached, pointer: /usage/prompt_cache_hit_tokens, included_in: input",
        "class: output_reasoning, pointer: /usage/reasoning~1tokens",
        "unit: searches, pointer: /usage/server_tool_use/web_search_requests",
        more=PRICED,
    )
    config = load_config(file, {})
    snapshot = decode_snapshot(encode_snapshot(compile_snapshot(config, [], {})))
    assert snapshot.table.routes[0].targets[0].usage == (
        UsageRule(name="input_cached", steps=("usage", "prompt_cache_hit_tokens"), is_included=True),
        UsageRule(name="output_reasoning", steps=("usage", "reasoning/tokens")),
        UsageRule(name="searches", steps=("usage", "server_tool_use", "web_search_requests"), is_unit=True),
    )
    again = tmp_path / "again.yaml"
    again.write_text(dump_config(config))
    assert load_config(again, {}).models == config.models
    assert load_config(again, {}).prices == config.prices
    assert check_config(file, {})[1] == ()


@pytest.mark.parametrize(
    ("rules", "line", "key", "message", "hint"),
    [
        (["pointer: /x"], 7, "usage[0]", "does not say what it counts", "`class`"),
        (["class: input, unit: a, pointer: /x"], 7, "usage[0]", "in two ways", "`unit`"),
        (["class: input"], 7, "usage[0].pointer", "is missing", "pointer"),
        (["class: cached, pointer: /x"], 7, "usage[0].class", "no class of tokens", ""),
        (["unit: Web Searches, pointer: /x"], 7, "usage[0].unit", "small letters", ""),
        (["unit: input_cached, pointer: /x"], 7, "usage[0].unit", "write `class: input_cached`", ""),
        (["class: input, pointer: usage/x"], 7, "usage[0].pointer", "must begin with /", ""),
        (["class: input, pointer: /usage/~x"], 7, "usage[0].pointer", "stands for nothing", ""),
        (['class: input, pointer: ""'], 7, "usage[0].pointer", "name a place in it", ""),
        ([f"class: input, pointer: /{'x' * 256}"], 7, "usage[0].pointer", "longer than 256", ""),
        ([f"class: input, pointer: {'/x' * 17}"], 7, "usage[0].pointer", "more than 16 steps", ""),
        (["class: input, pointer: 5"], 7, "usage[0].pointer", "must be text", ""),
        (
            ["class: input, pointer: /x, included_in: input"],
            *(7, "usage[0].included_in", "can't be included in it", "a whole itself"),
        ),
        (
            ["class: output_audio, pointer: /x, included_in: input"],
            *(7, "usage[0].included_in", "can't be included in it", "included_in: output"),
        ),
        (
            ["unit: searches, pointer: /x, included_in: input"],
            *(7, "usage[0].included_in", "can't be included in it", "no part of the tokens"),
        ),
        (
            ["class: input_cached, pointer: /x, included_in: prompt"],
            *(7, "usage[0].included_in", "not one of", "'input'"),
        ),
        (
            ["class: input, pointer: /x", "class: input, pointer: /y"],
            *(8, "usage[1]", "the same as models.m.targets[0].usage[0]", "remove one"),
        ),
        (["class: input, pointer: /x, pointr: /y"], 7, "usage[0].pointr", "unknown key", "pointer"),
        (
            [f"unit: u{number}, pointer: /x" for number in range(RULES_MAX + 1)],
            *(7, "usage", f"more than {RULES_MAX}", ""),
        ),
    ],
)
def test_a_mistake_is_told_where_it_is(
    tmp_path: Path, rules: list[str], line: int, key: str, message: str, hint: str
) -> None:
    found = problems_of(tmp_path, *rules)
    assert len(found) == 1, found
    assert found[0].key == f"models.m.targets[0].{key}"
    assert found[0].line is not None
    assert abs(found[0].line - line) <= (1 if key == "usage" else 0)
    assert message in found[0].message
    assert hint in found[0].hint
    assert found[0].severity is Severity.ERROR


def test_a_price_for_what_no_target_counts_is_a_warning(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, "unit: search, pointer: /x", more=PRICED)
    assert (found.key, found.severity) == ("prices.book[0].usd_per_unit.searches", Severity.WARNING)
    assert "did you mean `search`?" in found.hint
    assert problems_of(tmp_path, "unit: searches, pointer: /x", more=PRICED) == ()


@pytest.mark.parametrize(
    ("endpoint", "unit"),
    [
        ("audio/transcriptions", "audio_seconds"),
        ("audio/translations", "audio_seconds"),
        ("audio/speech", "characters"),
        ("images/generations", "images"),
        ("images/edits", "images"),
        ("images/variations", "images"),
    ],
)
def test_units_that_answers_count_by_themselves_may_be_priced(
    tmp_path: Path, endpoint: str, unit: str
) -> None:
    file = write(tmp_path, "unit: other, pointer: /x", more=PRICED.replace("searches", unit))
    (found,) = check_config(file, {})[1]
    assert (found.key, found.severity) == (f"prices.book[0].usd_per_unit.{unit}", Severity.WARNING)
    file.write_text(file.read_text().replace("chat/completions", endpoint))
    assert check_config(file, {})[1] == ()
    (found,) = problems_of(tmp_path, "class: input, pointer: /x", more=PRICED)
    assert "none" in found.hint
