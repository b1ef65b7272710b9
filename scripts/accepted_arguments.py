"""Writes down which arguments a version of an engine accepts, from the engine's own parser.

`check_arguments` (forebay.engines.accepted) goes by what this prints.  Run it by the Python of the engine's
environment, whenever a recipe gets another version:

    ENVIRONMENT/bin/python scripts/accepted_arguments.py vllm > src/forebay/engines/accepted/vllm-VERSION.json
    .venv/bin/python scripts/accepted_arguments.py llamacpp > src/forebay/engines/accepted/llamacpp.json
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any


def load_vllm() -> tuple[argparse.ArgumentParser, str]:
    import vllm
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    # vLLM looks these names up only when it starts.
    for name, known in (
        ("tool_call_parser", ToolParserManager.list_registered()),
        ("reasoning_parser", ReasoningParserManager.list_registered()),
    ):
        next(each for each in parser._actions if each.dest == name).choices = sorted(known)
    return parser, vllm.__version__.partition("+")[0]


def load_llamacpp() -> tuple[argparse.ArgumentParser, str]:
    from forebay.engines.llamacpp import make_parser

    return make_parser(), ""


LOADERS: dict[str, Callable[[], tuple[argparse.ArgumentParser, str]]] = {
    "vllm": load_vllm,
    "llamacpp": load_llamacpp,
}


def takes(convert: Callable[[str], Any], text: str) -> bool:
    """Whether an argument's own conversion takes a text; whatever it raises is a no."""
    try:
        convert(text)
    except Exception:  # noqa: BLE001 - whatever it is, it is a refusal
        return False
    return True


def find_kind(action: argparse.Action) -> str:
    """By what the argument takes: `flag`, `text`, `number`, `integer`, `json`."""
    if action.nargs == 0:
        return "flag"
    convert = action.type
    if convert is None or convert is str:
        return "text"
    if convert in (int, float):
        return "integer" if convert is int else "number"
    assert callable(convert)
    if takes(convert, "some-word"):
        return "text"
    if takes(convert, "[1]") or takes(convert, '{"a": 1}'):
        return "json"
    if takes(convert, "1.5"):
        return "number"
    if takes(convert, "1"):
        return "integer"
    return "json"


def describe(action: argparse.Action) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": find_kind(action)}
    if action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1):
        told["many"] = True
    if action.nargs == "?":
        told["bare"] = True
    if action.choices:
        told["choices"] = sorted(str(choice) for choice in action.choices if choice is not None)
    if told["kind"] == "integer" and callable(action.type) and takes(action.type, "4k"):
        told["suffixes"] = True
    if action.default not in (None, argparse.SUPPRESS):
        plain = isinstance(action.default, (bool, int, float, str))
        told["default"] = action.default if plain else str(action.default)[:200]
    return told


def main() -> None:
    kind = sys.argv[1]
    with contextlib.redirect_stdout(sys.stderr):  # an engine may say something while it is loaded
        parser, version = LOADERS[kind]()
    arguments: dict[str, Any] = {}
    for action in parser._actions:
        names = [each.removeprefix("--") for each in action.option_strings if each.startswith("--")]
        names = [each for each in names if each != "help"]
        if not names:
            continue
        told = describe(action)
        negated = isinstance(action, argparse.BooleanOptionalAction)
        if told["kind"] == "flag" and negated:
            told["negated"] = True
        for name in names:
            if negated and name.startswith("no-") and name.removeprefix("no-") in names:
                continue
            arguments[name.replace("_", "-")] = told
    json.dump(
        {"kind": kind, "version": version, "arguments": dict(sorted(arguments.items()))}, sys.stdout, indent=1
    )
    print()


if __name__ == "__main__":
    main()
