"""What concerns several keys of a usage rule, several rules of a target, or rules and prices at once.

Works on the raw values, as `config_checks` does, which calls it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forebay.app.config_explain import suggest_hint
from forebay.app.config_problems import Severity, format_key
from forebay.app.config_source import KeyPath
from forebay.core.prices import PART_OF
from forebay.providers.media_usage import UNIT_OF

Found = tuple[KeyPath, str, str, Severity, bool]


def check_usage(path: KeyPath, target: Mapping[str, Any]) -> Iterator[Found]:
    """What concerns several keys of a rule, or several rules of a target, at once."""
    rules = target.get("usage")
    seen: dict[tuple[str, str], int] = {}
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        if not isinstance(rule, Mapping):
            continue
        where: KeyPath = (*path, "usage", index)
        given = [(kind, str(rule[kind])) for kind in ("class", "unit") if kind in rule]
        if len(given) != 1:
            what = "says in two ways what it counts" if given else "does not say what it counts"
            yield _error(where, what, "give `class` for tokens, or `unit` for anything else")
            continue
        if given[0] in seen:
            message = f"counts the same as {format_key((*path, 'usage', seen[given[0]]))}"
            yield _error(where, message, "remove one of the two: each class and unit has one place")
        seen.setdefault(given[0], index)
        if "included_in" in rule and (hint := _find_included_mistake(rule)):
            message = f"`{given[0][1]}` can't be included in it"
            yield _error((*where, "included_in"), message, hint)


def _error(path: KeyPath, message: str, hint: str) -> Found:
    return path, message, hint, Severity.ERROR, False


def list_units(models: object, targets: Iterable[Mapping[str, Any]]) -> set[str]:
    """The units that some rule counts, or that follow from what a model answers.

    Args:
        models: of the file.
    """
    listed = [
        endpoint
        for model in (models.values() if isinstance(models, Mapping) else ())
        if isinstance(model, Mapping) and isinstance(model.get("endpoints"), list)
        for endpoint in model["endpoints"]
    ]
    own = {unit for endpoint, unit in UNIT_OF.items() if endpoint.value in listed}
    rules = [rule for target in targets if isinstance(target.get("usage"), list) for rule in target["usage"]]
    return own | {str(rule["unit"]) for rule in rules if isinstance(rule, Mapping) and "unit" in rule}


def check_priced_units(path: KeyPath, prices: Mapping[str, Any], counted: set[str]) -> Iterator[Found]:
    """A price for what nobody counts charges nothing, which a misspelled name does unseen."""
    for name in prices:
        if name not in counted:
            hint = suggest_hint(str(name), counted, "the units that are counted are")
            yield (*path, str(name)), "no target counts this unit", hint, Severity.WARNING, False


def _find_included_mistake(rule: Mapping[str, Any]) -> str:
    """How to mend it; empty where all is well, or where the setting itself reports what is not."""
    whole = rule["included_in"]
    if whole not in ("input", "output"):
        return ""
    if "unit" in rule:
        return "remove it: a unit is no part of the tokens"
    name = str(rule.get("class"))
    if name in ("input", "output"):
        return "remove it: it is a whole itself"
    if name in PART_OF and PART_OF[name] != whole:
        return f"write `included_in: {PART_OF[name]}`, or remove it where the number is counted beside"
    return ""
