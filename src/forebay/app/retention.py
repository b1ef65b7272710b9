"""Keeps the ledger as short as `ledger.retention` says: removes what is too old, then gives the room back.

Works in portions with pauses between them, so that ingest and bills never wait for long, and goes on after
any failure.  Each day that goes is told in the audit, in the transaction that seals its removal.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection

from forebay.app.config_ledger import LedgerConfig, RetentionConfig
from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.tenancy import FOREBAY, Actor
from forebay.ledger.marks import Kept, Mark, format_day, load_marks
from forebay.ledger.retention import KeepDays, Removal, Retention
from forebay.ledger.rollup import Rollups
from forebay.store.database import Database

INTERVAL_S: Final = 600.0  #: between two looks for what is too old
PAUSE_S: Final = 0.05  #: between two portions
PAGES: Final = 500  #: that are given back to the disk at a time
#: So much of the file may hold nothing before it is cut: what comes next goes there.
SPARE_BYTES_MAX: Final = 64 * 1024 * 1024

logger = logging.getLogger("forebay.control")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionState:
    """As of the last look.  `removed` counts rows since this process started."""

    marks: Mapping[Kept, Mark] = field(default_factory=dict)
    removed: int = 0
    looked_at_ns: int | None = None
    error: str | None = None


class Keeper:
    """The loop of one control plane.

    Args:
        database: where the ledger is.
        clock: for what is old.
        get_config: the setting in force.
        interval_s: seconds between two looks.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        get_config: Callable[[], LedgerConfig],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.state = RetentionState()
        self._database = database
        self._clock = clock
        self._get_config = get_config
        self._interval_s = interval_s
        self._retention = make_retention(database, clock, FOREBAY, lambda: get_config().rollups)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.remove_now()
            await asyncio.sleep(self._interval_s)

    async def remove_now(self) -> None:
        """Removes all that is too old.  What fails is shown and tried again with the next look."""
        try:
            while removed := await asyncio.to_thread(self._retention.remove_portion, self._keep()):
                self.state = replace(self.state, removed=self.state.removed + removed)
                await asyncio.sleep(PAUSE_S)
            await self._give_back()
            marks = await asyncio.to_thread(self._load_marks)
        except Exception as error:  # the loop's outer edge: nothing is half done, the rest goes on
            if self.state.error is None:
                known = isinstance(error, ForebayError)
                logger.error("what is too old can't be removed: %s", error, exc_info=None if known else error)
            self.state = replace(self.state, error=str(error) or type(error).__name__)
            return
        self.state = replace(self.state, marks=marks, looked_at_ns=self._clock.wall_ns(), error=None)

    def _keep(self) -> KeepDays:
        return make_keep(self._get_config().retention)

    async def _give_back(self) -> None:
        if await asyncio.to_thread(self._database.count_spare_bytes) <= SPARE_BYTES_MAX:
            return
        more = True
        while more:
            more = await asyncio.to_thread(self._database.give_back, PAGES)
            await asyncio.sleep(PAUSE_S)

    def _load_marks(self) -> dict[Kept, Mark]:
        with self._database.read() as connection:
            return load_marks(connection)


def make_keep(config: RetentionConfig) -> KeepDays:
    return KeepDays(records=config.records_days, hourly=config.hourly_days, daily=config.daily_days)


def make_retention(
    database: Database, clock: Clock, actor: Actor, get_rollups: Callable[[], Rollups]
) -> Retention:
    """One whose removals are in the audit."""

    def tell(connection: Connection, removal: Removal) -> None:
        change = Change(
            action="ledger.remove",
            subject=f"{removal.kind.value} {format_day(removal.day_ns)}",
            before={"rows": removal.rows},
        )
        append_audit(connection, actor, change, clock.wall_ns())

    return Retention(database, clock, tell, get_rollups=get_rollups)
