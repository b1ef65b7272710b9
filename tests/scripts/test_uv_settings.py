"""How the set-up hands pip's index settings on to uv."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "uv.py"
PARTS = runpy.run_path(str(SCRIPT))


def translate(*lines: str) -> dict[str, str]:
    variables: dict[str, str] = PARTS["translate"](PARTS["read_pip_settings"]("\n".join(lines)))
    return variables


def test_without_settings_uv_is_left_alone() -> None:
    assert translate() == {}


def test_a_mirror_is_handed_on() -> None:
    assert translate("global.index-url='https://me:secret@mirror.example/simple'") == {
        "UV_DEFAULT_INDEX": "https://me:secret@mirror.example/simple"
    }


def test_more_indexes_are_all_asked_for_a_version() -> None:
    assert translate("global.extra-index-url='\\nhttps://one.example/\\nhttps://two.example/'") == {
        "UV_INDEX": "https://one.example/ https://two.example/",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_folder_that_is_not_there_is_passed_by(tmp_path: Path) -> None:
    assert translate(
        f"global.extra-index-url='file://{tmp_path}/none/simple'",
        f"global.find-links='{tmp_path} /none/at/all'",
    ) == {"UV_FIND_LINKS": str(tmp_path)}


def test_the_strongest_setting_counts() -> None:
    lines = (":env:.index-url='https://env/'", "global.index-url='https://global/'")
    assert translate(*lines)["UV_DEFAULT_INDEX"] == "https://env/"
    lines = ("install.index-url='https://install/'", "global.index-url='https://global/'")
    assert translate(*lines)["UV_DEFAULT_INDEX"] == "https://install/"


@pytest.mark.parametrize("configured", ["environment", "file"])
def test_pip_itself_is_asked(tmp_path: Path, configured: str) -> None:
    """With a folder as the only index: uv finds what lies there, and nothing else."""
    index = tmp_path / "simple" / "nothing-there"
    index.mkdir(parents=True)
    (index / "index.html").write_text("<!doctype html>")
    url = f"file://{tmp_path}/simple"
    pip_conf = tmp_path / "pip.conf"
    pip_conf.write_text(f"[global]\nindex-url = {url}\n" if configured == "file" else "")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))},
        "PIP_CONFIG_FILE": str(pip_conf),
        **({"PIP_INDEX_URL": url} if configured == "environment" else {}),
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "pip", "install", "--dry-run", "--no-cache", "nothing-there"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "no versions of nothing-there" in done.stderr, "the index was read, and held none"
