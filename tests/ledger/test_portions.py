"""Adding up and pricing anew go a portion at a time: others write in between, and each moment is right."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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
    event_strategy,
    fold,
    fold_tags,
    make_event,
)
from sqlalchemy import Connection, select

from forebay.core.events import Finished, Tokens, UsageSource
from forebay.ledger.bill import load_bill, load_corrections
from forebay.ledger.pricing import Repricing, reprice
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.retention import KeepDays, Removal, Retention
from forebay.ledger.rollup import DAY_NS, Rollups, fold_days, merge_totals
from forebay.ledger.tables import events as table
from forebay.ledger.usage import UsageBy, UsageQuery, load_usage
from ledger_totals import load_daily_cells, load_tag_cells, load_usage_cells

DAY0_NS = START_NS // DAY_NS * DAY_NS
DAYS = 3
EACH_DAY = 24
ROLLUPS = Rollups(tags=("customer",))
TIME = {"since_ns": DAY0_NS, "until_ns": DAY0_NS + DAYS * DAY_NS}


class Killed(Exception):
    """In the place of `kill -9`, between two transactions."""


def spent(number: int) -> Finished:
    return make_event(
        number,
        at_ns=DAY0_NS + number * HOUR_NS,
        usage_source=UsageSource.REPORTED,
        tokens=Tokens(input=1000, output=10),
        tags=(("customer", f"c{number % 2}"),),
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.write(*(spent(number) for number in range(DAYS * EACH_DAY)))
    world.make_ingester(rollups=ROLLUPS).ingest_once()
    yield world
    world.close()


@dataclass
class Told:
    reports: list[tuple[Repricing, bool]] = field(default_factory=list)

    def __call__(self, connection: Connection, report: Repricing, is_done: bool) -> None:
        assert connection.in_transaction()
        self.reports.append((report, is_done))


def check_sums(world: World) -> tuple[int, int]:
    """All ways to ask agree; the sum of costs that records have, and their number."""
    with world.database.read() as connection:
        costs = list(connection.execute(select(table.c.cost_nano_usd)).scalars())
    known = [cost for cost in costs if cost is not None]
    expected = (len(costs), costs.count(None), sum(known) if known else None)
    for by, tag in (((), None), ((UsageBy.DAY,), None), ((UsageBy.TAG,), "customer")):
        total = load_bill(world.database, by=by, tag=tag, **TIME).total
        assert (total.requests, total.unpriced, total.cost_nano_usd) == expected
    rows = load_usage(world.database, UsageQuery(by=(UsageBy.HOUR,), **TIME))
    total = rows[0].totals
    for row in rows[1:]:
        total = merge_totals(total, row.totals)
    assert (total.requests, total.unpriced, total.cost_nano_usd) == expected
    return sum(known), len(costs)


def test_each_moment_of_pricing_anew_is_right_and_others_write_in_it(world: World) -> None:
    moments: list[tuple[int, int]] = []

    def pause() -> None:
        number = DAYS * EACH_DAY - 1 - len(moments)
        world.write(spent(number))
        world.make_ingester(rollups=ROLLUPS).ingest_once()
        moments.append(check_sums(world))

    report = reprice(world.database, BOOK, **TIME, now_ns=7, rollups=ROLLUPS, rows_max=10, pause=pause)
    costs, counts = [cost for cost, _ in moments], [count for _, count in moments]
    assert costs == sorted(costs)
    assert len(set(costs)) > 5, "it went in many portions"
    assert counts == sorted(set(counts)), "and others wrote between all of them"
    assert report.unpriced_after == 0
    check_sums(world)


@pytest.mark.parametrize("killed_at", range(0, 12, 2))
def test_whoever_prices_anew_may_be_killed_and_what_was_done_is_told(world: World, killed_at: int) -> None:
    left, told = killed_at, Told()

    def pause() -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1

    with suppress(Killed):
        reprice(world.database, BOOK, **TIME, now_ns=7, rollups=ROLLUPS, rows_max=10, tell=told, pause=pause)
        raise AssertionError("it was done before it could be killed")
    cost, _ = check_sums(world)
    assert cost > 0
    assert [is_done for _, is_done in told.reports] == [False]
    (correction,) = load_corrections(world.database, **TIME)
    assert (correction.cost_nano_usd_before, correction.cost_nano_usd_after) == (None, cost)
    reprice(world.database, BOOK, **TIME, now_ns=8, rollups=ROLLUPS, rows_max=10, tell=told)
    assert [is_done for _, is_done in told.reports].count(True) == 1
    assert told.reports[-1][1]
    assert check_sums(world)[0] == told.reports[-1][0].cost_nano_usd_after


def test_one_portion_is_told_once_and_nothing_where_nothing_changed(world: World) -> None:
    told = Told()
    for _ in range(2):
        report = reprice(world.database, BOOK, **TIME, now_ns=7, rollups=ROLLUPS, tell=told)
    assert report.changed == 0
    ((first, is_done),) = told.reports
    assert (first.changed, first.unpriced_before, is_done) == (DAYS * EACH_DAY, DAYS * EACH_DAY, True)


def test_what_can_not_be_told_is_not_done(world: World) -> None:
    def fail(connection: Connection, report: Repricing, is_done: bool) -> None:
        raise Killed

    with pytest.raises(Killed):
        reprice(world.database, BOOK, **TIME, now_ns=7, rollups=ROLLUPS, tell=fail)
    assert check_sums(world)[0] == 0


def test_records_that_are_removed_while_others_are_priced_keep_their_costs(world: World) -> None:
    def tell(connection: Connection, removal: Removal) -> None:
        pass

    world.clock.now_ns = DAY0_NS + (DAYS - 1) * DAY_NS
    retention = Retention(world.database, world.clock, tell, get_rollups=lambda: ROLLUPS)

    def pause() -> None:
        while retention.remove_portion(KeepDays(records=1)):
            pass

    reprice(world.database, BOOK, **TIME, now_ns=7, rollups=ROLLUPS, rows_max=10, pause=pause)
    for by, tag in (((), None), ((UsageBy.TAG,), "customer")):
        total = load_bill(world.database, by=by, tag=tag, **TIME).total
        assert (total.requests, total.unpriced) == (DAYS * EACH_DAY, EACH_DAY - 10)


def test_each_moment_of_adding_up_anew_is_right(world: World) -> None:
    with world.database.begin() as connection:
        for name in ("ledger_usage_hourly", "ledger_usage_daily", "ledger_tags_daily"):
            connection.exec_driver_sql(f"UPDATE {name} SET duration_count = 1000")  # what sums do not show
    moments: list[tuple[int, int]] = []
    for part_records in (10, 10**6):
        assert (
            rebuild_usage(
                world.database,
                ROLLUPS,
                pause=lambda: moments.append(check_sums(world)),
                part_records=part_records,
            )
            == DAYS * EACH_DAY
        )
    assert len(moments) == DAYS * (24 + 25) + DAYS * (1 + 1)
    total = load_bill(world.database, by=(), **TIME).total
    assert total.requests == DAYS * EACH_DAY
    rows = load_usage(world.database, UsageQuery(by=(), **TIME))
    assert rows[0].totals.duration_count == DAYS * EACH_DAY


@settings(max_examples=15)
@given(
    events=st.lists(event_strategy, min_size=1, max_size=25),
    room=st.integers(1, 3),
    rows_max=st.integers(1, 30),
    few_records=st.integers(1, 7),
)
def test_totals_after_portions_are_a_fold_also_where_names_have_no_room(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Finished],
    room: int,
    rows_max: int,
    few_records: int,
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    rollups = Rollups(tags=TAGS, values_max=room, pairs_max=room)
    world.write(*events)
    world.make_ingester(rollups=rollups).ingest_once()
    reprice(world.database, BOOK, since_ns=None, until_ns=None, now_ns=7, rollups=rollups, rows_max=rows_max)
    for part_records in (None, few_records):
        if part_records is not None:
            rebuild_usage(world.database, rollups, part_records=part_records)
        expected = fold(events, BOOK, rollups)
        with world.database.read() as connection:
            assert load_usage_cells(connection) == expected
            assert load_daily_cells(connection) == fold_days(expected)
            assert load_tag_cells(connection) == fold_tags(events, rollups, BOOK)
    world.close()
