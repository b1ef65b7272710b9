"""The hourly totals: a pure fold that does not care for order or portions, and a table that equals it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_examples import (
    BOOK,
    HOUR_NS,
    START_NS,
    TAGS,
    World,
    any_event_strategy,
    event_strategy,
    fold,
    fold_tags,
    make_event,
    merge_usage,
    price_all,
)
from sqlalchemy import delete

from forebay.core.events import Finished, Outcome, Tokens, UsageSource
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.rollup import DAY_NS, Rollups, compute_cell, compute_totals, fold_days
from forebay.ledger.tables import tags_daily, usage_daily, usage_hourly
from ledger_totals import load_daily_cells, load_tag_cells, load_usage_cells

event_lists = st.lists(event_strategy, max_size=30)


@settings(deadline=None)
@given(events=event_lists, data=st.data())
def test_portions_in_any_order_fold_to_the_same(events: list[Finished], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(events))
    cut = data.draw(st.integers(0, len(events)))
    assert merge_usage(fold(shuffled[:cut], BOOK), fold(shuffled[cut:], BOOK)) == fold(events, BOOK)


@settings(deadline=None)
@given(events=st.lists(any_event_strategy, max_size=30))
def test_each_event_is_counted_in_one_cell(events: list[Finished]) -> None:
    cells = fold(events, BOOK)
    assert sum(totals.requests for totals in cells.values()) == len(events)
    assert sum(totals.duration_ns_sum for totals in cells.values()) == sum(e.duration_ns for e in events)
    for cell, totals in cells.items():
        mine = [event for event in events if compute_cell(event) == cell]
        assert totals == compute_totals(price_all(mine, BOOK))
        assert cell.hour * HOUR_NS <= min(event.at_ns for event in mine)
        names = ["team", "project", "key", "model", "pool", "tier", "region", "kind", "version"]
        names += ["experiment", "variant"]
        places = {tuple(getattr(event, name) for name in names) for event in mine}
        assert {(*place, 0) for place in places} == {cell[1:]}


def test_totals_by_hand() -> None:
    hour = START_NS // HOUR_NS
    at_ns = hour * HOUR_NS
    events = [
        make_event(at_ns=at_ns, tokens=Tokens(input=3, output=0), duration_ns=10, first_token_ns=0),
        make_event(at_ns=at_ns + HOUR_NS - 1, outcome=Outcome.FAILED, duration_ns=20, overhead_ns=5),
        make_event(
            at_ns=at_ns + 1,
            outcome=Outcome.ABANDONED,
            usage_source=UsageSource.ESTIMATED,
            tokens=Tokens(input=4, output=2),
        ),
        make_event(at_ns=at_ns + HOUR_NS),
    ]
    cells = fold(events, BOOK)
    assert set(cells) == {compute_cell(events[0]), compute_cell(events[-1])}
    totals = cells[compute_cell(events[0])]
    assert (totals.unpriced, totals.cost_nano_usd) == (0, 148 + 2200), "4 tokens in, 2 out, the rest unsent"
    assert (totals.requests, totals.failed, totals.abandoned, totals.estimated) == (3, 1, 1, 1)
    assert (totals.tokens_input, totals.tokens_output) == (7, 2)
    assert totals.tokens_output_reasoning is None, "what nobody counted is not 0"
    assert (totals.duration_ns_sum, totals.duration_count) == (30, 3)
    assert (totals.first_token_ns_sum, totals.first_token_count) == (0, 1)
    assert (totals.overhead_ns_sum, totals.overhead_count) == (5, 1)


@settings(max_examples=12, deadline=None)
@given(first=event_lists, second=event_lists, values_max=st.integers(1, 3), pairs_max=st.integers(1, 5))
def test_rebuilding_changes_nothing_and_mends_everything(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[Finished],
    second: list[Finished],
    values_max: int,
    pairs_max: int,
) -> None:
    """Also where not all that callers name finds room."""
    world = World(tmp_path_factory.mktemp("w"))
    rollups = Rollups(tags=("a", TAGS[1]), values_max=values_max, pairs_max=pairs_max)
    for portion in (first, second):
        world.write(*portion)
        world.make_ingester(batch_records=4, book=BOOK, rollups=rollups).ingest_once()
    expected = fold(first + second, BOOK, rollups)
    tagged = fold_tags(first + second, rollups, BOOK)
    for harm in (
        "",
        None,
        delete,
        lambda table: table.update().values(requests=99, tokens_input=None),
    ):
        with world.database.begin() as connection:
            for table in (usage_hourly, usage_daily, tags_daily):
                if callable(harm):
                    connection.execute(harm(table))
        if harm != "":  # at first: kept up with each portion
            assert rebuild_usage(world.database, rollups) == len(first) + len(second)
        with world.database.read() as connection:
            assert load_usage_cells(connection) == expected
            assert load_daily_cells(connection) == fold_days(expected)
            assert load_tag_cells(connection) == tagged
    rebuild_usage(world.database)
    with world.database.read() as connection:
        assert load_tag_cells(connection) == {}, "what is not rolled up any more is forgotten"
    world.close()


def test_the_first_names_find_room_and_the_others_are_counted_without(tmp_path: Path) -> None:
    hour_ns = START_NS // DAY_NS * DAY_NS
    rollups = Rollups(tags=("user",), values_max=2, pairs_max=2)
    events = [
        make_event(n, at_ns=hour_ns + n // 5 * HOUR_NS, experiment=f"e{n % 5}", tags=(("user", f"u{n % 5}"),))
        for n in range(20)
    ]
    cells = fold(events, rollups=rollups)
    hours = [cell for cell in cells if cell.hour == hour_ns // HOUR_NS]
    assert [(c.experiment, c.is_other, cells[c].requests) for c in hours] == [
        ("e0", 0, 1), ("e1", 0, 1), ("", 1, 3)
    ]  # fmt: skip
    tagged = fold_tags(events, rollups)
    sums: dict[tuple[str, int], int] = {}
    for cell, totals in tagged.items():
        sums[cell.value, cell.is_rest] = sums.get((cell.value, cell.is_rest), 0) + totals.requests
    assert sums == {("u0", 0): 4, ("u1", 0): 4, ("", 1): 12}
