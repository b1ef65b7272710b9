"""Tables in terminals of any width: numbers stay whole, names end in an ellipsis, what matters least goes."""

import re
from pathlib import Path

import pytest
from command_line import forebay, in_terminal
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.tables_fit import GAP, NAME_MIN, PROSE_MIN, Wish, fit_columns

WISHES = st.lists(
    st.builds(
        Wish,
        natural=st.integers(0, 60),
        kind=st.sampled_from(["whole", "name", "prose"]),
        rank=st.integers(0, 4),
    ),
    min_size=1,
    max_size=9,
)


@given(WISHES, st.integers(1, 200))
def test_what_is_kept_fits_and_what_matters_more_is_kept(wishes: list[Wish], width: int) -> None:
    smallest = {"name": NAME_MIN, "prose": PROSE_MIN}
    must = [min(each.natural, smallest.get(each.kind, each.natural)) for each in wishes if not each.rank]
    widths = fit_columns(wishes, width)
    if widths is None:
        assert sum(must) + GAP * (len(must) - 1) > width
        return
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= width
    lost = [wish.rank for index, wish in enumerate(wishes) if index not in widths]
    for index, wish in enumerate(wishes):
        if index not in widths:
            assert wish.rank > 0
            continue
        assert wish.rank <= min(lost, default=wish.rank)
        assert widths[index] <= wish.natural
        assert widths[index] == wish.natural or wish.kind != "whole"
        assert widths[index] >= min(wish.natural, smallest.get(wish.kind, 0))


@given(WISHES)
def test_with_room_for_all_nothing_is_cut(wishes: list[Wish]) -> None:
    width = sum(wish.natural for wish in wishes) + GAP * (len(wishes) - 1)
    assert fit_columns(wishes, max(1, width)) == {index: wish.natural for index, wish in enumerate(wishes)}


NAME = "nightly-batch-summaries-of-the-search-team"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


def draw(*words: str, columns: int, status: int = 0) -> list[str]:
    """The lines that a terminal of that width shows, without colours."""
    with in_terminal(*words, cwd=Path.cwd(), env={"COLUMNS": str(columns)}) as terminal:
        assert terminal.wait() == status, terminal.written
        terminal.wait_for("\n")
        terminal.drain()
        shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.written)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert all(len(line) <= columns for line in lines), lines
    return lines


@pytest.mark.parametrize("columns", [60, 70, 200])
def test_a_key_is_one_line_that_names_it(columns: int) -> None:
    forebay("teams", "create", "machine-learning")
    forebay("projects", "create", "default", "--team", "machine-learning")
    key_id = forebay("keys", "create", NAME, "--team", "machine-learning").stderr.partition(":")[0]
    lines = draw("keys", "list", columns=columns)
    (row,) = [line for line in lines if line.startswith(key_id)]
    shown = row.split()[1]
    assert shown == NAME or (shown.endswith("…") and NAME.startswith(shown[:-1]) and len(shown) >= NAME_MIN)
    assert (columns == 200) == ("machine-learning" in row)
    assert (columns < 200) == any("left out for want of room" in line and "Team" in line for line in lines)


@pytest.mark.parametrize("columns", [60, 80])
def test_a_mistake_is_told_in_whole_words(tmp_path: Path, columns: int) -> None:
    (tmp_path / "forebay.yaml").write_text("gateway:\n  host: 0.0.0.0\n  max-connections: 1\n")
    lines = draw("config", "check", columns=columns, status=1)
    told = " ".join(" ".join(lines).split())
    assert "gateway.host: the gateway is open to the network, without TLS of its own" in told
    assert "gateway.max-connections: unknown key did you mean `connections_max`?" in told


@pytest.mark.parametrize("columns", [60, 80])
def test_a_finding_is_told_in_whole_words(tmp_path: Path, columns: int) -> None:
    (tmp_path / "forebay.yaml").write_text(
        "gateway: {port: 0, host: 0.0.0.0}\ncontrol: {port: 0}\nengines: {}\n"
    )
    lines = draw("doctor", columns=columns)
    told = " ".join(" ".join(lines).split())
    assert (
        "configuration forebay.yaml:1: gateway.host: the gateway is open to the network, without TLS" in told
    )
    assert "see `forebay config check`" in told
    assert "prometheus-client" in told
