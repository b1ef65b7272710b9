"""Costs in the ledger: by the price in force then, the same whenever they are computed, corrected whole."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_examples import BOOK, HOUR_NS, START_NS, World, event_strategy, fold, make_event, price_all
from sqlalchemy import select

from forebay.core.events import Finished, Tokens, UsageSource
from forebay.core.prices import NO_PRICES, Cost, Price, PriceBook, Rates
from forebay.ledger.bill import load_corrections, load_terms
from forebay.ledger.ingest import Ingester
from forebay.ledger.pricing import reprice
from forebay.ledger.rollup import Priced, fold_days, fold_usage
from forebay.ledger.tables import events as table
from ledger_totals import load_daily_cells, load_usage_cells

HOUR0_NS = START_NS // HOUR_NS * HOUR_NS


def load_costs(world: World) -> list[tuple[str, int | None]]:
    with world.database.read() as connection:
        rows = connection.execute(select(table.c.price_id, table.c.cost_nano_usd).order_by(table.c.id))
        return [(row.price_id, row.cost_nano_usd) for row in rows]


def load_cells(world: World) -> object:
    with world.database.read() as connection:
        return load_usage_cells(connection), load_daily_cells(connection)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def spent(number: int, at_ns: int, **fields: object) -> Finished:
    given = {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=1000, output=10)}
    return make_event(number, at_ns=at_ns, **(given | fields))


def test_a_record_is_charged_by_the_price_in_force_when_it_began(world: World) -> None:
    hour = HOUR0_NS + HOUR_NS
    world.write(
        spent(1, hour - 1),
        spent(2, hour),
        spent(3, hour, model="other"),
        spent(4, hour, usage_source=UsageSource.NONE, tokens=Tokens()),
    )
    world.make_ingester(book=BOOK).ingest_once()
    old, new = BOOK.prices[0].id, BOOK.prices[1].id
    assert load_costs(world) == [(old, 37_100 + 11_000), (new, 50_000 + 20_000), ("", None), ("", 0)]
    assert {each.id: each.terms for each in load_terms(world.database)} == {
        price.id: price.describe() for price in BOOK.prices[:2]
    }


def test_records_that_came_before_their_price_are_priced_later(world: World) -> None:
    world.write(spent(1, HOUR0_NS), spent(2, HOUR0_NS + HOUR_NS), spent(3, HOUR0_NS, model="free of price"))
    world.make_ingester().ingest_once()
    assert load_costs(world) == [("", None)] * 3
    report = reprice(world.database, BOOK, since_ns=None, until_ns=None, now_ns=5)
    assert (report.records, report.changed) == (3, 2)
    assert (report.unpriced_before, report.unpriced_after) == (3, 1)
    assert (report.cost_nano_usd_before, report.cost_nano_usd_after) == (None, 48_100 + 70_000)
    expected = fold(world.load_all(), BOOK)
    assert load_cells(world) == (expected, fold_days(expected))
    (correction,) = load_corrections(world.database, HOUR0_NS, HOUR0_NS + 1)
    assert (correction.at_ns, correction.changed, correction.cost_nano_usd_after) == (5, 2, 118_100)


def test_units_are_charged_and_charged_the_same_anew(world: World) -> None:
    book = PriceBook((Price(rates=BOOK.prices[0].rates, usd_per_unit=(("searches", Decimal("0.01")),)),))
    tokens = Tokens(input=1000, input_cache_write=1000, output=10)
    world.write(
        spent(1, HOUR0_NS, tokens=tokens, units=(("searches", 2),)),
        spent(2, HOUR0_NS, tokens=tokens, units=(("searches", 0),)),
        spent(3, HOUR0_NS, tokens=tokens),
        spent(4, HOUR0_NS, tokens=tokens, units=(("clips", 1),)),
    )
    world.make_ingester(book=book).ingest_once()
    of_tokens, price_id = 2 * 37_100 + 11_000, book.prices[0].id
    costs = [
        (price_id, of_tokens + 20_000_000),
        (price_id, of_tokens),
        (price_id, of_tokens),
        (price_id, None),
    ]
    assert load_costs(world) == costs
    assert reprice(world.database, book, since_ns=None, until_ns=None, now_ns=1).changed == 0
    dearer = PriceBook((Price(rates=BOOK.prices[0].rates, usd_per_unit=(("searches", Decimal("0.02")),)),))
    assert reprice(world.database, dearer, since_ns=None, until_ns=None, now_ns=1).changed == 4
    assert reprice(world.database, book, since_ns=None, until_ns=None, now_ns=1).changed == 4
    assert load_costs(world) == costs, "the record and the price alone say what it costs"


@settings(max_examples=15)
@given(
    events=st.lists(event_strategy, min_size=1, max_size=25),
    since_ns=st.none() | st.integers(START_NS, START_NS + 3 * 24 * HOUR_NS),
    until_ns=st.none() | st.integers(START_NS, START_NS + 3 * 24 * HOUR_NS),
    rows_max=st.integers(1, 30),
)
def test_pricing_anew_is_a_fold_over_the_records_and_a_second_time_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Finished],
    since_ns: int | None,
    until_ns: int | None,
    rows_max: int,
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    world.write(*events)
    world.make_ingester(book=NO_PRICES).ingest_once()

    def expect(event: Finished) -> Cost:
        inside = (since_ns is None or event.at_ns >= since_ns) and (
            until_ns is None or event.at_ns < until_ns
        )
        return (BOOK if inside else NO_PRICES).compute_cost(event)

    for turn in range(2):
        report = reprice(
            world.database, BOOK, since_ns=since_ns, until_ns=until_ns, now_ns=turn, rows_max=rows_max
        )
        expected = [Priced(event, expect(event)) for event in world.load_all()]
        assert load_costs(world) == [(each.cost.price_id, each.cost.nano_usd) for each in expected]
        assert load_cells(world) == (fold_usage(expected), fold_days(fold_usage(expected)))
        if turn:
            assert report.changed == 0
            assert report.cost_nano_usd_before == report.cost_nano_usd_after
    world.close()


def test_a_bill_priced_at_ingest_is_the_bill_priced_later(world: World, tmp_path: Path) -> None:
    events = [spent(n, HOUR0_NS + n * HOUR_NS // 2, target="tu"[n % 2]) for n in range(8)]
    world.write(*events)
    world.make_ingester(book=BOOK).ingest_once()
    later = World(tmp_path / "later")
    later.write(*events)
    later.make_ingester().ingest_once()
    reprice(later.database, BOOK, since_ns=None, until_ns=None, now_ns=0)
    assert load_costs(later) == load_costs(world)
    assert load_cells(later) == load_cells(world)
    assert [each.cost.nano_usd for each in price_all(events, BOOK)] == [cost for _, cost in load_costs(world)]
    later.close()


def test_prices_may_change_between_two_readings(world: World) -> None:
    book = NO_PRICES
    ingester = Ingester(world.database, world.folder, world.clock, get_prices=lambda: book)
    for number in range(2):
        book = PriceBook((Price(usd_per_request=Decimal(number + 1)),))
        world.write(spent(number, HOUR0_NS))
        ingester.ingest_once()
    assert [cost for _, cost in load_costs(world)] == [10**9, 2 * 10**9]
    assert len(load_terms(world.database)) == 2


def test_terms_can_be_read_back(world: World) -> None:
    price = Price(model="m", pool="ü*", from_ns=7, rates=Rates(output=Decimal("0.10")))
    world.write(spent(1, START_NS, pool="über", tokens=Tokens(input=0, output=1)))
    world.make_ingester(book=PriceBook((price,))).ingest_once()
    (terms,) = load_terms(world.database)
    assert msgspec.json.decode(terms.terms) == {
        "model": "m", "pool": "ü*", "from_ns": 7, "usd_per_mtok": {"output": "0.1"}
    }  # fmt: skip
