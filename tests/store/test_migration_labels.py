"""What was counted before there were versions, experiments and tags in the totals stays as it was."""

from pathlib import Path

from migration_rig import migrate_to
from sqlalchemy import text

from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.repo import load_events
from forebay.ledger.rollup import HOUR_NS, Rollups
from forebay.ledger.usage import UsageBy, UsageQuery, load_usage
from forebay.store.database import Database
from ledger_totals import load_daily_cells, load_tag_cells, load_usage_cells
from postgres_server import make_location, remove_location

EVENT = {
    **{"segment_id": 1, "request_id": "r", "endpoint": "e", "stream": False, "status": 200, "error": ""},
    **{"project": "p", "team": "t", "model": "m", "target": "m@x", "tier": "provider", "route_hash": ""},
    **{"attempts": 1, "first_token_ns": None, "duration_ns": 5, "request_bytes": 1, "answer_bytes": 1},
    **{"experiment": "", "variant": "", "worker": 0, "usage_source": "reported", "key_id": "a"},
    **{"pool": "x", "outcome": "ok", "cost_nano_usd": 3, "price_id": "price"},
}
COUNTS = ("failed", "abandoned", "estimated", "unpriced")
TIMES = [f"{name}_{part}" for name in ("first_token", "overhead") for part in ("ns_sum", "count")]


def insert(table: str, values: dict[str, object]) -> tuple[object, dict[str, object]]:
    names = ", ".join(f":{name}" for name in values)
    return text(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({names})"), values


def test_totals_keep_what_they_hold_and_can_still_be_made_anew(tmp_path: Path) -> None:
    location = make_location(tmp_path, "template1")
    database = Database.open(location)
    places = {name: EVENT[name] for name in ("team", "project", "key_id", "model", "pool", "tier")}
    sums = {"requests": 2, "cost_nano_usd": 6, "duration_ns_sum": 10, "duration_count": 2}
    sums |= dict.fromkeys((*COUNTS, *TIMES), 0)
    totals = {**places, **sums, "region": "", "tokens_input": None, "tokens_input_cache_write": 7}
    with database.begin() as connection:
        migrate_to(connection, "0004")
        connection.execute(text("INSERT INTO ledger_segments VALUES (1, 's', 'open', 0, 0, 0, 0, 0)"))
        for position, tokens in ((1, 7), (2, None)):
            row = {"position": position, "at_ns": 30 * HOUR_NS, "tokens_input_cache_write": tokens}
            row |= {"tags": '{"customer":"acme"}' if tokens else None}
            connection.execute(*insert("ledger_events", EVENT | row))
        connection.execute(*insert("ledger_usage_hourly", totals | {"hour": 30}))
        connection.execute(*insert("ledger_usage_daily", totals | {"day": 1}))
        # Of a time whose records are not there: it would be lost if totals were made anew.
        connection.execute(*insert("ledger_usage_daily", totals | {"day": 0, "requests": 99}))
    database.migrate()
    with database.read() as connection:
        hours, days = load_usage_cells(connection), load_daily_cells(connection)
        assert {event.version for _, event in load_events(connection, 0, 10)} == {""}
    assert [(cell.hour, each.requests, each.tokens_input_cache_write) for cell, each in hours.items()] == [
        (30, 2, 7)
    ]
    assert {cell.hour: each.requests for cell, each in days.items()} == {0: 99, 24: 2}
    assert {cell[-4:] for cell in days} == {("", "", "", 0)}, "version, experiment, variant, none crowded out"
    query = UsageQuery(by=(UsageBy.TAG,), tag="customer", since_ns=24 * HOUR_NS)
    answer = [(row.tag, row.totals.requests, row.totals.cost_nano_usd) for row in load_usage(database, query)]
    assert answer == [("", 1, 3), ("acme", 1, 3)], "from the records"
    assert rebuild_usage(database, Rollups(tags=("customer",))) == 2
    with database.read() as connection:
        assert load_usage_cells(connection) == hours
        assert {cell.value: each.requests for cell, each in load_tag_cells(connection).items()} == {
            "": 1, "acme": 1
        }  # fmt: skip
    database.close()
    remove_location(location)
