"""Checks the arguments that a deployment gives an engine against what that version of it really accepts.

What is accepted was written down from each engine's own parser (`scripts/accepted_arguments.py`) and comes
with Forebay, in the folder `accepted`.  Starts no engine.  A version of which nothing was written down is
checked against nothing, and that is said.
"""

import difflib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from forebay.engines import vllm_options
from forebay.engines.model import Argument

_FOLDER: Final = files("forebay.engines").joinpath("accepted")
_SUFFIXES: Final = frozenset("kKmMgGtT")
SHOWN_MAX: Final = 12  #: choices that a message lists
#: Arguments of Forebay's own runner that a specification sets by its fields.
_LLAMACPP_OWNED: Final[Mapping[str, str]] = {
    "name": "the name of the engine",
    "alias": "the name of the engine",
    "host": "the address that the launcher gives",
    "port": "the address that the launcher gives",
    "model": "model",
    "threads": "threads",
    "slots": "slots",
    "context-tokens": "context_tokens",
    "ngram-tokens": "speculation",
    "ngram-lookup": "speculation",
}
OWNED: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": vllm_options.OWNED,
    "llamacpp": _LLAMACPP_OWNED,
}


class Severity(StrEnum):
    ERROR = "error"  #: the engine would not start
    WARNING = "warning"  #: nobody knows


class ArgumentProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with an argument, and how to mend it."""

    name: str  #: as it was given; empty where it is about all of them
    message: str
    hint: str = ""
    severity: Severity = Severity.ERROR


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """One argument, as an engine's parser has it."""

    kind: str  #: `flag`, `text`, `number`, `integer` or `json`
    many: bool = False  #: takes several values
    bare: bool = False  #: may stand without a value
    negated: bool = False  #: a flag that can be turned off
    suffixes: bool = False  #: takes `8k`
    choices: tuple[str, ...] = ()
    default: bool | int | float | str | None = None


class AcceptedArguments(msgspec.Struct, frozen=True, kw_only=True):
    """All that a version of an engine accepts."""

    kind: str
    version: str
    arguments: Mapping[str, Accepted]


@cache
def load_accepted(kind: str, version: str) -> AcceptedArguments | None:
    """None where nothing was written down of that version.

    Forebay's own runner is the same for all versions of llama.cpp.
    """
    name = f"{kind}.json" if kind == "llamacpp" else f"{kind}-{version}.json"
    if "/" in name:
        return None
    try:
        data = _FOLDER.joinpath(name).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=AcceptedArguments)


def list_known_versions(kind: str) -> tuple[str, ...]:
    """Of which it is written down what they accept."""
    names = (each.name for each in _FOLDER.iterdir())
    start = f"{kind}-"
    return tuple(
        sorted(name.removeprefix(start).removesuffix(".json") for name in names if name.startswith(start))
    )


def check_arguments(
    kind: str, version: str, arguments: Mapping[str, Argument]
) -> tuple[ArgumentProblem, ...]:
    """All that the engine would refuse; empty where it would take them.

    Args:
        kind: of the engine.
        version: of the engine; the newest that is written down where it is empty.
        arguments: values by the names of the engine's own command line, without dashes.
    """
    if not arguments:
        return ()
    known = list_known_versions(kind)
    accepted = load_accepted(kind, version or (known[-1] if known else ""))
    if accepted is None:
        return (_tell_unknown(kind, version, known),)
    return tuple(
        problem for name, value in arguments.items() if (problem := _check(accepted, name, value)) is not None
    )


def _tell_unknown(kind: str, version: str, known: tuple[str, ...]) -> ArgumentProblem:
    if known:
        return ArgumentProblem(
            name="",
            message=f"nobody wrote down what {kind} {version} accepts, so its arguments are not checked",
            hint=f"known are {', '.join(known)}",
            severity=Severity.WARNING,
        )
    return ArgumentProblem(
        name="", message=f"an engine of kind {kind} takes no arguments", hint="remove `arguments`"
    )


def _check(accepted: AcceptedArguments, given: str, value: Argument) -> ArgumentProblem | None:
    engine = " ".join(part for part in (accepted.kind, accepted.version) if part)
    name = given.removeprefix("--").replace("_", "-")
    if (owner := OWNED.get(accepted.kind, {}).get(name)) is not None:
        is_field = owner.replace("_", "").isalpha()
        says = f"`{owner}` says that already" if is_field else f"that is {owner}"
        return ArgumentProblem(name=given, message=f"can't be given here: {says}", hint="remove it")
    argument = _find(accepted.arguments, name)
    if argument is None:
        positive = name.removeprefix("no-")
        if positive != name and positive in accepted.arguments:
            hint = f"give `{positive}: false`"
        else:
            close = difflib.get_close_matches(name, accepted.arguments, n=1, cutoff=0.6)
            hint = f"did you mean `{close[0]}`?" if close else "remove it"
        return ArgumentProblem(name=given, message=f"{engine} has no such argument", hint=hint)
    problem = next(_check_value(argument, value), None)
    if problem is None:
        return None
    message, hint = problem
    return ArgumentProblem(name=given, message=f"{engine} takes {message}", hint=hint)


def _find(arguments: Mapping[str, Accepted], name: str) -> Accepted | None:
    """vLLM takes the parts of a value in JSON apart as well: `hf-overrides.rope_theta`."""
    if name in arguments:
        return arguments[name]
    base, dot, _ = name.partition(".")
    whole = arguments.get(base) if dot else None
    is_parted = whole is not None and (whole.kind == "json" or whole.default == "{}")
    return Accepted(kind="text") if is_parted else None


def _check_value(argument: Accepted, value: Argument) -> Iterator[tuple[str, str]]:
    """What it takes instead, and how to mend it."""
    if isinstance(value, tuple):
        if argument.many or (argument.kind == "json" and not argument.choices):
            for each in value:
                yield from _check_one(argument, each)
        else:
            yield "one value, not a list", "give one"
        return
    if argument.kind == "flag":
        if not isinstance(value, bool):
            yield "true or false", f"give `true` or `false`, not {value!r}"
        elif not value and not argument.negated:
            yield "no `false` here", "remove it: that is what it is without it"
        return
    if isinstance(value, bool):
        if not (argument.bare and value):
            yield f"a value: {_describe_kind(argument)}", "give one"
        return
    yield from _check_one(argument, value)


def _check_one(argument: Accepted, value: str | int | float) -> Iterator[tuple[str, str]]:
    wanted = _describe_kind(argument)
    text = str(value)
    if argument.choices and text not in argument.choices:
        close = difflib.get_close_matches(text, argument.choices, n=1, cutoff=0.5)
        shown = ", ".join(argument.choices[:SHOWN_MAX])
        more = f" and {len(argument.choices) - SHOWN_MAX} more" if len(argument.choices) > SHOWN_MAX else ""
        yield f"one of {shown}{more}", f"did you mean `{close[0]}`?" if close else f"not {text!r}"
    elif argument.choices or argument.kind == "text":
        return
    elif argument.kind == "integer":
        digits = text[:-1] if argument.suffixes and text[-1:] in _SUFFIXES else text
        if not _is_number(digits, whole=digits == text):
            yield wanted, f"not {text!r}"
    elif argument.kind == "number":
        if not _is_number(text, whole=False):
            yield wanted, f"not {text!r}"
    elif argument.kind == "json" and isinstance(value, str) and not _is_json(text):
        yield wanted, f"{text[:60]!r} is none"


def _describe_kind(argument: Accepted) -> str:
    return {
        "integer": "a whole number" + (", such as 4096 or 4k" if argument.suffixes else ""),
        "number": "a number",
        "json": "a value in JSON",
    }.get(argument.kind, "a text")


def _is_number(text: str, *, whole: bool) -> bool:
    try:
        int(text) if whole else float(text)
    except ValueError:
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
