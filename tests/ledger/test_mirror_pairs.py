"""Copies beside their requests: whatever the pairs are, the figures are those of plain Python over them."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_examples import BOOK, START_NS, World, make_event
from sqlalchemy import text

from forebay.core.events import Finished, Outcome, Tokens, UsageSource
from forebay.ledger.marks import NoLongerKept
from forebay.ledger.mirror_pairs import Comparison, Spread, compute_spread, load_comparisons
from forebay.ledger.retention import KeepDays, Retention
from forebay.ledger.rollup import DAY_NS

MS = 10**6
SPENT = {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=1000, output=10)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def copy_of(request: Finished, **fields: object) -> Finished:
    given = {"request_id": f"{request.request_id}-m1", "mirror_of": request.request_id, "model": "new"}
    return msgspec.structs.replace(request, **(given | fields))  # type: ignore[arg-type]


def compare(world: World, *events: Finished, **asked: object) -> list[Comparison]:
    world.write(*events)
    world.make_ingester(book=BOOK).ingest_once()
    return list(load_comparisons(world.database, **asked).data)  # type: ignore[arg-type]


def test_both_sides_are_told(world: World) -> None:
    requests = [make_event(number, duration_ns=(number + 1) * 100 * MS, **SPENT) for number in range(10)]
    copies = [copy_of(each, target="t", duration_ns=each.duration_ns // 2) for each in requests[:8]]
    copies[0] = msgspec.structs.replace(copies[0], outcome=Outcome.FAILED, error="upstream_500")
    copies[1] = msgspec.structs.replace(copies[1], mirror_same=True, mirrors_dropped=3, tokens=Tokens())
    copies[2] = msgspec.structs.replace(copies[2], mirror_same=False, mirrors_dropped=4)
    lost = copy_of(make_event(99, **SPENT))
    found = compare(world, *requests, *copies, lost)
    assert [(each.model, each.mirror, each.pairs, each.lonely) for each in found] == [
        ("", "new", 0, 1),
        ("m", "new", 8, 0),
    ]
    pair = found[1]
    assert (pair.good, pair.dropped, pair.same, pair.different) == (7, 7, 1, 1)
    assert (pair.copy.failed, pair.copy.failed_alone, pair.copy.errors) == (1, 1, (("upstream_500", 1),))
    assert (pair.request.failed, pair.request.errors) == (0, ())
    # Of the pairs of which both went well: 200 to 800 ms.
    assert pair.request.duration_ns == Spread(p50=500 * MS, p90=800 * MS, p99=800 * MS)
    assert pair.copy.duration_ns == Spread(p50=250 * MS, p90=400 * MS, p99=400 * MS)
    assert (pair.request.first_token_ns, pair.copy.first_token_ns) == (None, None)
    assert pair.request.tokens_input == pair.copy.tokens_input == 6000  # of one copy nobody knows them
    assert pair.request.cost_nano_usd == 6 * (37_100 + 11_000)
    assert pair.copy.cost_nano_usd == 6 * (10**6 + 10**6 + 10**4)


def test_filters_hold(world: World) -> None:
    requests = [make_event(1), make_event(2, model="n"), make_event(3, at_ns=START_NS + DAY_NS)]
    compare(world, *requests, *(copy_of(each) for each in requests))

    def count(**asked: object) -> dict[str, int]:
        data = load_comparisons(world.database, **asked).data  # type: ignore[arg-type]
        return {each.model: each.pairs for each in data}

    assert count() == {"m": 2, "n": 1}
    assert count(model="m") == {"m": 2}
    assert count(since_ns=START_NS + 2) == {"m": 1, "n": 1}
    assert count(until_ns=START_NS + DAY_NS) == {"m": 1, "n": 1}
    cut = load_comparisons(world.database, pairs_max=1)
    assert (cut.is_cut, cut.data[0].pairs, cut.data[0].model) == (True, 1, "m")


def test_the_copies_of_a_time_are_found_by_their_index(world: World) -> None:
    compare(world, make_event(1), copy_of(make_event(1)))
    if world.database.dialect != "sqlite":
        pytest.skip("PostgreSQL decides by what the tables hold")
    query = "EXPLAIN QUERY PLAN SELECT * FROM ledger_events WHERE mirror_of != '' AND at_ns >= 5"
    with world.database.read() as connection:
        plan = [row.detail for row in connection.execute(text(query))]
    assert any("ix_ledger_events_mirrors" in each for each in plan), plan


def test_what_was_removed_is_not_compared(world: World) -> None:
    newer = make_event(2, at_ns=START_NS + 3 * DAY_NS)
    compare(world, make_event(1), copy_of(make_event(1)), newer, copy_of(newer))
    world.clock.now_ns = newer.at_ns
    retention = Retention(world.database, world.clock, lambda connection, removal: None)
    while retention.remove_portion(KeepDays(records=1)):
        pass
    with pytest.raises(NoLongerKept):
        load_comparisons(world.database, since_ns=START_NS)
    assert load_comparisons(world.database, since_ns=newer.at_ns).data[0].pairs == 1


@settings(max_examples=50)
@given(values=st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_so_many_percent_do_not_exceed_a_spread(values: list[int]) -> None:
    spread = compute_spread(values)
    assert spread is not None
    for percent, value in ((50, spread.p50), (90, spread.p90), (99, spread.p99)):
        assert value in values
        assert sum(each <= value for each in values) * 100 >= percent * len(values)
        assert sum(each < value for each in values) * 100 < percent * len(values)
