"""What the ledger's tests share: a clock that stands where it is put, events, and a small world."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import msgspec
from hypothesis import strategies as st
from sqlalchemy import select

from forebay.core.events import Finished, Outcome, Tokens, UsageSource, encode_event
from forebay.core.prices import NO_PRICES, Price, PriceBook, Rates
from forebay.ledger.ingest import Ingester, IngestLimits
from forebay.ledger.repo import load_events
from forebay.ledger.rollup import (
    NO_ROLLUPS,
    NOTHING,
    Priced,
    Rollups,
    TagCell,
    UsageCell,
    UsageTotals,
    fold_tag,
    fold_usage,
    mark_others,
    merge_totals,
)
from forebay.ledger.segment import SegmentWriter
from forebay.ledger.tables import quarantine, segments
from forebay.store.database import Database
from postgres_server import make_location, remove_location

START_NS = 1_700_000_000_000_000_000
HOUR_NS = 3600 * 10**9


class SetClock:
    """Says what it was told, until it is told otherwise."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


def make_event(number: int = 0, **fields: object) -> Finished:
    given = {"request_id": f"req_{number}", "at_ns": START_NS + number, "key": "key_a", "model": "m"}
    return Finished(**(given | fields))  # type: ignore[arg-type]


#: `m` gets dearer in the second hour, only target `t` has a price for `n`, and `t` in pool `p` is one's own.
BOOK = PriceBook(
    (
        Price(model="m", rates=Rates(input=Decimal("0.0371"), output=Decimal("1.1"))),
        Price(
            model="m",
            from_ns=START_NS // HOUR_NS * HOUR_NS + HOUR_NS,
            rates=Rates(input=Decimal("0.05"), input_cached=Decimal("0.01"), output=Decimal(2)),
        ),
        Price(target="t", usd_per_request=Decimal("0.001"), rates=Rates(input=Decimal(1), output=Decimal(1))),
        Price(
            target="t",
            pool="p",
            usd_per_second=Decimal("0.0003"),
            usd_per_unit=(("searches", Decimal("0.01")), ("b'\"]{$.é", Decimal("0.0000007"))),
        ),
    )
)


def price_all(
    events: list[Finished], book: PriceBook = NO_PRICES, rollups: Rollups = NO_ROLLUPS
) -> list[Priced]:
    priced = (Priced(event, book.compute_cost(event)) for event in events)
    return mark_others(priced, {}, rollups.pairs_max)


def fold(
    events: list[Finished], book: PriceBook = NO_PRICES, rollups: Rollups = NO_ROLLUPS
) -> dict[UsageCell, UsageTotals]:
    return fold_usage(price_all(events, book, rollups))


TAGS = ("a", "b'\"]{$.é")
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
unknown_or_count = st.none() | st.integers(0, 10**6)
event_strategy = st.builds(
    Finished,
    request_id=st.just("req"),
    at_ns=st.integers(START_NS, START_NS + 3 * 24 * HOUR_NS),
    key=st.sampled_from(["", "key_a", "key_b"]),
    model=st.sampled_from(["", "m", "n"]),
    target=st.sampled_from(["", "t", "u"]),
    project=st.sampled_from(["", "p1", "p2"]),
    team=st.sampled_from(["t1", "t2"]),
    pool=st.sampled_from(["", "p"]),
    tier=st.sampled_from(["", "provider"]),
    region=st.sampled_from(["", "eu"]),
    version=st.sampled_from(["", "v1"]),
    asked_model=st.sampled_from(["", "big"]),
    experiment=st.sampled_from(["", "", "e1", "e2"]),
    variant=st.sampled_from(["", "a", "b"]),
    tags=st.dictionaries(st.sampled_from(TAGS), texts, max_size=2).map(lambda tags: tuple(tags.items())),
    units=st.dictionaries(st.sampled_from(["searches", "b'\"]{$.é"]), st.integers(0, 10**6), max_size=2).map(
        lambda units: tuple(units.items())
    ),
    status=st.sampled_from([200, 404, 499, 502]),
    stream=st.booleans(),
    outcome=st.sampled_from(Outcome),
    usage_source=st.sampled_from(UsageSource),
    tokens=st.builds(Tokens, **dict.fromkeys(Tokens.__struct_fields__, unknown_or_count)),
    duration_ns=st.integers(0, 10**12),
    first_token_ns=unknown_or_count,
    overhead_ns=unknown_or_count,
)


any_event_strategy = st.builds(  # of callers and of mirrors
    lambda event, mirror_of: msgspec.structs.replace(event, mirror_of=mirror_of),
    event_strategy,
    st.sampled_from(["", "", "req_0"]),
)


class World:
    """A ledger folder, a database and a clock.  `keep_segments_s` is 100."""

    def __init__(self, folder: Path, busy_timeout_s: float = 5.0) -> None:
        self.folder = folder / "ledger"
        self.clock = SetClock()
        self.location = make_location(folder)
        self.database = Database.open(self.location, busy_timeout_s=busy_timeout_s)
        self.database.migrate()

    def make_writer(self, worker: str = "0", segment_max_bytes: int = 1 << 20) -> SegmentWriter:
        return SegmentWriter(self.folder, worker, segment_max_bytes, self.clock)

    def make_ingester(
        self,
        batch_records: int = 5000,
        records_max: int = 10**6,
        book: PriceBook = NO_PRICES,
        rollups: Rollups = NO_ROLLUPS,
    ) -> Ingester:
        limits = IngestLimits(batch_records=batch_records, records_max=records_max, keep_segments_s=100)
        return Ingester(
            self.database,
            self.folder,
            self.clock,
            limits,
            get_prices=lambda: book,
            get_rollups=lambda: rollups,
        )

    def write(self, *events: Finished, close: bool = True) -> SegmentWriter:
        writer = self.make_writer()
        for event in events:
            writer.append(encode_event(event))
        if close:
            writer.close()
        return writer

    def load_all(self) -> list[Finished]:
        with self.database.read() as connection:
            return [event for _, event in load_events(connection, 0, 10**6)]

    def close(self) -> None:
        self.database.close()
        remove_location(self.location)


def load_quarantine(world: World) -> list[tuple[str, int, bytes]]:
    with world.database.read() as connection:
        query = select(quarantine).order_by(quarantine.c.segment_id, quarantine.c.position)
        rows = connection.execute(query).mappings().all()
    return [(row["reason"], row["byte_count"], row["payload"]) for row in rows]


def load_states(world: World) -> list[str]:
    with world.database.read() as connection:
        return list(connection.execute(select(segments.c.state).order_by(segments.c.id)).scalars())


def merge_usage(
    one: Mapping[UsageCell, UsageTotals], other: Mapping[UsageCell, UsageTotals]
) -> dict[UsageCell, UsageTotals]:
    """As `merge_totals`, cell by cell."""
    merged = dict(one)
    for cell, totals in other.items():
        merged[cell] = merge_totals(merged.get(cell, NOTHING), totals)
    return merged


def fold_tags(
    events: list[Finished], rollups: Rollups, book: PriceBook = NO_PRICES
) -> dict[TagCell, UsageTotals]:
    folded: dict[TagCell, UsageTotals] = {}
    for tag in rollups.tags:
        folded |= fold_tag(price_all(events, book, rollups), tag, {}, rollups.values_max)
    return folded
