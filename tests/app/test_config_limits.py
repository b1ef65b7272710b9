"""The section `limits`: what rules come to for the keys that there are, and mistakes told at their line."""

from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.config import ConfigProblem, check_config, dump_config, load_config
from forebay.app.config_limits import COUNTED, CompiledLimits, LimitConfig, LimitsConfig
from forebay.app.config_model import Config
from forebay.app.config_settings import SCHEMA_PATH
from forebay.core.keys import KeyEntry
from forebay.core.limits import Kind, Limit, Measure, Period, Weights, WhenAway

ONE, TWO, THREE = (f"key_000000000000000{number}" for number in (1, 2, 3))


def key(key_id: str, team: str = "web", project: str = "search") -> KeyEntry:
    return KeyEntry(id=key_id, digest=b"", name=key_id, prefix="", team=team, project=project)


KEYS = (key(ONE), key(TWO, project="chat"), key(THREE, team="lab"))


def load(folder: Path, text: str) -> LimitsConfig:
    file = folder / "forebay.yaml"
    file.write_text(text)
    return load_config(file, {}).limits


def problems_of(folder: Path, text: str) -> tuple[ConfigProblem, ...]:
    file = folder / "forebay.yaml"
    file.write_text(text)
    return check_config(file, {})[1]


def compile_rules(*rules: dict[str, object], keys: tuple[KeyEntry, ...] = KEYS) -> CompiledLimits:
    return CompiledLimits([LimitConfig.model_validate(rule) for rule in rules], keys)


def test_every_form_of_a_rule_becomes_a_limit(tmp_path: Path) -> None:
    limits = load(
        tmp_path,
        f"""
limits:
  when_away: closed
  rules:
    - {{team: web, requests: 600, per: minute}}
    - {{project: web/search, input_tokens: 1000000, per: hour, models: [gpt-*, m]}}
    - {{key: {ONE}, output_tokens: 0, per: second}}
    - key: {ONE}
      total_tokens: 5000000
      per: month
      window: calendar
      time_zone: Europe/Berlin
      weights: {{input_cached: 0.1, output: 4}}
    - {{team: web, concurrent_requests: 20}}
""",
    )
    assert limits.when_away is WhenAway.CLOSED
    compiled = CompiledLimits(limits.rules, KEYS[:1])
    ids = (
        "team:web/requests/minute/bucket",
        "team:web/concurrent_requests",
        "project:web/search/input_tokens/hour/bucket/models:gpt-*,m",
        f"key:{ONE}/output_tokens/second/bucket",
        f"key:{ONE}/total_tokens/month/calendar",
    )
    assert compiled.by_key == {ONE: ids}
    assert [compiled.limits[each] for each in ids] == [
        Limit(id=ids[0], owner="team web", measure=Measure.REQUESTS, amount=600, period=Period.MINUTE),
        Limit(id=ids[1], owner="team web", measure=Measure.CONCURRENT, amount=20),
        Limit(
            id=ids[2],
            owner="project web/search",
            measure=Measure.INPUT_TOKENS,
            amount=1_000_000,
            period=Period.HOUR,
            models=("gpt-*", "m"),
        ),
        Limit(id=ids[3], owner=f"key {ONE}", measure=Measure.OUTPUT_TOKENS, amount=0, period=Period.SECOND),
        Limit(
            id=ids[4],
            owner=f"key {ONE}",
            measure=Measure.TOTAL_TOKENS,
            amount=5_000_000,
            period=Period.MONTH,
            kind=Kind.CALENDAR,
            time_zone="Europe/Berlin",
            weights=Weights(input_cached=100, output=4000),
        ),
    ]


@pytest.mark.parametrize("measure", COUNTED)
def test_each_thing_that_is_counted_has_its_measure_and_its_words(measure: str) -> None:
    per = {} if measure == "concurrent_requests" else {"per": "day"}
    compiled = compile_rules({"team": "web", measure: 7, **per})
    (limit,) = compiled.limits.values()
    when = "at a time" if measure == "concurrent_requests" else "a day"
    unit = 10**9 if measure == "cost_usd" else 1
    words = "USD" if measure == "cost_usd" else measure.replace("_", " ")
    assert (limit.measure.value, limit.amount) == (measure, 7 * unit)
    assert limit.describe() == f"7 {words} {when} of team web"


def test_a_rule_for_each_gives_each_its_own() -> None:
    compiled = compile_rules(
        *({"each": each, "requests": 5, "per": "day"} for each in ("team", "project", "key"))
    )
    ends = "requests/day/bucket"
    assert compiled.by_key == {
        ONE: (f"team:web/{ends}", f"project:web/search/{ends}", f"key:{ONE}/{ends}"),
        TWO: (f"team:web/{ends}", f"project:web/chat/{ends}", f"key:{TWO}/{ends}"),
        THREE: (f"team:lab/{ends}", f"project:lab/search/{ends}", f"key:{THREE}/{ends}"),
    }
    assert len(compiled.limits) == 2 + 3 + 3


def test_projects_of_the_same_name_in_two_teams_are_two() -> None:
    compiled = compile_rules({"project": "web/search", "requests": 5, "per": "day"})
    assert {name for name, ids in compiled.by_key.items() if ids} == {ONE}


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(("own", "held"), [(3, 3), (9, 5)])
def test_of_two_rules_for_the_same_the_narrower_one_holds(own: int, held: int, is_turned: bool) -> None:
    rules = [
        {"each": "team", "requests": 5, "per": "day"},
        {"team": "web", "requests": own, "per": "day"},
    ]
    compiled = compile_rules(*(reversed(rules) if is_turned else rules))
    assert {limit.owner: limit.amount for limit in compiled.limits.values()} == {
        "team web": held,
        "team lab": 5,
    }
    assert all(len(ids) == 1 for ids in compiled.by_key.values())


def test_a_limit_keeps_its_id_whatever_becomes_of_the_amount_and_of_the_other_rules() -> None:
    rule = {"team": "web", "total_tokens": 5, "per": "day", "models": ["b", "a"]}
    (before,) = compile_rules(rule).limits
    after = compile_rules(
        {"each": "key", "requests": 1, "per": "day"},
        rule | {"total_tokens": 6, "weights": {"output": 2}, "models": ["a", "b", "a"]},
    )
    assert before in after.limits
    assert after.limits[before].amount == 6


RULES = st.builds(
    lambda whom, counted, per, rest: {whom[0]: whom[1], counted: 1}
    | ({} if counted == "concurrent_requests" else {"per": per.value, "window": rest[0]})
    | {"models": rest[1]},
    st.sampled_from(
        [("team", "web"), ("project", "web/search"), ("key", ONE), *(("each", e) for e in ("team", "key"))]
    ),
    st.sampled_from(COUNTED),
    st.sampled_from(Period),
    st.tuples(
        st.sampled_from(["bucket", "calendar"]),
        st.lists(
            st.sampled_from(["*", "m", "m/*", "calendar", "bucket", "models:m"]),
            min_size=1, max_size=2, unique=True,
        ).map(sorted),
    ),
)  # fmt: skip


@given(one=RULES, other=RULES)
def test_two_limits_have_one_id_only_if_they_count_the_same(
    one: dict[str, object], other: dict[str, object]
) -> None:
    found = [
        {
            each: (limit.owner, limit.measure, limit.period, limit.kind, limit.models)
            for each, limit in limits.items()
        }
        for limits in (compile_rules(one).limits, compile_rules(other).limits)
    ]
    for one_id, counted in found[0].items():
        for other_id, other_counted in found[1].items():
            assert (one_id == other_id) == (counted == other_counted)


#: rule, key below it, a part of the message, a part of the hint
MISTAKES = [
    ("{requests: 5, per: day}", "", "does not say for whom", "give one of team, project, key, each"),
    ("{team: a, each: key, requests: 5, per: day}", "", "for whom it is: team, each", "of each"),
    ("{team: a, per: day}", "", "does not say what it counts", "give one of requests, input_tokens"),
    ("{team: a, requests: 5, total_tokens: 6, per: day}", "", "two ways what it counts", "all that apply"),
    ("{team: a, requests: 5}", "", "does not say in which time", "`per: minute`"),
    ("{team: a, concurrent_requests: 5, per: day}", ".per", "no meaning for concurrent", "remove"),
    ("{team: a, concurrent_requests: 5, window: calendar}", ".window", "no meaning", "remove"),
    ("{team: a, requests: 5, per: day, time_zone: Asia/Tokyo}", ".time_zone", "for a calendar", "window:"),
    ("{team: a, requests: 5, per: day, weights: {output: 2}}", ".weights", "are for tokens", "remove"),
    ("{team: a, output_tokens: 5, per: day, weights: {input: 2}}", ".weights.input", "for output", "remove"),
    ("{team: a, input_tokens: 5, per: day, weights: {output_audio: 2}}", ".weights.output_audio",
     "for input", "remove"),
    ("{team: a, cost_usd: 5, per: day, models: [zz], weights: {output: 2}}", ".weights",
     "are for tokens", "remove"),
    ("{team: a, cost_usd: '0.0000000001', per: day, models: [zz]}", ".cost_usd", "at most nine decimals", ""),
    ("{team: a, cost_usd: -1, per: day, models: [zz]}", ".cost_usd", "not an amount", ""),
    ("{team: a, requests: 5, per: day, alert_at: [0.5]}", ".alert_at", "only for a calendar", "window"),
    ("{team: a, requests: 5, per: day, window: calendar, alert_at: [0]}", ".alert_at[0]", "more than 0", ""),
    ("{team: a, requests: 5, per: day, grace: {for_s: 5, share: 1}}", ".grace", "only for a calendar",
     "window"),
    ("{team: a, concurrent_requests: 5, when_exceeded: {throttle: {requests: 1, per: day}}}",
     ".when_exceeded", "no meaning", "remove"),
    ("{team: a, requests: 5, per: day, when_exceeded: {}}", ".when_exceeded", "says not one thing",
     "throttle"),
    ("{team: a, requests: 5, per: day, when_exceeded: {downgrade: nobody}}", ".when_exceeded.downgrade",
     "not configured", "take one of"),
    ("{team: a, requests: 2020-01-01, per: day}", ".requests", "is a date", ""),
    ('{team: a, requests: 5, per: day, time_zone: "\\ud800"}', ".time_zone", "half of a character", "itself"),
    ("{team: a, requests: 5, per: fortnight}", ".per", "not one of the values", "'second', 'minute'"),
    ("{team: a, requests: 5, per: day, window: sliding}", ".window", "not one of the values", "'calendar'"),
    ("{each: user, requests: 5, per: day}", ".each", "not one of the values", "'team', 'project' or 'key'"),
    ("{team: a b, requests: 5, per: day}", ".team", "not a usable name", "letters"),
    ("{project: search, requests: 5, per: day}", ".project", "with its team: `project: TEAM/PROJECT`", ""),
    ("{key: fb-0123456789, requests: 5, per: day}", ".key", "by its id, which `forebay keys list` shows", ""),
    ("{team: a, requests: -1, per: day}", ".requests", "at least 0", ""),
    ("{team: a, requests: 1000000000001, per: day}", ".requests", "at most 1000000000000", ""),
    ("{team: a, requests: 1.5, per: day}", ".requests", "whole number", ""),
    ("{team: a, requests: 600 + ccu, per: day}", ".requests", "does not have: `ccu`", "declare it"),
    ("{team: a, requests: 600 + * 5, per: day}", ".requests", "nor an expression: column 7: expected a", ""),
    ("{team: a, requests: '', per: day}", ".requests", "column 1: expected a number", ""),
    ("{team: a, cost_usd: 1 +, per: day, models: [zz]}", ".cost_usd", "nor an expression: column 4", ""),
    ("{team: a, request: 5, requests: 5, per: day}", ".request", "unknown key", "did you mean `requests`?"),
    ("{team: a, requests: 5, per: day, models: []}", ".models", "needs at least 1", ""),
    ("{team: a, requests: 5, per: day, models: ['a,b']}", ".models[0]", "a pattern is a public name", ""),
    ("{team: a, requests: 5, per: day, models: gpt}", ".models", "must be a list", ""),
    ("{team: a, total_tokens: 5, per: day, weights: {output: -1}}", ".weights.output", "at least 0", ""),
    ("{team: a, total_tokens: 5, per: day, weights: {outputs: 1}}", ".weights.outputs", "unknown", "output"),
    ("{team: a, requests: 5, per: day, window: calendar, time_zone: X/Y}", ".time_zone", "no time", ""),
    ("{team: a, requests: 5, per: day, window: calendar, time_zone: ../x}", ".time_zone", "no time zone", ""),
    ("5", "", "must be a mapping", "indent"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "place", "message", "hint"), MISTAKES, ids=[rule for rule, *_ in MISTAKES])
def test_a_mistake_is_told_at_its_line_and_once(
    tmp_path: Path, rule: str, place: str, message: str, hint: str
) -> None:
    text = f"limits:\n  rules:\n    - {{each: key, requests: 1, per: hour}}\n    - {rule}\n"
    (problem,) = problems_of(tmp_path, text)
    assert (problem.line, problem.key) == (4, f"limits.rules[1]{place}")
    assert message in problem.message
    assert hint in problem.hint


def test_all_mistakes_of_a_rule_are_told_at_once(tmp_path: Path) -> None:
    text = "limits:\n  rules:\n    - tem: a\n      requests: many\n    - {team: b, requests: 1}\n"
    found = problems_of(tmp_path, text)
    assert [(each.line, each.key) for each in found] == [
        (3, "limits.rules[0]"),  # for whom
        (3, "limits.rules[0]"),  # in which time
        (3, "limits.rules[0].tem"),
        (4, "limits.rules[0].requests"),
        (5, "limits.rules[1]"),
    ]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{team: a, total_tokens: 5, per: day}", "is for the same as limits.rules[0]"),
        ("{team: a, total_tokens: 6, per: day, window: bucket, models: ['*']}", "is for the same"),
        ("{each: team, total_tokens: 5, per: day, weights: {output: 2}}", "other weights"),
        ("{each: team, total_tokens: 5, per: day}", None),
        ("{each: team, total_tokens: 6, per: day, weights: {output: 1}}", None),
        ("{team: b, total_tokens: 5, per: day, weights: {output: 2}}", None),
        ("{team: a, total_tokens: 5, per: hour}", None),
        ("{team: a, total_tokens: 5, per: day, window: calendar}", None),
        ("{team: a, total_tokens: 5, per: day, models: [m]}", None),
        ("{team: a, output_tokens: 5, per: day}", None),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_two_rules_for_the_same_are_a_mistake(
    tmp_path: Path, second: str, message: str | None, is_turned: bool
) -> None:
    rules = ["{team: a, total_tokens: 5, per: day}", second]
    if is_turned:
        rules.reverse()
    found = problems_of(tmp_path, f"limits:\n  rules:\n    - {rules[0]}\n    - {rules[1]}\n")
    if message is None:
        assert found == ()
        return
    (problem,) = found
    assert (problem.line, problem.key) == (4, "limits.rules[1]")
    assert message in problem.message
    assert problem.hint


def test_limits_survive_being_kept_and_shown(tmp_path: Path) -> None:
    text = (
        "limits: {when_away: open, rules: [{each: key, concurrent_requests: 1}, {team: a, total_tokens: 9, "
        "per: week, window: calendar, time_zone: Asia/Tokyo, weights: {input_audio: 2.5}}, "
        "{team: a, requests: 1, per: second}]}\n"
    )
    file = tmp_path / "forebay.yaml"
    file.write_text(text)
    config = load_config(file, {})
    assert Config.model_validate_json(config.model_dump_json()).limits == config.limits
    file.write_text(dump_config(config))
    assert load_config(file, {}).limits == config.limits


@pytest.mark.parametrize(
    ("rule", "is_valid"),
    [
        ("{team: a, requests: 5, per: day}", True),
        ("{each: key, concurrent_requests: 5}", True),
        ("{requests: 5, per: day}", False),
        ("{team: a, each: key, requests: 5, per: day}", False),
        ("{team: a, requests: 5, output_tokens: 5, per: day}", False),
        ("{team: a, requests: 5}", False),
        ("{team: a, concurrent_requests: 5, per: day}", False),
        ("{project: search, requests: 5, per: day}", False),
    ],
)
def test_an_editor_sees_the_mistakes_of_a_rule_too(rule: str, is_valid: bool) -> None:
    schema = yaml.safe_load(SCHEMA_PATH.read_text())
    document = yaml.safe_load(f"limits: {{rules: [{rule}]}}")
    assert jsonschema.Draft202012Validator(schema).is_valid(document) is is_valid


def test_models_that_a_limit_of_cost_would_refuse_are_named(tmp_path: Path) -> None:
    models = "models: {cheap: {%s}, own: {%s}}\n".replace(
        "%s", "endpoints: [chat/completions], targets: [{url: 'http://127.0.0.1:9/v1'}]"
    )
    prices = "prices: {book: [{model: che*, usd_per_request: 0}]}\n"
    rule = "limits: {rules: [{team: a, cost_usd: 5, per: day}]%s}\n"
    (problem,) = problems_of(tmp_path, models + prices + rule.replace("%s", ""))
    assert problem.severity == "warning"
    assert "refuses them: own" in problem.message
    assert problems_of(tmp_path, models + prices + rule.replace("%s", ", unpriced: allow")) == ()
