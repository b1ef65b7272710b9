"""`forebay logs`, without a Forebay that runs: what the last run left."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.logs import find_new, show_logs
from forebay.cli.terminal import Failure


@pytest.fixture
def file(tmp_path: Path) -> Path:
    logs = tmp_path / ".forebay" / "logs" / "replicas"
    logs.mkdir(parents=True)
    for id in ("chat-0123456789-0", "chat-0123456789-1", "other-0123456789-0"):
        (logs / f"{id}.log").write_text("".join(f"line {number} of {id}\n" for number in range(5)))
    file = tmp_path / "forebay.yaml"
    file.write_text("data: {dir: .forebay}\n")
    return file


def test_a_deployment_shows_all_its_replicas_and_a_replica_itself(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_logs(file, "chat", lines=1, is_followed=False)
    assert capsys.readouterr().out.splitlines() == [
        "chat-0123456789-0: line 4 of chat-0123456789-0",
        "chat-0123456789-1: line 4 of chat-0123456789-1",
    ]
    show_logs(file, "other-0123456789-0", lines=2, is_followed=False)
    assert capsys.readouterr().out.splitlines() == [
        "line 3 of other-0123456789-0",
        "line 4 of other-0123456789-0",
    ]
    show_logs(file, None, lines=1, is_followed=False)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_what_is_not_known_is_told(file: Path) -> None:
    with pytest.raises(Failure, match="nothing is known of nobody"):
        show_logs(file, "nobody", lines=1, is_followed=False)


@given(st.lists(st.integers(0, 10_000), unique=True, max_size=60), st.integers(0, 60), st.integers(1, 60))
def test_following_a_log_shows_each_line_once(numbers: list[int], seen: int, kept: int) -> None:
    log = list(map(str, numbers))
    before, now = log[:seen][-kept:], log[-kept:]
    new = list(find_new(before, now))
    expected = [line for line in now if line not in log[:seen]]
    assert new == expected
