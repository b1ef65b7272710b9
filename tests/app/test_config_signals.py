"""Amounts that are expressions over signals: what they come to, and mistakes told at their line."""

import warnings
from pathlib import Path

import jsonschema
import pytest
import yaml
from test_config_limits import KEYS, ONE, load, problems_of

from forebay.app.config import dump_config, load_config
from forebay.app.config_limits import CompiledLimits, LimitConfig
from forebay.app.config_model import Config
from forebay.app.config_settings import SCHEMA_PATH
from forebay.app.config_signals import SignalConfig, compile_signals
from forebay.core.limits import Limit, Measure, Period
from forebay.gateway.policy.signals import SignalRule

SIGNALS = {"ccu": SignalConfig(default=10), "rooms": SignalConfig()}


def compile_rules(*rules: dict[str, object]) -> dict[str, Limit]:
    made = [LimitConfig.model_validate(rule) for rule in rules]
    return CompiledLimits(made, KEYS, SIGNALS).limits


def test_an_expression_is_kept_and_its_amount_is_that_without_reports(tmp_path: Path) -> None:
    limits = load(
        tmp_path,
        """
limits:
  signals:
    ccu: {default: 2.5, stale_after_s: 30}
    rooms: {}
  rules:
    - {project: web/search, requests: 600 + 1.5 * ccu, per: minute}
    - {each: key, concurrent_requests: "max(2, rooms / 10)"}
    - {team: web, cost_usd: 10 + 0.01 * ccu, per: day, window: calendar}
    - {team: lab, total_tokens: 1000 * 60, per: minute}
""",
    )
    assert compile_signals(limits.signals) == {
        "ccu": SignalRule(2_500_000, 30 * 10**9),
        "rooms": SignalRule(0, 120 * 10**9),
    }
    compiled = CompiledLimits(limits.rules, KEYS[:1], limits.signals).limits
    first = Limit(
        id="project:web/search/requests/minute/bucket",
        owner="project web/search",
        measure=Measure.REQUESTS,
        amount=603,
        period=Period.MINUTE,
        expression="600 + 1.5 * ccu",
    )
    assert compiled[first.id] == first
    found = {limit.id: (limit.amount, limit.expression) for limit in compiled.values()}
    assert found == {
        first.id: (603, "600 + 1.5 * ccu"),
        f"key:{ONE}/concurrent_requests": (2, "max(2, rooms / 10)"),
        "team:web/cost_usd/day/calendar": (10_025_000_000, "10 + 0.01 * ccu"),
    }


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("each", "own", "amount", "expression"),
    [
        (5, "ccu", 5, ("min(5, ccu)", "min(ccu, 5)")),
        ("rooms", "ccu", 0, ("min(rooms, ccu)", "min(ccu, rooms)")),
        (5, 7, 5, ("", "")),
    ],
)
def test_of_two_rules_for_the_same_the_narrower_one_holds_at_any_time(
    is_turned: bool, each: object, own: object, amount: int, expression: tuple[str, str]
) -> None:
    rules: list[dict[str, object]] = [
        {"each": "team", "requests": each, "per": "day"},
        {"team": "web", "requests": own, "per": "day"},
    ]
    limit = compile_rules(*(reversed(rules) if is_turned else rules))["team:web/requests/day/bucket"]
    assert limit.amount == amount
    assert limit.expression in expression


def test_of_two_rules_in_money_the_fixed_one_is_spelled_in_usd() -> None:
    rules = (
        {"each": "team", "cost_usd": "0.5", "per": "day"},
        {"team": "web", "cost_usd": "ccu", "per": "day"},
    )
    limit = compile_rules(*rules)["team:web/cost_usd/day/bucket"]
    assert limit.amount == 500_000_000
    assert limit.expression in ("min(0.5, ccu)", "min(ccu, 0.5)")


#: signals, rule, key of the problem, a part of the message, a part of the hint
MISTAKES = [
    ("{ccu: {}}", "{team: a, requests: 5 + cuc, per: day}", "rules[0].requests", "`cuc`", "mean `ccu`?"),
    ("{x: {}}", "{team: a, requests: 5 + ccu, per: day}", "rules[0].requests", "`ccu`", "declare it"),
    ("{ccu: {}}", "{team: a, requests: 5 ccu, per: day}", "rules[0].requests", "column 3: `ccu`", ""),
    ("{ccu: {}}", "{team: a, requests: 'round(ccu)', per: day}", "rules[0].requests", "no function", ""),
    ("{ccu: {defualt: 1}}", "{team: a, requests: ccu, per: day}", "signals.ccu.defualt", "unknown", ""),
    ("{ccu: {default: -1}}", "{team: a, requests: ccu, per: day}", "signals.ccu.default", "at least 0", ""),
    ("{ccu: {default: .nan}}", "{team: a, requests: ccu, per: day}", "signals.ccu.default", "finite", ""),
    ("{ccu: {stale_after_s: 0}}", "{team: a, requests: ccu, per: day}", "signals.ccu.stale_after_s", "1", ""),
    ("{CCU: {}}", "{team: a, requests: 5, per: day}", "signals.CCU", "not a usable name", ""),
    ("5", "{team: a, requests: 5, per: day}", "signals", "must be a mapping", "indent"),
    (
        "{ccu: {}}",
        "{team: a, requests: ccu, per: day, window: calendar, grace: {for_s: 5, share: 0.1}}",
        "rules[0].grace",
        "goes with an amount that is fixed",
        "remove it",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("signals", "rule", "place", "message", "hint"), MISTAKES)
def test_a_mistake_is_told_at_its_line_and_once(
    tmp_path: Path, signals: str, rule: str, place: str, message: str, hint: str
) -> None:
    (problem,) = problems_of(tmp_path, f"limits:\n  signals: {signals}\n  rules:\n    - {rule}\n")
    assert (problem.line, problem.key) == (2 if place.startswith("signals") else 4, f"limits.{place}")
    assert message in problem.message
    assert hint in problem.hint


def test_a_mistake_in_money_is_told_as_well(tmp_path: Path) -> None:
    text = "limits:\n  unpriced: allow\n  rules:\n    - {team: a, cost_usd: 1 +, per: day}\n"
    (problem,) = problems_of(tmp_path, text)
    assert (problem.line, problem.key) == (4, "limits.rules[0].cost_usd")
    assert "is neither a number nor an expression: column 4" in problem.message


def test_expressions_survive_being_kept_and_shown(tmp_path: Path) -> None:
    text = (
        "limits: {signals: {ccu: {default: 1.5}}, rules: [{each: key, concurrent_requests: 5 + ccu}, "
        "{team: a, cost_usd: 2.5 * ccu, per: week}, {team: a, cost_usd: 2.5, per: day}, "
        "{team: a, requests: 7, per: second}]}\n"
    )
    file = tmp_path / "forebay.yaml"
    file.write_text(text)
    config = load_config(file, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Config.model_validate_json(config.model_dump_json()).limits == config.limits
        file.write_text(dump_config(config))
        config.model_dump()
    assert load_config(file, {}).limits == config.limits
    assert [rule.written for rule in config.limits.rules][:2] == ["5 + ccu", "2.5 * ccu"]


@pytest.mark.parametrize(
    ("section", "is_valid"),
    [
        ("{signals: {ccu: {default: 5}}, rules: [{team: a, requests: 5 + ccu, per: day}]}", True),
        ("{rules: [{team: a, cost_usd: 5 + 1, per: day}, {team: a, cost_usd: 2.5, per: hour}]}", True),
        ("{rules: [{team: a, requests: '', per: day}]}", False),
        ("{rules: [{team: a, requests: 1.5, per: day}]}", False),
        ("{signals: {ccu: {stale_after_s: 0}}}", False),
    ],
)
def test_an_editor_knows_expressions(section: str, is_valid: bool) -> None:
    schema = yaml.safe_load(SCHEMA_PATH.read_text())
    document = yaml.safe_load(f"limits: {section}")
    assert jsonschema.Draft202012Validator(schema).is_valid(document) is is_valid
