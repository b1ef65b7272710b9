"""The documentation of running Forebay names what the code has: actions of the audit, settings, fields."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
from forebay.app.control_limits import LimitView
from forebay.app.control_watch import RESTART_SETTINGS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/**/*.md"))]
ADMIN_API = (ROOT / "docs" / "admin-api.md").read_text()
ACTION = re.compile(r"[a-z]+\.[a-z_]+")


def find_actions() -> Iterator[str]:
    """What `Change` is given, and what stands for it where keys are changed."""
    for path in Path(forebay.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
                continue
            given: list[ast.expr] = []
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in ("Change", "Told"):
                given = [each.value for each in node.keywords if each.arg == "action"]
            elif called == "_audit":
                given = node.args[2:3]
            for value in given:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def test_every_action_of_the_audit_is_documented_and_no_other() -> None:
    actions = set(find_actions())
    assert {"key.create", "token.revoke", "signal.delete", "ledger.remove"} <= actions
    told = ADMIN_API.partition("`action` is ")[2].partition("`before` is null")[0]
    assert {name for name in re.findall(r"`([^`]+)`", told) if ACTION.fullmatch(name)} == actions


def test_every_setting_that_is_read_at_the_start_alone_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    told = text.partition("are read at the start alone: ")[2].partition(";")[0]
    assert set(re.findall(r"`([^`]+)`", told)) == {*RESTART_SETTINGS, "engines"}


def test_the_example_of_a_limit_has_every_field() -> None:
    text = re.search(r"`GET /admin/v1/limits` gives.*?```json\n(.*?)```", ADMIN_API, re.DOTALL)
    assert text is not None
    (limit,) = json.loads(text[1])["data"]
    assert set(limit) == set(LimitView.model_fields)
    assert LimitView.model_validate(limit).id == limit["id"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_table_is_cut_in_two(path: Path) -> None:
    """Each begins with its head: rows behind a blank line would be shown as text."""
    is_code, before = False, ""
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines):
        if line.startswith("```"):
            is_code = not is_code
        if not is_code and line.startswith("|") and not before.startswith("|"):
            assert re.fullmatch(r"[|: -]+", lines[number + 1]), f"{path.name}:{number + 1}"
        before = line
