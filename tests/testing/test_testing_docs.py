"""docs/testing.md names every step and every setting."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from forebay.testing.steps import Step
from forebay.testing.upstream import UpstreamSettings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("step", [step.__name__ for step in get_args(Step)])
def test_each_step_is_documented(step: str) -> None:
    assert f"`{step}(" in TEXT


@pytest.mark.parametrize("setting", [field.name for field in fields(UpstreamSettings)])
def test_each_setting_is_documented(setting: str) -> None:
    assert f"| `{setting}` |" in TEXT
