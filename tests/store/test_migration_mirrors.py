"""What was counted before there were mirrors is what callers asked for, and stays as it was."""

from pathlib import Path

from migration_rig import migrate_to
from sqlalchemy import text
from test_migration_labels import COUNTS, EVENT, TIMES, insert

from forebay.core.events import Kind
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.repo import load_events
from forebay.ledger.rollup import HOUR_NS, Rollups
from forebay.ledger.usage import UsageBy, UsageQuery, load_usage
from forebay.store.database import Database
from ledger_totals import load_daily_cells, load_tag_cells, load_usage_cells
from postgres_server import make_location, remove_location


def test_totals_from_before_are_those_of_requests(tmp_path: Path) -> None:
    location = make_location(tmp_path, "template1")
    database = Database.open(location)
    places = {name: EVENT[name] for name in ("team", "project", "key_id", "model", "pool", "tier")}
    sums = {"requests": 1, "cost_nano_usd": 3, "duration_ns_sum": 5, "duration_count": 1}
    sums |= dict.fromkeys((*COUNTS, *TIMES), 0)
    labels = {"region": "", "version": "v", "experiment": "", "variant": "", "is_other": 0}
    totals = {**places, **sums, **labels, "tokens_input": None}
    with database.begin() as connection:
        migrate_to(connection, "0010")
        connection.execute(text("INSERT INTO ledger_segments VALUES (1, 's', 'open', 0, 0, 0, 0, 0, '')"))
        row = {"position": 1, "at_ns": 30 * HOUR_NS, "version": "v", "tags": '{"customer":"acme"}'}
        connection.execute(*insert("ledger_events", EVENT | row))
        connection.execute(*insert("ledger_usage_hourly", totals | {"hour": 30}))
        connection.execute(*insert("ledger_usage_daily", totals | {"day": 1}))
        tag = {"day": 1, "tag": "customer", "value": "acme", "is_rest": 0}
        connection.execute(*insert("ledger_tags_daily", totals | tag))
    database.migrate()
    with database.read() as connection:
        before = load_usage_cells(connection), load_daily_cells(connection), load_tag_cells(connection)
        assert [event.kind for _, event in load_events(connection, 0, 10)] == [Kind.REQUEST]
    assert [len(cells) for cells in before] == [1, 1, 1]
    assert [row.kind for row in load_usage(database, UsageQuery(by=(UsageBy.KIND,)))] == ["request"]
    assert rebuild_usage(database, Rollups(tags=("customer",))) == 1
    with database.read() as connection:
        after = load_usage_cells(connection), load_daily_cells(connection), load_tag_cells(connection)
    assert after == before
    database.close()
    remove_location(location)
