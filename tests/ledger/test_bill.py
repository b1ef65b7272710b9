"""The bill adds up: each grouping of the same records has one total, and months end where they should."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_examples import BOOK, HOUR_NS, START_NS, World, event_strategy, make_event, price_all
from sqlalchemy import text

from forebay.core.events import Finished, Kind, Tokens, UsageSource
from forebay.ledger.bill import BILL_BY, FIGURES, find_month, load_bill, load_corrections, name_month
from forebay.ledger.pricing import reprice
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.rollup import DAY_NS, Rollups, compute_totals
from forebay.ledger.usage import UsageBy, UsageQueryInvalid

HOUR0_NS = START_NS // HOUR_NS * HOUR_NS
DAY0_NS = START_NS // (24 * HOUR_NS) * 24 * HOUR_NS
END_NS = HOUR0_NS + 4 * 24 * HOUR_NS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@settings(max_examples=6)
@given(events=st.lists(event_strategy, min_size=1, max_size=40))
def test_every_grouping_has_the_same_total(
    tmp_path_factory: pytest.TempPathFactory, events: list[Finished]
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    world.write(*events)
    world.make_ingester(book=BOOK).ingest_once()
    expected = compute_totals(price_all(events, BOOK))
    for by in [(), *((each,) for each in BILL_BY), (UsageBy.TEAM, UsageBy.MODEL, UsageBy.DAY), BILL_BY]:
        tag = "a" if UsageBy.TAG in by else None
        bill = load_bill(world.database, by=by, since_ns=HOUR0_NS, until_ns=END_NS, tag=tag)
        for figure in FIGURES:
            assert getattr(bill.total, figure) == getattr(expected, figure), (by, figure)
    world.close()


def test_a_bill_by_tag_tells_values_apart(world: World) -> None:
    spent = {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=1000, output=0)}
    world.write(
        make_event(1, tags=(("customer", "acme"), ("x", "y")), **spent),
        make_event(2, tags=(("customer", "acme"),), **spent),
        make_event(3, tags=(("customer", "öl"),), **spent),
        make_event(4, **spent),
    )
    world.make_ingester(book=BOOK).ingest_once()
    bill = load_bill(world.database, by=(UsageBy.TAG,), since_ns=HOUR0_NS, until_ns=END_NS, tag="customer")
    costs = [(row.tag, row.totals.requests, row.totals.cost_nano_usd) for row in bill.rows]
    assert costs == [("", 1, 37_100), ("acme", 2, 74_200), ("öl", 1, 37_100)]


def test_an_unknown_cost_is_no_zero(world: World) -> None:
    spent = {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=1000, output=0)}
    world.write(make_event(1, **spent), make_event(2, model="x", **spent))
    world.make_ingester(book=BOOK).ingest_once()
    bill = load_bill(world.database, by=(UsageBy.MODEL,), since_ns=HOUR0_NS, until_ns=END_NS)
    assert [(r.model, r.totals.cost_nano_usd, r.totals.unpriced) for r in bill.rows] == [
        ("m", 37_100, 0),
        ("x", None, 1),
    ]
    assert (bill.total.cost_nano_usd, bill.total.unpriced) == (37_100, 1)


def test_a_bill_is_read_from_the_smallest_totals_that_hold_it(world: World) -> None:
    world.write(make_event(1))
    world.make_ingester().ingest_once()
    begin_ns, end_ns = DAY0_NS, DAY0_NS + 24 * HOUR_NS
    periods = [(begin_ns, end_ns), (begin_ns, end_ns - HOUR_NS), (begin_ns, end_ns - 1)]
    expected = [1, 1, 1]
    for number, table in enumerate(("ledger_usage_daily", "ledger_usage_hourly", "ledger_events")):
        found = [load_bill(world.database, by=(), since_ns=a, until_ns=b).total.requests for a, b in periods]
        assert found == expected
        with world.database.begin() as connection:
            connection.execute(text(f"DELETE FROM {table}"))
        expected[number] = 0
    assert load_bill(world.database, by=(), since_ns=begin_ns, until_ns=end_ns).rows == []


def test_a_correction_stands_on_the_bills_of_its_time_alone(world: World) -> None:
    world.write(make_event(1, usage_source=UsageSource.REPORTED, tokens=Tokens(input=1, output=0)))
    world.make_ingester().ingest_once()
    reprice(world.database, BOOK, since_ns=HOUR0_NS, until_ns=END_NS, now_ns=1)
    assert len(load_corrections(world.database, HOUR0_NS, END_NS)) == 1
    assert load_corrections(world.database, END_NS, END_NS + 1) == []
    assert load_corrections(world.database, 0, HOUR0_NS) == []


def test_what_no_bill_is_told_apart_by_is_refused(world: World) -> None:
    with pytest.raises(UsageQueryInvalid, match="status"):
        load_bill(world.database, by=(UsageBy.STATUS,), since_ns=0, until_ns=1)


@given(day=st.dates(datetime(1970, 1, 1).date(), datetime(2199, 12, 31).date()))
def test_a_month_is_from_its_first_nanosecond_to_that_of_the_next(day: datetime) -> None:
    since_ns, until_ns = find_month(f"{day:%Y-%m}")
    assert name_month(since_ns) == name_month(until_ns - 1) == f"{day:%Y-%m}"
    assert name_month(until_ns) != f"{day:%Y-%m}"
    assert datetime.fromtimestamp(since_ns // 10**9, tz=UTC).day == 1
    assert since_ns % HOUR_NS == until_ns % HOUR_NS == 0


@pytest.mark.parametrize(
    "word", ["", "2026", "2026-13", "2026-00", "26-01", "2026-1", "1969-12", "9999-01", "２０２６-01"]
)
def test_what_is_no_month_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="2026-11"):
        find_month(word)


def test_mirrors_have_a_bill_of_their_own(world: World) -> None:
    spent = {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=1000, output=0)}
    tagged = {"tags": (("customer", "acme"),), **spent}
    requests = [make_event(number, **tagged) for number in range(3)]
    copies = [
        msgspec.structs.replace(each, request_id=f"{each.request_id}.m", mirror_of=each.request_id)
        for each in requests[:2]
    ]
    world.write(*requests, *copies)
    world.make_ingester(book=BOOK, rollups=Rollups(tags=("customer",))).ingest_once()

    def count(by: tuple[UsageBy, ...], **more: object) -> list[tuple[str | None, int, int | None]]:
        bill = load_bill(world.database, by=by, since_ns=DAY0_NS, until_ns=DAY0_NS + DAY_NS, **more)  # type: ignore[arg-type]
        return [(row.kind, row.totals.requests, row.totals.cost_nano_usd) for row in bill.rows]

    for _ in range(2):
        for by, tag in (((), None), ((UsageBy.TAG,), "customer")):
            assert count(by, tag=tag) == [(None, 3, 111_300)]
            assert count(by, tag=tag, where={"kind": Kind.MIRROR}) == [(None, 2, 74_200)]
            expected = [("mirror", 2, 74_200), ("request", 3, 111_300)]
            assert count((*by, UsageBy.KIND), tag=tag) == expected
        assert rebuild_usage(world.database, Rollups(tags=("customer",))) == 5
