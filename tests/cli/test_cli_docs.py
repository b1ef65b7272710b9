"""`docs/cli.md` knows every command, argument and option, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from forebay.cli.main import app
from forebay.cli.terminal import Outcome

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^## `(forebay [^`]+)`\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child, inner in children.items():
        yield from walk(inner, f"{name} {child}")


TREE = dict(walk(get_command(app), "forebay"))


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(SECTIONS) == set(TREE)


@pytest.mark.parametrize("name", sorted(TREE))
def test_every_option_and_argument_is_in_its_section(name: str) -> None:
    options = {word for param in TREE[name].params for word in (*param.opts, *param.secondary_opts)}
    options = {word for word in options if word.startswith("-")} - {"-h", "--help"}
    documented = set(re.findall(r"^\| `(--[a-z-]+)", SECTIONS[name], re.MULTILINE))
    documented |= set(re.findall(r"^\| `--[^|]*, `(-[a-z])`", SECTIONS[name], re.MULTILINE))
    assert documented == options
    for param in TREE[name].params:
        if param.param_type_name == "argument":
            assert f"`{(param.metavar or param.name).upper().replace('KEY_ID', 'ID')}`" in SECTIONS[name]


def test_options_of_the_root_are_documented() -> None:
    for param in get_command(app).params:
        for word in param.opts:
            assert f"{word}" in DOCUMENT


def test_every_option_and_command_has_help() -> None:
    for name, command in TREE.items():
        assert command.help, name
        for param in command.params:
            assert param.help, f"{name}: {param.name}"


def test_every_exit_status_is_documented() -> None:
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", DOCUMENT, re.MULTILINE)} == set(Outcome)
