"""What concerns several settings of the section `limits` at once.

Works on the raw values, as `config_checks` does, which calls it.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from forebay.app.config_defaults import fill_engines_and_models
from forebay.app.config_explain import suggest
from forebay.app.config_limits import COUNTED, EACH, WHOM
from forebay.app.config_prices import load_shipped_prices
from forebay.app.config_problems import Severity, format_key
from forebay.app.config_source import KeyPath
from forebay.core.expressions import ExpressionInvalid, parse_expression

Found = tuple[KeyPath, str, str, Severity, bool]
_CALENDAR_ONLY: Final = ("alert_at", "grace")
#: Of two rules that meet in one limit these must be the same; only the amounts may differ.
_WAYS: Final = ("time_zone", "alert_at", "grace", "when_exceeded")
_DEFAULTS: Final = {"time_zone": "UTC"}


def check_limits(data: Mapping[str, Any]) -> Iterator[Found]:
    rules = _mapping(data.get("limits")).get("rules")
    signals = [str(name) for name in _mapping(_mapping(data.get("limits")).get("signals"))]
    models = _mapping(fill_engines_and_models(data)["models"])
    seen: dict[tuple[str, ...], dict[str, tuple[KeyPath, str]]] = {}  # what is counted, then for whom
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        if not isinstance(rule, Mapping):
            continue
        path: KeyPath = ("limits", "rules", index)
        yield from _check_limit(path, rule, models)
        if "cost_usd" in rule and _mapping(data.get("limits")).get("unpriced") != "allow":
            yield from _check_priced(path, rule, models, _mapping(data.get("prices")))
        whom = [name for name in WHOM if name in rule]
        counted = [name for name in COUNTED if name in rule]
        for name in counted:
            yield from _check_expression((*path, name), rule, signals)
        if len(whom) == len(counted) == 1:
            kind, name = whom[0], str(rule[whom[0]])
            if kind == "each":
                kind, name = name, EACH
            patterns = rule.get("models", ["*"])
            listed = patterns if isinstance(patterns, list) else [patterns]
            words = sorted({str(each) for each in listed})
            time = (str(rule.get("per")), str(rule.get("window", "bucket")))
            same = seen.setdefault((kind, counted[0], *time, *words), {})
            way = str((_find_weights(rule), [rule.get(key, _DEFAULTS.get(key)) for key in _WAYS]))
            yield from _check_same_limit(path, name, way, same)


def _find_weights(rule: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Those that do not count whole, which is the default."""
    return sorted((key, str(value)) for key, value in _mapping(rule.get("weights")).items() if value != 1)


def _check_limit(path: KeyPath, rule: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[Found]:
    for names, what in ((WHOM, "for whom it is"), (COUNTED, "what it counts")):
        given = [name for name in names if name in rule]
        if not given:
            yield _error(path, f"does not say {what}", f"give one of {', '.join(names)}")
        elif len(given) > 1:
            hint = "make a rule of each: all that apply hold at once"
            yield _error(path, f"says in two ways {what}: {', '.join(given)}", hint)
    counted = [name for name in COUNTED if name in rule]
    is_concurrent = counted == ["concurrent_requests"]
    is_calendar = rule.get("window") == "calendar"
    if counted and not is_concurrent and "per" not in rule:
        yield _error(path, "does not say in which time", "write `per: minute`, for example")
    for key, is_given in (("per", "per" in rule), ("window", is_calendar)):
        if is_concurrent and is_given:
            yield _error((*path, key), "has no meaning for concurrent_requests", "remove it")
    if not is_calendar and rule.get("time_zone", "UTC") != "UTC":
        hint = "write `window: calendar`, or remove it"
        yield _error((*path, "time_zone"), "has a meaning only for a calendar", hint)
    if counted and not counted[0].endswith("_tokens") and _find_weights(rule):
        yield _error((*path, "weights"), "are for tokens, and the rule counts none", "remove them")
    elif counted in (["input_tokens"], ["output_tokens"]):
        side = counted[0].removesuffix("_tokens")
        for name, _ in _find_weights(rule):
            if not name.startswith(side):
                yield _error(
                    (*path, "weights", name), f"counts nothing here: the rule is for {side}", "remove it"
                )
    for key in _CALENDAR_ONLY:
        if rule.get(key) and not is_calendar:
            yield _error((*path, key), "has a meaning only for a calendar", "write `window: calendar`")
    if rule.get("when_exceeded") is not None:
        yield from _check_exceeded((*path, "when_exceeded"), rule, models, is_concurrent=is_concurrent)


def _check_expression(path: KeyPath, rule: Mapping[str, Any], signals: list[str]) -> Iterator[Found]:
    text = rule[str(path[-1])]
    if not isinstance(text, str):
        return
    try:
        expression = parse_expression(text)
    except ExpressionInvalid:
        return  # the setting itself reports it
    for name in sorted(expression.names - set(signals)):
        close = suggest(name, signals)
        hint = f"declare it: `limits.signals: {{{name}: {{default: 0}}}}`"
        message = f"names a signal that `limits.signals` does not have: `{name}`"
        yield _error(path, message, hint if close is None else f"did you mean `{close}`?")
    if rule.get("grace") is not None and expression.names:
        hint = "remove it, or let the expression be that much more"
        yield _error((*path[:-1], "grace"), "goes with an amount that is fixed", hint)


def _check_exceeded(
    path: KeyPath, rule: Mapping[str, Any], models: Mapping[str, Any], *, is_concurrent: bool
) -> Iterator[Found]:
    if is_concurrent:
        yield _error(path, "has no meaning for concurrent_requests", "remove it")
    ways = _mapping(rule["when_exceeded"])
    if len(ways) != 1:
        yield _error(path, "says not one thing", "give one of throttle, downgrade; without it, it refuses")
    model = ways.get("downgrade")
    if isinstance(model, str) and model not in models:
        hint = f"take one of {', '.join(sorted(map(str, models)))}" if models else "add it to `models`"
        yield _error((*path, "downgrade"), "names a model that is not configured", hint)


def _check_priced(
    path: KeyPath, rule: Mapping[str, Any], models: Mapping[str, Any], prices: Mapping[str, Any]
) -> Iterator[Found]:
    """Warns of models that such a limit would refuse."""
    book = prices.get("book")
    patterns = [str(_mapping(entry).get("model", "*")) for entry in book] if isinstance(book, list) else []
    if prices.get("defaults") is True:
        patterns += [each.model for each in load_shipped_prices()]
    counted = rule.get("models", ["*"])
    counted = [str(each) for each in counted] if isinstance(counted, list) else []
    lacking = [
        str(model)
        for model in models
        if any(fnmatchcase(str(model), pattern) for pattern in counted)
        and not any(fnmatchcase(str(model), pattern) for pattern in patterns)
    ]
    if lacking:
        message = f"counts models that have no price, and refuses them: {', '.join(sorted(lacking)[:5])}"
        hint = "give each a price in `prices.book`; for your own hardware `usd_per_second`, or 0"
        yield path, message, hint, Severity.WARNING, False


def _check_same_limit(
    path: KeyPath, name: str, way: str, same: dict[str, tuple[KeyPath, str]]
) -> Iterator[Found]:
    """A limit has one way of counting: rules that meet in it may differ in the amount alone."""
    if name in same:
        hint = "remove one of the two: both would hold, so only the narrower one counts"
        yield _error(path, f"is for the same as {format_key(same[name][0])}", hint)
        return
    rivals = same.values() if name == EACH else [same[each] for each in (EACH,) if each in same]
    for other, its_way in rivals:
        if its_way != way:
            message = (
                "has other weights, or another time zone, `alert_at`, `grace` or `when_exceeded`, than "
                f"{format_key(other)}, which it meets"
            )
            yield _error(path, message, "give both the same; only the amounts may differ")
            break
    same[name] = path, way


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _error(path: KeyPath, message: str, hint: str) -> Found:
    return path, message, hint, Severity.ERROR, False
