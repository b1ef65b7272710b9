"""Records from before there were prices keep their places in the totals, and their costs are unknown."""

from pathlib import Path

from migration_rig import migrate_to
from sqlalchemy import text

from forebay.ledger.rebuild import rebuild_usage
from forebay.store.database import Database
from ledger_totals import load_daily_cells, load_usage_cells
from postgres_server import make_location, remove_location

VALUES = {
    **{"segment_id": 1, "request_id": "r", "endpoint": "e", "stream": False, "status": 200, "error": ""},
    **{"project": "p", "team": "t", "model": "m", "target": "m@x", "tier": "provider", "route_hash": ""},
    **{"attempts": 1, "first_token_ns": None, "duration_ns": 5, "request_bytes": 1, "answer_bytes": 1},
    **{"experiment": "", "variant": "", "worker": 0, "usage_source": "none"},
}
HOUR_NS = 3600 * 10**9


def test_totals_are_folded_anew_and_costs_are_unknown(tmp_path: Path) -> None:
    location = make_location(tmp_path, "template1")
    database = Database.open(location)
    with database.begin() as connection:
        migrate_to(connection, "0002")
        connection.execute(text("INSERT INTO ledger_segments VALUES (1, 's', 'open', 0, 0, 0, 0, 0)"))
        rows = [
            {"position": 1, "at_ns": 0, "pool": "x", "outcome": "ok", "tokens_input": 7},
            {"position": 2, "at_ns": HOUR_NS - 1, "pool": "x", "outcome": "failed", "tokens_input": None},
            {"position": 3, "at_ns": HOUR_NS, "pool": "x", "outcome": "ok", "tokens_input": 1},
            {"position": 4, "at_ns": HOUR_NS, "pool": "y", "outcome": "abandoned", "tokens_input": None},
        ]
        rows = [row | {"key_id": "a"} for row in rows]
        rows[0]["usage_source"] = "reported"
        for row in rows:
            values = VALUES | row
            names = ", ".join(f":{name}" for name in values)
            into = f"INSERT INTO ledger_events ({', '.join(values)}) VALUES ({names})"
            connection.execute(text(into), values)
    database.migrate()
    with database.read() as connection:
        cells, days = load_usage_cells(connection), load_daily_cells(connection)
        costs = connection.execute(
            text("SELECT cost_nano_usd, price_id, tags FROM ledger_events ORDER BY id")
        )
        assert [tuple(row) for row in costs] == [
            (None, "", None),
            (0, "", None),
            (0, "", None),
            (0, "", None),
        ]
    assert {(cell.hour, cell.key_id, cell.pool): totals.requests for cell, totals in cells.items()} == {
        (0, "a", "x"): 2,
        (1, "a", "x"): 1,
        (1, "a", "y"): 1,
    }
    assert rebuild_usage(database) == 4
    with database.read() as connection:
        assert load_usage_cells(connection) == cells, "the migration's fold is that of the code"
        assert load_daily_cells(connection) == days
    database.close()
    remove_location(location)
