"""What a database refuses costs no other record, and texts of any length that callers choose are counted."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_examples import (
    HOUR_NS,
    START_NS,
    World,
    fold,
    fold_tags,
    load_quarantine,
    make_event,
)

from forebay.core.events import Finished, Tokens, UsageSource, encode_event
from forebay.core.prices import Cost, PriceBook
from forebay.ledger.batch import NUMBER_MAX, Reason
from forebay.ledger.bill import load_bill
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.rollup import LABEL_BYTES_MAX, Rollups, fold_days
from forebay.ledger.usage import UsageBy
from ledger_totals import load_daily_cells, load_tag_cells, load_usage_cells

DAY_NS = 24 * HOUR_NS
DAY0_NS = START_NS // DAY_NS * DAY_NS
ROLLUPS = Rollups(tags=("customer",), values_max=3, pairs_max=3)


class FaultyBook(PriceBook):
    """Says of some records that they cost more than any column holds."""

    def compute_cost(self, event: Finished) -> Cost:
        return (
            Cost(nano_usd=2**70, price_id="")
            if event.tokens.input == POISON.input
            else super().compute_cost(event)
        )


POISON = Tokens(input=NUMBER_MAX)
FAULTY = FaultyBook()
SPENT = {"usage_source": UsageSource.REPORTED}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, busy_timeout_s=0.05)
    yield world
    world.close()


def check_totals(world: World, events: list[Finished], rollups: Rollups) -> None:
    expected = fold(events, rollups=rollups)
    with world.database.read() as connection:
        assert load_usage_cells(connection) == expected
        assert load_daily_cells(connection) == fold_days(expected)
        assert load_tag_cells(connection) == fold_tags(events, rollups)


def make_text(draw: Random, first: int, last: int) -> str:
    """As long as `metadata` allows, and nothing that compresses."""
    return "".join(chr(draw.randint(first, last)) for _ in range(512))


@pytest.mark.parametrize(("first", "last"), [(33, 126), (0x4E00, 0x9FA5), (0x1F300, 0x1FAFF)])
def test_the_longest_texts_of_callers_are_counted_and_stop_nothing(
    world: World, first: int, last: int
) -> None:
    draw = Random(1)
    x, y, z = (make_text(draw, first, last) for _ in range(3))
    tags = (("experiment", x), ("variant", y), ("customer", z))
    long = make_event(1, at_ns=DAY0_NS, experiment=x, variant=y, model="m" * 200, tags=tags)
    events = [make_event(0, at_ns=DAY0_NS), long, make_event(2, at_ns=DAY0_NS, tags=(("customer", "c"),))]
    world.write(*events)
    report = world.make_ingester(rollups=ROLLUPS).ingest_once()
    assert (report.records, report.set_aside) == (3, 0)
    assert world.load_all() == events, "records have them whole"
    for _ in range(2):
        check_totals(world, events, ROLLUPS)
        for by, tag in ((UsageBy.EXPERIMENT, None), (UsageBy.TAG, "customer")):
            bill = load_bill(world.database, by=(by,), since_ns=DAY0_NS, until_ns=DAY0_NS + DAY_NS, tag=tag)
            found = {getattr(row, by.value): row.totals.requests for row in bill.rows}
            assert found == ({"": 2, x: 1} if tag is None else {"": 1, z: 1, "c": 1})
        rebuild_usage(world.database, ROLLUPS)


edges = st.sampled_from(
    [
        *("", "a", "b", "é" * (LABEL_BYTES_MAX // 2), "é" * (LABEL_BYTES_MAX // 2) + "a"),
        *("a" * LABEL_BYTES_MAX, "a" * (LABEL_BYTES_MAX + 1), "😀" * (LABEL_BYTES_MAX // 4 + 1)),
    ]
)


@settings(max_examples=15)
@given(named=st.lists(st.tuples(edges, edges, edges, st.integers(0, 2)), min_size=1, max_size=12))
def test_totals_with_long_texts_are_the_same_however_they_are_added_up(
    tmp_path_factory: pytest.TempPathFactory, named: list[tuple[str, str, str, int]]
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    events = [
        make_event(n, at_ns=DAY0_NS + hour * HOUR_NS, experiment=x, variant=y, tags=(("customer", z),))
        for n, (x, y, z, hour) in enumerate(named)
    ]
    world.write(*events)
    world.make_ingester(batch_records=3, rollups=ROLLUPS).ingest_once()
    check_totals(world, events, ROLLUPS)
    rebuild_usage(world.database, ROLLUPS)
    check_totals(world, events, ROLLUPS)
    world.close()


@pytest.mark.parametrize("poisoned", [{0}, {7}, {3, 4, 19}, set(range(20))])
def test_a_record_that_the_database_refuses_stops_no_other(world: World, poisoned: set[int]) -> None:
    events = [make_event(n, tokens=POISON if n in poisoned else Tokens(input=0), **SPENT) for n in range(20)]
    world.write(*events)
    ingester = world.make_ingester(batch_records=8, book=FAULTY)
    report = ingester.ingest_once()
    assert (report.records, report.set_aside) == (20 - len(poisoned), len(poisoned))
    assert (report.sealed, report.lag_bytes) == (1, 0)
    kept = [event for n, event in enumerate(events) if n not in poisoned]
    assert world.load_all() == kept
    assert [(reason, payload) for reason, _, payload in load_quarantine(world)] == [
        (Reason.REFUSED, encode_event(events[n])) for n in sorted(poisoned)
    ]
    with world.database.read() as connection:
        assert load_usage_cells(connection) == fold(kept, FAULTY)


def test_what_was_refused_comes_in_once_the_database_takes_it(world: World) -> None:
    world.write(make_event(0, tokens=POISON, **SPENT), make_event(1, tokens=Tokens(), **SPENT))
    assert world.make_ingester(book=FAULTY).ingest_once().set_aside == 1
    assert world.make_ingester(book=FAULTY).ingest_once().recovered == 0, "nor does it stop the start"
    assert world.make_ingester().ingest_once().recovered == 1
    assert (len(world.load_all()), load_quarantine(world)) == (2, [])


def test_names_of_our_own_that_no_index_holds_stop_no_other_record(world: World) -> None:
    """PostgreSQL's index takes no row of so many bytes; SQLite's does."""
    draw = Random(1)
    version = "".join(make_text(draw, 0x4E00, 0x9FA5) for _ in range(3))
    events = [make_event(0), make_event(1, version=version), make_event(2)]
    world.write(*events)
    report = world.make_ingester().ingest_once()
    is_refused = world.database.dialect == "postgresql"
    assert (report.records, report.set_aside) == (3 - is_refused, int(is_refused))
    assert world.load_all() == [event for event in events if not (is_refused and event.version)]
