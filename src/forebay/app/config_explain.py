"""pydantic's validation errors in plain words, with a hint, and without the value that stood there.

Pure: a table from pydantic's error types to words, and a guess at what was meant for a key or name that does
not exist.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from forebay.app.config_problems import ConfigProblem, format_key
from forebay.app.config_settings import find_key_elsewhere, find_keys
from forebay.app.config_source import KeyPath, Source

_KINDS: Final = ("llamacpp", "minilm")  #: of `engines`

Words = tuple[str, str]


def explain_errors(error: ValidationError, source: Source) -> list[ConfigProblem]:
    """One problem for each error, without the copies that a filled-in default would make."""
    problems: list[ConfigProblem] = []
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(_is_below(other["loc"], item["loc"]) for other in items):
            continue  # only because the wrong ones in the list do not count
        path = _clean_path(item["loc"])
        if path and path[0] in ("engines", "models") and path[0] not in source.data:
            continue  # made from the other one, where the same mistake is reported
        ctx = {"input": item.get("input"), **item.get("ctx", {})}
        message, hint = _explain(item["type"], ctx, item["msg"], path)
        problem = ConfigProblem(
            file=source.file, line=source.line(path), key=format_key(path), message=message, hint=hint
        )
        if problem not in problems:
            problems.append(problem)
    return problems


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like it, if one is."""
    by_folded = {name.casefold().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.casefold().replace("-", "_"), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def suggest_hint(word: str, known: Iterable[str], noun: str) -> str:
    """A hint for a name that does not exist."""
    names = sorted(known)
    if (close := suggest(word, names)) is not None:
        return f"did you mean `{close}`?"
    return f"{noun}: {', '.join(names)}" if names else f"{noun}: none"


def _is_below(path: KeyPath, other: KeyPath) -> bool:
    return len(path) > len(other) and path[: len(other)] == other


def _clean_path(loc: tuple[int | str, ...]) -> KeyPath:
    """Takes out what pydantic puts into a path beside keys: the chosen kind, the mark of a key's error."""
    path = tuple(part for part in loc if part != "[key]")
    if len(path) > 2 and path[0] == "engines" and path[2] in _KINDS:
        path = (*path[:2], *path[3:])
    return path


def _explain(kind: str, ctx: Mapping[str, Any], raw: str, path: KeyPath) -> Words:
    if kind == "extra_forbidden":
        return "unknown key", _hint_unknown_key(path)
    if kind == "missing":
        return "is missing", f"write `{path[-1]}:`"
    if kind == "string_pattern_mismatch":
        return (
            "not a usable name",
            "letters, digits and . _ - (model names also : / @ +), the first a letter or digit",
        )
    if kind == "value_error":
        return str(ctx.get("error", raw)), _hint_value_error(path)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = str(ctx.get("tag", "")).strip("'\"")
        word = "unknown kind of engine" if kind == "union_tag_invalid" else "`kind` is missing"
        return word, suggest_hint(tag, _KINDS, "the kinds are")
    if kind in ("literal_error", "enum"):
        return "not one of the values that are possible", _hint_choice(ctx)
    if kind in _TABLE:
        return _TABLE[kind](ctx)
    return raw[:1].lower() + raw[1:], ""


def _hint_value_error(path: KeyPath) -> str:
    if path and path[-1] == "api_key":
        return "put the key into the environment, for example `api_key: env:PROVIDER_API_KEY`"
    return ""


def _hint_choice(ctx: Mapping[str, Any]) -> str:
    expected = str(ctx.get("expected", ""))
    if isinstance(given := ctx["input"], str) and (
        close := suggest(given, re.findall(r"'([^']*)'", expected))
    ):
        return f"did you mean `{close}`?"
    return f"possible: {expected}"


def _explain_at_most(ctx: Mapping[str, Any]) -> Words:
    """Whoever writes 95 where a share belongs means 95 %."""
    given, most = ctx["input"], ctx["le"]
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if is_number and 0.9 <= most <= 1 < given <= 100:
        return f"must be at most {most}", f"a share: {given:g} % is {given / 100:g}"
    return f"must be at most {most}", ""


def _explain_less(ctx: Mapping[str, Any]) -> Words:
    given, limit = ctx["input"], ctx["lt"]
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    hint = f"a share: {given:g} % is {given / 100:g}" if is_number and limit == 1 <= given <= 100 else ""
    return f"must be less than {limit:g}", hint


def _hint_unknown_key(path: KeyPath) -> str:
    known = find_keys(path[:-1])
    word = str(path[-1])
    if (close := suggest(word, known)) is not None:
        return f"did you mean `{close}`?"
    if (elsewhere := find_key_elsewhere(word)) is not None:
        return f"did you mean `{elsewhere}`?"
    return f"known here: {', '.join(known)}"


_TABLE: Final[dict[str, Callable[[Mapping[str, Any]], Words]]] = {
    "int_type": lambda ctx: ("must be a whole number", "without quotes and unit"),
    "int_from_float": lambda ctx: ("must be a whole number", "without a decimal point"),
    "float_type": lambda ctx: ("must be a number", "without quotes and unit"),
    "finite_number": lambda ctx: ("must be a finite number", ""),
    "string_type": lambda ctx: ("must be text", "put it in quotes"),
    "path_type": lambda ctx: ("must be a path", "put it in quotes"),
    "bool_type": lambda ctx: ("must be true or false", ""),
    "dict_type": lambda ctx: ("must be a mapping (`key: value`)", "indent its keys below it"),
    "mapping_type": lambda ctx: ("must be a mapping (`key: value`)", "indent its keys below it"),
    "model_type": lambda ctx: ("must be a mapping (`key: value`)", "indent its keys below it"),
    "model_attributes_type": lambda ctx: ("must be a mapping (`key: value`)", "indent its keys below it"),
    "tuple_type": lambda ctx: ("must be a list", "write `[a, b]`, or `- a` on lines of their own"),
    "list_type": lambda ctx: ("must be a list", "write `[a, b]`, or `- a` on lines of their own"),
    "greater_than": lambda ctx: (f"must be more than {ctx['gt']:g}", ""),
    "greater_than_equal": lambda ctx: (f"must be at least {ctx['ge']}", ""),
    "less_than": _explain_less,
    "less_than_equal": _explain_at_most,
    "string_too_short": lambda ctx: ("must not be empty", ""),
    "string_too_long": lambda ctx: (f"is longer than {ctx['max_length']} characters", ""),
    "too_short": lambda ctx: (f"needs at least {ctx['min_length']}", ""),
    "too_long": lambda ctx: (f"holds more than {ctx['max_length']}", ""),
}
