"""The statements that are written for two databases come out right for the one that is not running here."""

from sqlalchemy.dialects import postgresql

from forebay.ledger.repo import _compile_event_insert
from forebay.ledger.tables import usage_hourly
from forebay.ledger.totals import _make_upsert


def test_events_are_inserted_by_name_where_the_driver_takes_names() -> None:
    statement, is_positional = _compile_event_insert(postgresql.dialect())
    assert not is_positional
    assert statement.startswith(
        "INSERT INTO ledger_events (segment_id, position, cost_nano_usd, price_id, tags, "
    )
    assert "%(tokens_output_reasoning)s" in statement


def test_totals_are_added_up_by_the_database() -> None:
    dialect = postgresql.dialect()
    statement = str(_make_upsert(dialect, usage_hourly).compile(dialect=dialect))
    place = "hour, team, project, key_id, model, pool, tier, region, kind, version"
    assert f"ON CONFLICT ({place}, experiment, variant, is_other) DO UPDATE SET " in statement
    assert "ledger_usage_hourly.tokens_input + excluded.tokens_input" in statement
