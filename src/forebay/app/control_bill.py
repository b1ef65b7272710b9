"""The bill in the admin API: what the requests of a time cost, told apart as asked.  Only reads.

Costs are decimals in text, exact to a billionth of a USD; what is unknown is null and in no sum.
"""

import asyncio
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Query
from pydantic import Field, StringConstraints

from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.control_usage import Filters, TagName, TokensView, UnixSeconds, check_period, show_tokens
from forebay.core.clock import Clock
from forebay.ledger.bill import Bill, find_month, load_bill, name_month
from forebay.ledger.rollup import UsageTotals
from forebay.ledger.usage import UsageBy, UsageRow
from forebay.store.database import Database

ROWS_MAX: Final = 10_000

Month = Annotated[str, StringConstraints(pattern=r"^(19[7-9][0-9]|20[0-9]{2})-(0[1-9]|1[0-2])$")]
Usd = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]{9}$")]


class BillBy(StrEnum):
    TEAM = "team"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    POOL = "pool"
    TIER = "tier"
    REGION = "region"
    KIND = "kind"
    VERSION = "version"
    EXPERIMENT = "experiment"
    VARIANT = "variant"
    DAY = "day"


class BillFigures(View):
    requests: int
    estimated: int = Field(description="Requests whose tokens were counted by us.")
    unpriced: int = Field(description="Requests whose cost is unknown.")
    tokens: TokensView
    cost_usd: Usd | None = Field(description="Of all whose cost is known; null where that is none.")


class BillRowView(BillFigures):
    """One group.  What the bill is not told apart by is null."""

    start_s: int | None = Field(description="Unix time at which the day begins, UTC.")
    team: str | None
    project: str | None
    key: str | None = Field(description="A key's id.")
    model: str | None
    pool: str | None
    tier: str | None
    region: str | None
    kind: str | None
    version: str | None
    experiment: str | None
    variant: str | None
    tag: str | None = Field(description="The tag's value; empty where a request has none.")


class BillView(View):
    currency: Literal["USD"] = "USD"
    since_s: int
    until_s: int
    records_since_s: int | None = Field(
        description="The records of what came before were removed: there are totals of it, and nothing that "
        "needs records. Null where all are there."
    )
    data: list[BillRowView]
    total: BillFigures


class BillRoutes:
    """The route over one ledger.

    Args:
        database: where the bill is read.
        clock: for what this month is.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def install(self, app: FastAPI) -> None:
        RouteAdder(app)("GET", "/bill", self.get_bill, "What requests cost")

    async def get_bill(
        self,
        where: Filters,
        by: Annotated[list[BillBy], Query(description="What is told apart.", max_length=12)] = [  # noqa: B006
            BillBy.TEAM,
            BillBy.PROJECT,
            BillBy.MODEL,
        ],
        tag: Annotated[TagName | None, Query(description="Told apart by this tag as well.")] = None,
        month: Annotated[Month | None, Query(description="Such as 2026-11; without it: this month.")] = None,
        since_s: Annotated[
            UnixSeconds | None, Query(description="Begins here instead; Unix time, inclusive.")
        ] = None,
        until_s: Annotated[
            UnixSeconds | None, Query(description="Ends here instead; Unix time, exclusive.")
        ] = None,
    ) -> BillView:
        """By the prices in force when each request began.  All groups come at once; more than 10,000 are
        refused.  Records take a second to arrive here."""
        since_ns, until_ns = self._find_period(month, since_s, until_s)
        groups = [UsageBy(each.value) for each in dict.fromkeys(by)]
        bill = await asyncio.to_thread(
            load_bill,
            self._database,
            by=groups if tag is None else [*groups, UsageBy.TAG],
            since_ns=since_ns,
            until_ns=until_ns,
            tag=tag,
            where={name: value for name, value in where.items() if value is not None},
            rows_max=ROWS_MAX,
        )
        return show_bill(bill)

    def _find_period(self, month: str | None, since_s: int | None, until_s: int | None) -> tuple[int, int]:
        since_ns, until_ns = find_month(month or name_month(self._clock.wall_ns()))
        if since_s is not None:
            since_ns = since_s * 10**9
        if until_s is not None:
            until_ns = until_s * 10**9
        check_period(since_ns // 10**9, until_ns // 10**9)
        return since_ns, until_ns


def show_bill(bill: Bill) -> BillView:
    return BillView(
        since_s=bill.since_ns // 10**9,
        until_s=bill.until_ns // 10**9,
        records_since_s=bill.records_since_ns // 10**9 or None,
        data=[_show_row(row) for row in bill.rows],
        total=BillFigures(**_show_figures(bill.total)),
    )


def _show_row(row: UsageRow) -> BillRowView:
    return BillRowView(
        start_s=row.start_s,
        team=row.team,
        project=row.project,
        key=row.key,
        model=row.model,
        pool=row.pool,
        tier=row.tier,
        region=row.region,
        kind=row.kind,
        version=row.version,
        experiment=row.experiment,
        variant=row.variant,
        tag=row.tag,
        **_show_figures(row.totals),
    )


def _show_figures(totals: UsageTotals) -> dict[str, Any]:
    cost = totals.cost_nano_usd
    return {
        "requests": totals.requests,
        "estimated": totals.estimated,
        "unpriced": totals.unpriced,
        "tokens": show_tokens(totals),
        "cost_usd": None if cost is None else format(Decimal(cost).scaleb(-9), "f"),
    }
