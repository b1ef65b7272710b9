"""How long the bill of a month takes over ten million records.

usage: python bench/bill.py [--records N] [--quick]

Prints a table on stderr and one JSON line last on stdout; `docs/performance.md` says how it is measured.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sqlalchemy import text

import measure
from forebay.ledger.bill import find_month, load_bill
from forebay.ledger.rebuild import rebuild_usage
from forebay.ledger.rollup import HOUR_NS, Rollups
from forebay.ledger.usage import UsageBy
from forebay.store.database import Database
from measure import BenchError, Figure

RECORDS = 10_000_000
QUICK_RECORDS = 200_000
PORTION = 500_000  #: records in one statement
ASKED = 5  #: times; the middle one counts
MONTH = "2026-11"
DAYS = 30
BILL_MAX_MS = 1000.0

#: Each key has a project and calls five models, each in one of two pools: 1,000 places in every hour that is
#: busy enough.  Everything follows from a record's number, so the same records are made each time.
#: One of the models is in an experiment of two variants; each pool has its version; a tenth of the records
#: name one of 20 customers, which are rolled up, and a feature, which is not.
KEYS, KEYS_IN_PROJECT, PROJECTS_IN_TEAM, MODELS, POOLS, CUSTOMERS = 100, 2, 5, 5, 2, 20
ROLLUPS = Rollups(tags=("customer",))
FILL = f"""
WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :last),
mixed AS (SELECT n, (n * 2654435761 + 97) % 4294967296 AS h FROM numbers),
placed AS (SELECT n, h, h % {KEYS} AS k, (h / 128) % {MODELS} AS m, (h / 1024) % {POOLS} AS p FROM mixed)
INSERT INTO ledger_events (
  segment_id, position, request_id, at_ns, key_id, project, team, endpoint, model, target, pool, tier,
  route_hash, stream, status, outcome, error, attempts, tokens_input, tokens_output, usage_source,
  first_token_ns, duration_ns, request_bytes, answer_bytes, experiment, variant, worker, region,
  cost_nano_usd, price_id, tags, version)
SELECT
  1, n, 'req_' || n, :begin_ns + n * :step_ns, 'key_' || k, 'project-' || (k / {KEYS_IN_PROJECT}),
  'team-' || (k / {KEYS_IN_PROJECT * PROJECTS_IN_TEAM}), 'chat/completions', 'model-' || m,
  'model-' || m || '@pool-' || p, 'pool-' || p, CASE p WHEN 0 THEN 'provisioned' ELSE 'provider' END,
  '0123456789abcdef', h % 2, 200, 'ok', '', 1, h % 4000, h % 700, 'reported',
  200000000 + h % 900000000, 1000000000 + h % 9000000000, 2000, 3000,
  CASE WHEN m = 0 AND h % 3 > 0 THEN 'rollout' ELSE '' END,
  CASE WHEN m = 0 AND h % 3 > 0 THEN CASE h % 3 WHEN 1 THEN 'old' ELSE 'new' END ELSE '' END, 0, '',
  CASE WHEN h % 50 = 0 THEN NULL ELSE (h % 4000) * 2500 + (h % 700) * 10000 END, 'price_0123456789abcdef',
  CASE WHEN h % 10 = 0
    THEN '{{"customer":"c' || (h / 10 % {CUSTOMERS}) || '","feature":"f' || (h % 30) || '"}}' END,
  'v' || p
FROM placed
"""


def fill(database: Database, records: int) -> tuple[float, float]:
    """Makes the records; the seconds that took, and those of adding them up."""
    begin_ns, end_ns = find_month(MONTH)
    started = time.perf_counter()
    with database.begin() as connection:
        connection.execute(text("INSERT INTO ledger_segments VALUES (1, 'bench', 'sealed', 0, 0, 0, 0, 0)"))
    for first in range(0, records, PORTION):
        last = min(first + PORTION, records)
        bounds = {
            "first": first,
            "last": last,
            "begin_ns": begin_ns,
            "step_ns": (end_ns - begin_ns) // records,
        }
        with database.begin() as connection:
            connection.execute(text(FILL), bounds)
        measure.console.print(f"{last:,} records", style="dim")
    made = time.perf_counter()
    if rebuild_usage(database, ROLLUPS) != records:
        raise BenchError("the totals do not hold all records")
    return made - started, time.perf_counter() - made


def ask(
    database: Database,
    by: Sequence[UsageBy],
    records: int | None,
    *,
    where: Mapping[str, str] | None = None,
    hours_less: int = 0,
) -> Callable[[], None]:
    """Asks for the bill of the month; `records` is what it must hold, None less than all."""
    begin_ns, end_ns = find_month(MONTH)
    begin_ns -= hours_less * HOUR_NS  # not whole days: nothing was recorded before, so the sums are the same
    if where is None and UsageBy.TAG in by:
        where = {"tag": ROLLUPS.tags[0]}

    def asked() -> None:
        bill = load_bill(database, by=by, since_ns=begin_ns, until_ns=end_ns, where=where)
        if bill.total.requests != records and (records is not None or not bill.total.requests):
            raise BenchError(f"the bill holds {bill.total.requests} of {records} records")

    return asked


def measure_ms(work: Callable[[], None], times: int = ASKED) -> float:
    """The middle of some times."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append((time.perf_counter() - started) * 1000)
    return round(measure.compute_quantile(taken, 0.5), 1)


def measure_bills(path: Path, records: int) -> list[Figure]:
    database = Database.open(path)
    try:
        database.migrate()
        fill_s, rebuild_s = fill(database, records)
        bills = {
            "bill_month_ms": (UsageBy.TEAM, UsageBy.PROJECT, UsageBy.MODEL),
            "bill_month_by_key_ms": (UsageBy.KEY,),
            "bill_month_by_day_ms": (UsageBy.DAY, UsageBy.PROJECT),
            "bill_month_by_version_ms": (UsageBy.MODEL, UsageBy.VERSION),
            "bill_month_by_experiment_ms": (UsageBy.EXPERIMENT, UsageBy.VARIANT),
            "bill_month_by_tag_ms": (UsageBy.TAG, UsageBy.TEAM),
        }
        figures = [
            Figure(name=name, value=measure_ms(ask(database, by, records)), unit="ms", target=BILL_MAX_MS)
            for name, by in bills.items()
        ]
        of_one = measure_ms(
            ask(database, (UsageBy.MODEL,), None, where={"tag": "customer", "tag_value": "c1"})
        )
        figures.append(Figure(name="bill_month_of_a_tag_ms", value=of_one, unit="ms", target=BILL_MAX_MS))
        by_hours = measure_ms(ask(database, bills["bill_month_ms"], records, hours_less=1))
        by_records = measure_ms(ask(database, (UsageBy.TAG,), records, where={"tag": "feature"}), 1)
        with database.read() as connection:
            rows = {
                name: connection.execute(text(f"SELECT count(*) FROM ledger_{name}")).scalar_one()
                for name in ("usage_daily", "usage_hourly", "tags_daily")
            }
    finally:
        database.close()
    return [
        *figures,
        Figure(name="bill_month_and_an_hour_ms", value=by_hours, unit="ms"),
        Figure(name="bill_month_by_tag_from_records_ms", value=by_records, unit="ms"),
        Figure(name="records", value=records, unit="records"),
        *(
            Figure(name=f"{name.removeprefix('usage_')}_rows", value=count, unit="rows")
            for name, count in rows.items()
        ),
        Figure(name="rebuild_s", value=round(rebuild_s, 1), unit="s"),
        Figure(name="fill_s", value=round(fill_s, 1), unit="s"),
        Figure(name="database_mib", value=round(path.stat().st_size / measure.MIB), unit="MiB"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Time of a month's bill.")
    parser.add_argument("--records", type=int, default=RECORDS, help=f"({RECORDS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RECORDS} records")
    arguments = parser.parse_args()
    records = QUICK_RECORDS if arguments.quick else arguments.records
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
            figures = measure_bills(Path(folder) / "forebay.db", records)
    except BenchError as error:
        return measure.fail(error)
    measure.publish("bill", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
