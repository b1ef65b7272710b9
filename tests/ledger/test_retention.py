"""What is old goes, a day at a time and only once its totals hold it; bills stay right, whoever is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_examples import BOOK, HOUR_NS, START_NS, World, event_strategy, make_event
from sqlalchemy import Connection, select, text

from forebay.core.events import Finished, Tokens, UsageSource
from forebay.ledger.bill import BILL_BY, Bill, load_bill
from forebay.ledger.marks import Kept, NoLongerKept, load_marks
from forebay.ledger.pricing import reprice
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.retention import DAY_NS, KeepDays, Removal, Retention
from forebay.ledger.rollup import Rollups
from forebay.ledger.tables import removals
from forebay.ledger.usage import UsageBy, UsageQuery, load_usage
from ledger_totals import load_usage_cells

DAY0_NS = START_NS // DAY_NS * DAY_NS
DAYS = 5
END_NS = DAY0_NS + DAYS * DAY_NS
SPENT = {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=1000, output=10)}
TOTALED = tuple(by for by in BILL_BY if by is not UsageBy.TAG)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


class Told:
    """Notes what is announced, in the transaction that does it."""

    def __init__(self) -> None:
        self.removals: list[tuple[Kept, int, int]] = []

    def __call__(self, connection: Connection, removal: Removal) -> None:
        assert connection.in_transaction()
        self.removals.append((removal.kind, (removal.day_ns - DAY0_NS) // DAY_NS, removal.rows))


def make_retention(world: World, told: Told | None = None, portion_rows: int = 3) -> Retention:
    return Retention(world.database, world.clock, told or Told(), portion_rows=portion_rows)


def remove_all(retention: Retention, keep: KeepDays) -> int:
    removed = 0
    while more := retention.remove_portion(keep):
        removed += more
    return removed


def fill(world: World, each_day: int = 10) -> None:
    """Some records on each day; then the clock stands in the last one."""
    events = [
        make_event(
            day * each_day + n, at_ns=DAY0_NS + day * DAY_NS + n * 2 * HOUR_NS, key=f"key_{n % 2}", **SPENT
        )
        for day in range(DAYS)
        for n in range(each_day)
    ]
    world.write(*events)
    world.make_ingester(book=BOOK).ingest_once()
    world.clock.now_ns = END_NS - 1


def count_rows(world: World, *tables: str) -> list[int]:
    with world.database.read() as connection:
        return [
            connection.execute(text(f"SELECT count(*) FROM ledger_{name}")).scalar_one() for name in tables
        ]


def bill_all(world: World, by: tuple[UsageBy, ...] = (UsageBy.KEY, UsageBy.DAY)) -> Bill:
    return load_bill(world.database, by=by, since_ns=DAY0_NS, until_ns=END_NS)


def test_nothing_goes_where_nothing_is_set_or_old(world: World) -> None:
    fill(world)
    told = Told()
    retention = make_retention(world, told)
    for keep in (KeepDays(), KeepDays(records=DAYS, hourly=DAYS, daily=DAYS)):
        assert remove_all(retention, keep) == 0
        assert all(found.rows == 0 for found in retention.find_excess(keep))
    assert told.removals == []
    assert len(load_usage(world.database, UsageQuery(by=(UsageBy.STATUS,)))) == 1, (
        "all of it can be asked for"
    )


def test_days_go_whole_the_oldest_first_and_each_is_told_of(world: World) -> None:
    fill(world)
    before = bill_all(world)
    told = Told()
    retention = make_retention(world, told)
    keep = KeepDays(records=1, hourly=2, daily=3)
    (records, hourly, daily) = retention.find_excess(keep)
    assert (records.kind, records.rows, records.first_ns) == (Kept.RECORDS, 30, DAY0_NS)
    assert (records.until_ns, hourly.until_ns) == (DAY0_NS + 3 * DAY_NS, DAY0_NS + 2 * DAY_NS)
    assert (hourly.rows, daily.rows) == (20, 2)
    assert remove_all(retention, keep) == 30 + 20 + 2
    assert count_rows(world, "events", "usage_hourly", "usage_daily") == [20, 30, 8]
    assert told.removals == [
        *((Kept.RECORDS, day, 10) for day in range(3)),
        *((Kept.HOURLY, day, 10) for day in range(2)),
        (Kept.DAILY, 0, 2),
    ]
    with world.database.read() as connection:
        marks = load_marks(connection)
    found = [(mark.removed, (mark.gone_before_ns - DAY0_NS) // DAY_NS) for mark in marks.values()]
    assert found == [(30, 3), (20, 2), (2, 1)]
    assert marks[Kept.RECORDS].removed_at_ns == world.clock.now_ns
    since_ns = DAY0_NS + DAY_NS
    after = load_bill(world.database, by=(UsageBy.KEY, UsageBy.DAY), since_ns=since_ns, until_ns=END_NS)
    assert list(after.rows) == [row for row in before.rows if (row.start_s or 0) >= since_ns // 10**9]
    with pytest.raises(NoLongerKept, match=r"daily totals before 20\d\d-\d\d-\d\d were removed.*or ask from"):
        bill_all(world)


@settings(max_examples=6)
@given(
    events=st.lists(event_strategy, min_size=1, max_size=30),
    kept=st.integers(1, 3),
    portion=st.integers(1, 9),
)
def test_bills_are_the_same_without_the_records(
    tmp_path_factory: pytest.TempPathFactory, events: list[Finished], kept: int, portion: int
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    world.write(*events)
    world.make_ingester(book=BOOK).ingest_once()
    world.clock.now_ns = DAY0_NS + 4 * DAY_NS
    bys = [(), *((by,) for by in TOTALED), TOTALED]
    before = [bill_all(world, by).rows for by in bys]
    remove_all(make_retention(world, portion_rows=portion), KeepDays(records=kept))
    # Ages end with the day of the newest record, however far ahead the clock is.
    newest_day_ns = max(event.at_ns for event in events) // DAY_NS * DAY_NS
    gone_before_ns = min(newest_day_ns, world.clock.now_ns) - kept * DAY_NS
    assert [event.at_ns for event in world.load_all() if event.at_ns < gone_before_ns] == []
    assert [bill_all(world, by).rows for by in bys] == before
    rebuild_usage(world.database)
    assert [bill_all(world, by).rows for by in bys] == before, (
        "what has no records any more is not added up anew"
    )
    world.close()


def test_what_needs_records_that_are_gone_is_refused_and_not_answered_from_the_rest(world: World) -> None:
    fill(world)
    assert bill_all(world).records_since_ns == 0
    remove_all(make_retention(world), KeepDays(records=2))
    gone_before_ns = DAY0_NS + 2 * DAY_NS
    assert bill_all(world).records_since_ns == gone_before_ns
    for query in (
        UsageQuery(by=(UsageBy.TARGET,)),
        UsageQuery(by=(UsageBy.STATUS,), since_ns=gone_before_ns - DAY_NS),
        UsageQuery(by=(UsageBy.TAG,), tag="a", since_ns=DAY0_NS),
        UsageQuery(by=(), since_ns=gone_before_ns - 1),
    ):
        with pytest.raises(NoLongerKept, match="records before"):
            load_usage(world.database, query)
    assert len(load_usage(world.database, UsageQuery(by=(UsageBy.STATUS,), since_ns=gone_before_ns))) == 1
    for since_ns in (None, gone_before_ns - 1):
        with pytest.raises(NoLongerKept, match="what they cost stays as it is"):
            reprice(world.database, BOOK, since_ns=since_ns, until_ns=None, now_ns=1)
    assert reprice(world.database, BOOK, since_ns=gone_before_ns, until_ns=None, now_ns=1).records == 30


def test_a_day_whose_totals_are_wrong_is_added_up_anew_before_its_records_go(world: World) -> None:
    fill(world)
    right = bill_all(world)
    for harm in ("UPDATE ledger_usage_daily SET requests = requests + 1", "DELETE FROM ledger_usage_hourly"):
        with world.database.begin() as connection:
            connection.execute(text(harm))
    remove_all(make_retention(world), KeepDays(records=1))
    until_ns = END_NS - 2 * DAY_NS
    found = load_bill(world.database, by=(UsageBy.KEY, UsageBy.DAY), since_ns=DAY0_NS, until_ns=until_ns)
    assert list(found.rows) == [row for row in right.rows if (row.start_s or 0) < until_ns // 10**9]


def test_whoever_stops_in_the_middle_is_followed_by_another(world: World) -> None:
    fill(world)
    right = bill_all(world)
    keep = KeepDays(records=1)
    told = Told()
    turns = 0
    while make_retention(world, told).remove_portion(keep):  # each a process that dies after one portion
        turns += 1
        assert bill_all(world).rows == right.rows
    assert turns == 3 * 4
    assert told.removals == [(Kept.RECORDS, day, 10) for day in range(3)]


def test_a_failure_to_tell_leaves_everything_as_it_was(world: World) -> None:
    fill(world)

    def fail(connection: Connection, removal: Removal) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Retention(world.database, world.clock, fail).remove_portion(KeepDays(records=1))
    assert count_rows(world, "events") == [50]
    with world.database.read() as connection:
        assert connection.execute(select(removals)).all() == []


def test_a_record_that_comes_late_is_in_the_totals_and_goes(world: World) -> None:
    fill(world)
    retention = make_retention(world)
    remove_all(retention, KeepDays(records=1))
    world.write(make_event(99, at_ns=DAY0_NS + 5, key="key_late", **SPENT))
    world.make_ingester(book=BOOK).ingest_once()
    rows = [row for row in bill_all(world).rows if row.key == "key_late"]
    assert [(row.totals.requests, row.totals.cost_nano_usd) for row in rows] == [(1, 48_100)]
    with world.database.read() as connection:
        cells = load_usage_cells(connection)
    rebuild_usage(world.database)
    with world.database.read() as connection:
        assert load_usage_cells(connection) == cells
    assert remove_all(retention, KeepDays(records=1)) == 1
    assert [row for row in bill_all(world).rows if row.key == "key_late"] == rows


def test_a_tag_that_is_rolled_up_outlives_the_records_and_another_is_refused(world: World) -> None:
    rollups = Rollups(tags=("customer",), values_max=3)
    labels = [("a", "e1"), ("b", "e2"), ("", "")]
    events = [
        make_event(
            n, at_ns=DAY0_NS + n * HOUR_NS, experiment=pair[1], tags=(("customer", pair[0]), ("x", "y"))
        )
        for n, pair in enumerate(labels * 8)
    ]
    events.append(make_event(99, at_ns=DAY0_NS + 2 * DAY_NS))  # by which the others are old
    world.write(*events[:10])
    world.make_ingester(book=BOOK).ingest_once()  # the tag was not named yet
    world.write(*events[10:])
    world.make_ingester(book=BOOK, rollups=rollups).ingest_once()
    queries = [
        UsageQuery(by=(UsageBy.TAG,), tag="customer"),
        UsageQuery(by=(UsageBy.EXPERIMENT,), tag="customer", tag_value="a"),
        UsageQuery(by=(UsageBy.EXPERIMENT, UsageBy.DAY)),
    ]
    before = [load_usage(world.database, query) for query in queries]
    world.clock.now_ns = END_NS
    remove_all(
        Retention(world.database, world.clock, Told(), get_rollups=lambda: rollups), KeepDays(records=1)
    )
    assert count_rows(world, "events") == [1]
    assert [load_usage(world.database, query) for query in queries] == before
    with pytest.raises(NoLongerKept, match="were rolled up"):
        load_usage(world.database, UsageQuery(by=(UsageBy.TAG,), tag="x"))
    remove_all(make_retention(world), KeepDays(records=1, hourly=1, daily=1))
    assert count_rows(world, "usage_daily", "tags_daily") == [1, 1], "the last day's"


def test_a_clock_that_is_far_ahead_makes_nothing_old(world: World) -> None:
    fill(world)
    world.clock.now_ns = END_NS + 10_000 * DAY_NS
    keep = KeepDays(records=2, hourly=2, daily=2)
    retention = make_retention(world)
    expected = {each.kind: (each.rows, each.until_ns) for each in retention.find_excess(keep)}
    remove_all(retention, keep)
    assert len(world.load_all()) == 3 * 10, "ages end with the newest record"
    assert expected[Kept.RECORDS] == (2 * 10, END_NS - 3 * DAY_NS)
    assert remove_all(retention, KeepDays(records=1, hourly=1, daily=1)) > 0
    assert len(world.load_all()) == 2 * 10


def test_an_empty_ledger_has_nothing_that_is_old(world: World) -> None:
    retention = make_retention(world)
    assert (retention.find_excess(KeepDays(records=1)), remove_all(retention, KeepDays(records=1))) == ([], 0)
