"""Usage queries: any grouping and filter agrees with plain Python over the events."""

from collections import defaultdict
from collections.abc import Iterator
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
    make_event,
    price_all,
)
from sqlalchemy import text

from forebay.core.events import Finished, Kind
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.rollup import NO_ROLLUPS, Rollups, compute_totals
from forebay.ledger.usage import UsageBy, UsageQuery, UsageQueryInvalid, UsageRow, load_usage

HOUR0_NS = START_NS // HOUR_NS * HOUR_NS
NAMES = (
    *("key", "model", "target", "status", "team", "project", "pool", "tier", "region"),
    *("kind", "version", "experiment", "variant"),
)
UNIT_S = {UsageBy.HOUR: 3600, UsageBy.DAY: 86400}

moments = st.none() | st.one_of(
    st.integers(0, 80).map(lambda hours: HOUR0_NS + hours * HOUR_NS),
    st.integers(0, 3).map(lambda days: (HOUR0_NS // HOUR_NS // 24 + days) * 24 * HOUR_NS),
    st.integers(START_NS, START_NS + 80 * HOUR_NS),
)
groupings = (
    st.lists(st.sampled_from(UsageBy), unique=True).filter(lambda by: not set(UNIT_S) <= set(by)).map(tuple)
)
tag_values = st.sampled_from([None, None, None, "", "0"])
tags = st.sampled_from(["a", "b'\"]{$.é", "no such tag"])
queries = st.tuples(groupings, tags, tag_values).flatmap(lambda given: build_queries(*given))
most_have_none = st.sampled_from([None, None, None, "", "e1", "a", "v1"])


def build_queries(by: tuple[UsageBy, ...], tag: str, value: str | None) -> st.SearchStrategy[UsageQuery]:
    return st.builds(
        UsageQuery,
        by=st.just(by),
        tag=st.just(tag if UsageBy.TAG in by or value is not None else None),
        tag_value=st.just(value),
        since_ns=moments,
        until_ns=moments,
        key=st.none() | st.sampled_from(["key_a", ""]),
        model=st.none() | st.sampled_from(["m", "no such model"]),
        kind=st.sampled_from([None, None, *Kind]),
        version=most_have_none,
        experiment=most_have_none,
        variant=most_have_none,
    )


def answer_plainly(events: list[Finished], query: UsageQuery) -> list[UsageRow]:
    groups: defaultdict[tuple[object, ...], list[Finished]] = defaultdict(list)
    for event in events:
        if query.since_ns is not None and event.at_ns < query.since_ns:
            continue
        if query.until_ns is not None and event.at_ns >= query.until_ns:
            continue
        if any(
            getattr(query, name) not in (None, getattr(event, name))
            for name in ("key", "model", "version", "experiment", "variant")
        ):
            continue
        kinds = [query.kind] if query.kind else [*Kind] if UsageBy.KIND in query.by else [Kind.REQUEST]
        if event.kind not in kinds:
            continue
        tag = None if query.tag is None else dict(event.tags).get(query.tag, "")
        if query.tag_value not in (None, tag):
            continue
        start_s = None
        for by, unit_s in UNIT_S.items():
            if by in query.by:
                start_s = event.at_ns // 10**9 // unit_s * unit_s
        values = (getattr(event, name) if name in query.by else None for name in NAMES)
        groups[start_s, *values, tag if UsageBy.TAG in query.by else None].append(event)
    return [
        UsageRow(
            **dict(zip(("start_s", *NAMES, "tag"), place, strict=True)),  # type: ignore[arg-type]
            totals=compute_totals(price_all(group, BOOK)),
        )
        for place, group in sorted(groups.items(), key=lambda item: item[0])
    ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@settings(max_examples=6, deadline=None)
@given(
    events=st.lists(any_event_strategy, min_size=5, max_size=40),
    asked=st.lists(queries, min_size=30, max_size=30),
    rollups=st.sampled_from(
        [NO_ROLLUPS, Rollups(tags=TAGS), Rollups(tags=TAGS, values_max=1), Rollups(pairs_max=1)]
    ),
)
def test_any_query_agrees_with_plain_python(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Finished],
    asked: list[UsageQuery],
    rollups: Rollups,
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    cut = len(events) // 3  # what came before the tags were rolled up
    for portion, each in ((events[:cut], NO_ROLLUPS), (events[cut:], rollups)):
        world.write(*portion)
        world.make_ingester(book=BOOK, rollups=each).ingest_once()
    if len(events) % 2:
        rebuild_usage(world.database, rollups)
    for query in asked:
        assert load_usage(world.database, query) == answer_plainly(events, query), query
    world.close()


def test_queries_on_whole_hours_are_answered_from_the_totals(world: World) -> None:
    world.write(make_event(0))
    world.make_ingester().ingest_once()
    with world.database.begin() as connection:
        connection.execute(text("DELETE FROM ledger_events"))
    assert len(load_usage(world.database, UsageQuery(since_ns=HOUR0_NS, until_ns=HOUR0_NS + HOUR_NS))) == 1
    assert load_usage(world.database, UsageQuery(since_ns=HOUR0_NS + 1)) == []
    assert load_usage(world.database, UsageQuery(by=(UsageBy.STATUS,))) == []


def test_labels_are_answered_from_the_totals_where_they_have_all_of_it(world: World) -> None:
    rollups = Rollups(tags=("a",), values_max=2, pairs_max=1)
    labels = {"version": "v1", "experiment": "e", "variant": "x"}
    world.write(*(make_event(n, tags=(("a", f"{n}"),), **labels) for n in range(2)))
    world.make_ingester(rollups=rollups).ingest_once()
    by_label = [
        UsageQuery(by=(UsageBy.VERSION, UsageBy.EXPERIMENT, UsageBy.VARIANT)),
        UsageQuery(by=(), experiment="e", variant="x", version="v1"),
        UsageQuery(by=(UsageBy.TAG, UsageBy.EXPERIMENT), tag="a"),
        UsageQuery(by=(), tag="a", tag_value="1"),
    ]
    right = [load_usage(world.database, query) for query in by_label]
    assert [len(rows) for rows in right] == [1, 1, 2, 1]
    world.write(*(make_event(n, tags=(("a", f"{n}"),), experiment=f"{n}") for n in range(2, 6)))
    world.make_ingester(rollups=rollups).ingest_once()
    assert len(load_usage(world.database, by_label[2])) == 6, "more than there is room for: from the records"
    with world.database.begin() as connection:
        connection.execute(text("DELETE FROM ledger_events WHERE id > 2"))
    assert [load_usage(world.database, query) for query in by_label] == right
    with world.database.begin() as connection:
        connection.execute(text("DELETE FROM ledger_events"))
        connection.execute(text("DELETE FROM ledger_usage_daily WHERE is_other = 1"))
        connection.execute(text("DELETE FROM ledger_tags_daily WHERE is_other = 1 OR is_rest = 1"))
    assert [load_usage(world.database, query) for query in by_label] == right, "now from the totals"


def test_nothing_gives_no_rows(world: World) -> None:
    assert load_usage(world.database, UsageQuery()) == []
    assert load_usage(world.database, UsageQuery(by=())) == []
    assert load_usage(world.database, UsageQuery(by=(UsageBy.TARGET,))) == []


def test_what_cannot_be_answered_is_told(world: World) -> None:
    with pytest.raises(UsageQueryInvalid, match="not by both"):
        load_usage(world.database, UsageQuery(by=(UsageBy.HOUR, UsageBy.DAY)))
    for asked in (UsageQuery(by=(UsageBy.TAG,)), UsageQuery(tag="a"), UsageQuery(tag_value="a")):
        with pytest.raises(UsageQueryInvalid, match="name the tag"):
            load_usage(world.database, asked)
    with pytest.raises(UsageQueryInvalid, match="rows_max"):
        load_usage(world.database, UsageQuery(rows_max=0))
    world.write(*(make_event(n, key=f"key_{n}") for n in range(4)))
    world.make_ingester().ingest_once()
    assert len(load_usage(world.database, UsageQuery(rows_max=4))) == 4
    with pytest.raises(UsageQueryInvalid, match="more than 3 rows"):
        load_usage(world.database, UsageQuery(rows_max=3))
