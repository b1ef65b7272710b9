"""Records from before cache writes were told apart keep their tokens and their costs, and take new ones."""

from decimal import Decimal
from pathlib import Path

from migration_rig import migrate_to
from sqlalchemy import text

from forebay.core.events import Finished, Tokens, UsageSource
from forebay.core.prices import Price, PriceBook, Rates
from forebay.ledger.pricing import reprice
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.repo import add_events, load_events
from forebay.store.database import Database
from ledger_totals import load_daily_cells, load_usage_cells
from postgres_server import make_location, remove_location

PLACE = {"key_id": "k", "project": "p", "team": "t", "model": "m", "pool": "x", "tier": "provider"}
EVENT = PLACE | {
    **{"segment_id": 1, "position": 1, "request_id": "old", "at_ns": 5, "endpoint": "e", "target": "m@x"},
    **{"route_hash": "", "stream": False, "status": 200, "outcome": "ok", "error": "", "attempts": 1},
    **{"tokens_input": 7, "tokens_output": 2, "usage_source": "reported", "duration_ns": 5},
    **{"request_bytes": 1, "answer_bytes": 1, "experiment": "", "variant": "", "worker": 0},
    **{"cost_nano_usd": 9000, "price_id": "price_old"},
}
TOTALS = PLACE | {
    **{"region": "", "requests": 1, "failed": 0, "abandoned": 0, "estimated": 0, "unpriced": 0},
    **{"tokens_input": 7, "tokens_output": 2, "cost_nano_usd": 9000, "duration_ns_sum": 5},
    **{"duration_count": 1, "first_token_ns_sum": 0, "first_token_count": 0, "overhead_ns_sum": 0},
    **{"overhead_count": 0},
}
BOOK = PriceBook((Price(rates=Rates(input=Decimal(1), input_cache_write=Decimal(3), output=Decimal(1))),))


def test_old_records_keep_what_they_say_and_new_ones_tell_cache_writes_apart(tmp_path: Path) -> None:
    location = make_location(tmp_path, "template1")
    database = Database.open(location)
    with database.begin() as connection:
        migrate_to(connection, "0003")
        connection.execute(text("INSERT INTO ledger_segments VALUES (1, 's', 'open', 0, 0, 0, 0, 0)"))
        for table, values in (
            ("ledger_events", EVENT),
            ("ledger_usage_hourly", TOTALS | {"hour": 0}),
            ("ledger_usage_daily", TOTALS | {"day": 0}),
        ):
            names = ", ".join(f":{name}" for name in values)
            connection.execute(text(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({names})"), values)
    database.migrate()
    with database.begin() as connection:
        ((_, old),) = load_events(connection, 0, 10)
        assert (old.tokens, old.units) == (Tokens(input=7, output=2), ())
        (totals,) = load_usage_cells(connection).values()
        assert totals.tokens_input_cache_write is None, "nobody told them apart, so it is not 0"
        new = Finished(
            request_id="new",
            at_ns=6,
            **{name: PLACE[name] for name in ("project", "team", "model", "pool", "tier")},
            key="k",
            target="m@x",
            tokens=Tokens(input=1, input_cache_write=5, output=0),
            usage_source=UsageSource.REPORTED,
            units=(("searches", 2),),
        )
        add_events(connection, 1, [(2, new)], BOOK)
    with database.read() as connection:
        assert load_events(connection, 0, 10)[1][1] == new
        cells, days = load_usage_cells(connection), load_daily_cells(connection)
        for ((_, totals),) in (cells.items(), days.items()):
            assert (totals.requests, totals.tokens_input, totals.tokens_input_cache_write) == (2, 8, 5)
            assert totals.input_total == 13
            assert totals.cost_nano_usd == 9000 + 1000 + 3 * 5000
    assert rebuild_usage(database) == 2
    with database.read() as connection:
        assert (load_usage_cells(connection), load_daily_cells(connection)) == (cells, days)
    assert reprice(database, BOOK, since_ns=None, until_ns=None, now_ns=1).changed == 1, "its price's name"
    database.close()
    remove_location(location)
