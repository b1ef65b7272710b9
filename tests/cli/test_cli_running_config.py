"""Which running Forebay counts while its `forebay.yaml` has a mistake: the one that was started with it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from command_line import forebay

from forebay.app.config import load_config
from forebay.app.config_running import load_running_config
from forebay.app.control_watch import save_config
from forebay.app.supervisor_state import RunState, save_run_state

MISTAKE = "prot: 1\n"
UNREADABLE = "a: [\n"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


def run_here(text: str, *, pid: int | None = None, file: str | None = "forebay.yaml") -> Path:
    """Leaves what `forebay up` leaves in the data folder that `text` names; returns that folder."""
    path = Path("forebay.yaml")
    path.write_text(text)
    config = load_config(path)
    config.run_path.mkdir(parents=True, exist_ok=True)
    save_config(config.run_path / "config.json", config)
    state = RunState(
        pid=os.getpid() if pid is None else pid,
        started_at_s=0,
        gateway_url="http://127.0.0.1:1",
        control_url="http://127.0.0.1:2",
        children=(),
        config_file=None if file is None else str(Path(file).absolute()),
    )
    save_run_state(config.state_path, state)
    return config.data_path


@pytest.mark.parametrize(
    "data",
    [
        "data:\n  dir: elsewhere\n",
        "data: {dir: elsewhere}\n",
        'data: {"dir": "elsewhere"}\n',
        "data:\n  dir: 'elsewhere'   # on the big disk\n",
        "# dir: not-here\ndata:\n\n  dir: ./elsewhere\n",
    ],
)
@pytest.mark.parametrize("mistake", [MISTAKE, UNREADABLE, "\t\n", "x: 'no end\n"])
def test_a_data_folder_of_its_own_is_found_wherever_the_mistake_stands(
    tmp_path: Path, data: str, mistake: str
) -> None:
    run_here(f"gateway: {{port: 7777}}\n{data}")
    for broken in (f"{mistake}{data}", f"{data}{mistake}"):
        Path("forebay.yaml").write_text(broken)
        found = load_running_config(None)
        assert found is not None, broken
        assert found.gateway.port == 7777
        assert found.data_path.resolve() == tmp_path / "elsewhere"


def test_a_key_is_made_where_the_running_one_looks(tmp_path: Path) -> None:
    folder = run_here("data: {dir: elsewhere}\n")
    Path("forebay.yaml").write_text("data: {dir: elsewhere}\nprot: 1\n")
    made = forebay("keys", "create", "guest", "--json")
    assert made.exit_code == 0, made.output
    assert made.stderr.count("the configuration of the running Forebay is used") == 1
    assert (folder / "forebay.db").exists()
    assert not (tmp_path / ".forebay").exists()
    assert [key["name"] for key in json.loads(forebay("keys", "list", "--json").stdout)] == ["guest"]


def gone() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_without_one_that_runs_the_mistakes_are_the_answer() -> None:
    run_here("{}\n", pid=gone())
    Path("forebay.yaml").write_text(MISTAKE)
    for words in (("usage",), ("keys", "list"), ("chat", "x")):
        result = forebay(*words)
        assert result.exit_code == 1
        assert "forebay.yaml:1: prot: unknown key" in result.stderr
        assert "running" not in result.stderr


def test_one_that_was_started_with_another_file_does_not_count() -> None:
    run_here("{}\n", file="other.yaml")
    Path("forebay.yaml").write_text(MISTAKE)
    assert load_running_config(None) is None


def test_one_without_a_file_counts_for_the_file_beside_it_and_not_for_one_that_is_not_there() -> None:
    run_here("{}\n", file=None)
    Path("forebay.yaml").write_text(MISTAKE)
    assert load_running_config(None) is not None
    assert load_running_config(Path("typo.yaml")) is None


def test_what_was_kept_may_be_damaged() -> None:
    folder = run_here("{}\n")
    Path("forebay.yaml").write_text(MISTAKE)
    (folder / "run" / "config.json").write_text("{")
    assert load_running_config(None) is None
    assert forebay("usage").exit_code == 1
