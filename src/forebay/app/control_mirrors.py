"""Comparisons of mirrors in the admin API.  Only reads."""

import asyncio
from typing import Annotated, Final

from fastapi import FastAPI, Query

from forebay.app.control_routes import RouteAdder
from forebay.app.control_usage import ModelFilter, UnixSeconds, check_period
from forebay.app.mirror_views import ComparisonList, show_comparisons
from forebay.core.clock import Clock
from forebay.ledger.mirror_pairs import load_comparisons
from forebay.store.database import Database

DAY_NS: Final = 86_400 * 10**9


class MirrorRoutes:
    """The route over one ledger.

    Args:
        database: where the records are.
        clock: for what the last day is.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def install(self, app: FastAPI) -> None:
        RouteAdder(app)("GET", "/mirrors", self.get_mirrors, "Mirrors beside the requests that they copy")

    async def get_mirrors(
        self,
        model: Annotated[ModelFilter | None, Query(description="Only requests of this model.")] = None,
        since_s: Annotated[
            UnixSeconds | None, Query(description="Unix time, inclusive; without it: a day ago.")
        ] = None,
        until_s: Annotated[UnixSeconds | None, Query(description="Unix time, exclusive.")] = None,
    ) -> ComparisonList:
        """Error rates, times, tokens and costs of both sides.  Records take a second to arrive here."""
        check_period(since_s, until_s)
        found = await asyncio.to_thread(
            load_comparisons,
            self._database,
            since_ns=max(0, self._clock.wall_ns() - DAY_NS) if since_s is None else since_s * 10**9,
            until_ns=None if until_s is None else until_s * 10**9,
            model=model,
        )
        return show_comparisons(found)
