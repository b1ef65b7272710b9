"""The control plane's work: takes records in, watches the configuration, keeps the snapshot up to date.

Everything is level-triggered: the snapshot that should be is compiled from what is, and written if it differs
from the one that was written last; so a failed step is made good by the next one.  Knows nothing of HTTP.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from forebay.app.config import Config
from forebay.app.config_edit import ConfigEdit, save_edit
from forebay.app.control_watch import ConfigWatch, list_restart_settings
from forebay.app.discovered import apply_facts
from forebay.app.effective_config import EffectiveConfig
from forebay.app.engine_watch import EngineWatch
from forebay.app.live_amounts import LiveAmounts
from forebay.app.price_books import PriceBooks
from forebay.app.quota_server import QuotaServer
from forebay.app.retention import Keeper
from forebay.app.snapshot import compile_snapshot, find_missing_engines, write_snapshot
from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.core.keys import KeyEntry
from forebay.core.routes import Snapshot, encode_snapshot
from forebay.gateway.repo import KeyRepo
from forebay.ledger.ingest import Ingester, IngestReport
from forebay.store.errors import StoreError

WATCH_INTERVAL_S: Final = 0.25
REFRESH_INTERVAL_S: Final = 1.0  #: between two comparisons of the snapshot with what it should be
KEYS_INTERVAL_S: Final = 10.0  #: between two looks at all keys, though none was changed: some have expired
PAUSE_S_MAX: Final = 10.0  #: between two readings while the database refuses

logger = logging.getLogger("forebay.control")


class SnapshotUnwritable(ForebayError):
    """The gateway goes on with what it knew before."""

    status: ClassVar[int] = 503
    code: ClassVar[str] = "snapshot_unwritable"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotState:
    """The snapshot in force.  Times are nanoseconds since the epoch."""

    snapshot: Snapshot
    hash: str
    route_hash: str
    written_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestState:
    """How far the database is behind the segments.  Counts are since the start of this process."""

    last_success_ns: int | None = None
    records: int = 0
    set_aside: int = 0  #: damaged or unreadable, kept for people to look at
    lag_bytes: int = 0
    error: str | None = None
    problems: tuple[str, ...] = ()

    def absorb(self, report: IngestReport, now_ns: int) -> "IngestState":
        return IngestState(
            last_success_ns=now_ns,
            records=self.records + report.records,
            set_aside=self.set_aside + report.set_aside,
            lag_bytes=report.lag_bytes,
            problems=tuple(report.problems),
        )


class ControlPlane:
    """The loops of one control plane, and what they found.

    Args:
        watch: the configuration, as it is now and will be.
        started: the configuration with which the supervisor started everything.
        keys: the callers' keys.
        ingester: takes records in.
        engine_urls: where the engines that were started are.
        snapshot_path: where the workers look.
        created_s: Unix time given as the birth of every model.
        clock: for what a status says.
        quota: is told of the limits that hold.
        live: knows the amounts of those that have an expression.
        keeper: keeps the ledger as short as it is to be.
        engines: asks the replicas of the table for their load, and has new ones warmed up.
        effective: adds what serves of deployments to the configuration.
    """

    def __init__(
        self,
        watch: ConfigWatch,
        *,
        started: Config,
        keys: KeyRepo,
        ingester: Ingester,
        engine_urls: Mapping[str, str],
        snapshot_path: Path,
        created_s: int,
        clock: Clock,
        quota: QuotaServer | None = None,
        live: LiveAmounts | None = None,
        keeper: Keeper | None = None,
        books: PriceBooks | None = None,
        engines: EngineWatch | None = None,
        effective: EffectiveConfig | None = None,
    ) -> None:
        self.watch = watch
        self._books = books
        self.keeper = keeper
        self._engines = engines
        self._effective = effective
        self.engine_urls = engine_urls
        self.ingest_state = IngestState()
        self.snapshot_state: SnapshotState | None = None
        self.snapshot_error: str | None = None
        self._started = started
        self._workers = started.gateway.workers or len(os.sched_getaffinity(0))
        self._key_repo = keys
        self._ingester = ingester
        self._snapshot_path = snapshot_path
        self._created_s = created_s
        self._clock = clock
        self._quota = quota
        self._live = live
        self._keys: tuple[KeyEntry, ...] = ()  #: the live ones as of the last look
        self._keys_change = -1  #: the last change before that look
        self._keys_due = 0.0  #: loop time of the next look
        self._written: bytes | None = None
        self._snapshot_stamp: tuple[int, int, int] | None = None
        self._refreshing = asyncio.Lock()  # of two refreshes, the later one writes what is newer

    @property
    def config(self) -> Config:
        return self.watch.config

    @property
    def effective_config(self) -> Config:
        """With what serves of deployments."""
        return self.config if self._effective is None else self._effective.expand(self.config)

    @property
    def restart_settings(self) -> tuple[str, ...]:
        return list_restart_settings(self._started, self.config)

    @property
    def engines_missing(self) -> tuple[str, ...]:
        return find_missing_engines(self.config, self.engine_urls)

    async def refresh_snapshot(self) -> None:
        """Writes the snapshot that should be in force, unless it is.

        Raises:
            SnapshotUnwritable: the disk or the database refused; the loop tries again.
        """
        async with self._refreshing:
            try:
                await self._look_at_keys()
                if self._effective is not None:  # what is not known yet would be taken for gone
                    await self._effective.prepare()
                config = self.effective_config
                snapshot = await asyncio.to_thread(self._compile, config, self._keys)
                if self._engines is not None:  # what nobody has written
                    snapshot = apply_facts(snapshot, self._engines.find_facts())
                if self._engines is not None:  # first: what is new may be cold
                    self._engines.follow(snapshot, config, self.engine_urls)
                amounts = await self._live.prepare(snapshot, config.limits.signals) if self._live else {}
                try:
                    if self._quota is not None:  # first: no worker may know a limit that it does not
                        self._quota.set_limits(snapshot.quotas, amounts)
                finally:
                    await asyncio.to_thread(self._write_if_changed, snapshot)
            except (OSError, StoreError) as error:
                if self.snapshot_error is None:
                    logger.error("the snapshot can't be brought up to date: %s", error)
                self.snapshot_error = str(error)
                raise SnapshotUnwritable(
                    f"the gateway could not be told: {error}. It will be as soon as that is mended."
                ) from error
            self.snapshot_error = None

    async def _look_at_keys(self) -> None:
        now = asyncio.get_running_loop().time()
        change = await asyncio.to_thread(self._key_repo.find_last_change)  # first: what follows is newer
        if change != self._keys_change or now >= self._keys_due:
            self._keys = await asyncio.to_thread(self._key_repo.list_live)
            self._keys_change, self._keys_due = change, now + KEYS_INTERVAL_S

    def _count_workers(self) -> int:
        """Of all machines that share limits, as far as is known: each has its part while nobody lends."""
        members = None if self._quota is None else self._quota.members
        return max(self._workers, members or 0)

    def _compile(self, config: Config, keys: tuple[KeyEntry, ...]) -> Snapshot:
        return compile_snapshot(
            config,
            keys,
            self.engine_urls,
            created_s=self._created_s,
            workers=self._count_workers(),
            # First: by it a record is priced, whenever it is taken in.
            price_book="" if self._books is None else self._books.keep(config.prices.price_book),
        )

    def _write_if_changed(self, snapshot: Snapshot) -> None:
        encoded = encode_snapshot(snapshot)
        stamp = self._look_at_snapshot()
        if encoded == self._written and stamp is not None and stamp == self._snapshot_stamp:
            return
        write_snapshot(self._snapshot_path, snapshot)
        self._written, self._snapshot_stamp = encoded, self._look_at_snapshot()
        self.snapshot_state = SnapshotState(
            snapshot=snapshot,
            hash=snapshot.compute_hash(),
            route_hash=snapshot.table.compute_hash(),
            written_ns=self._clock.wall_ns(),
        )
        routes, count = len(snapshot.table.routes), len(snapshot.keys)
        logger.info("snapshot %s: %d models, %d keys", self.snapshot_state.route_hash, routes, count)

    def _look_at_snapshot(self) -> tuple[int, int, int] | None:
        """Changes when somebody removes or damages the file, without which no worker starts."""
        try:
            status = self._snapshot_path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_forever())
            group.create_task(self._ingest_forever())
            if self._live is not None:
                group.create_task(self._live.run())
            if self.keeper is not None:
                group.create_task(self.keeper.run())
            if self._engines is not None:
                group.create_task(self._engines.run())

    async def _watch_forever(self) -> None:
        next_refresh = 0.0
        is_untold = False  # an edit, to whoever started all this
        loop = asyncio.get_running_loop()
        while True:
            changed = await asyncio.to_thread(self.watch.poll)
            if changed:
                self._log_edit()
                is_untold = True
            if self._effective is not None and await self._effective.poll():
                next_refresh = 0.0
            if changed or loop.time() >= next_refresh or await asyncio.to_thread(self._have_keys_changed):
                try:
                    await self.refresh_snapshot()
                    next_refresh = loop.time() + REFRESH_INTERVAL_S
                    if is_untold:
                        await asyncio.to_thread(self._tell_edit)
                        is_untold = False
                except SnapshotUnwritable:
                    next_refresh = loop.time() + 1.0
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _have_keys_changed(self) -> bool:
        """Whether another process, such as `forebay keys`, has changed keys or what they belong to."""
        try:
            return self._key_repo.find_last_change() != self._keys_change
        except StoreError:
            return False  # the next look at all keys tells why

    def _log_edit(self) -> None:
        if self.watch.problems:
            for problem in self.watch.problems:
                logger.error("the edit of the configuration is not valid and is not used: %s", problem)
            return
        logger.info("the configuration has changed")
        for name in self.restart_settings:
            logger.warning("the edit of %s takes effect after a restart", name)
        for name in self.engines_missing:
            logger.warning("engine %s does not run yet; its targets are used after a restart", name)

    def _tell_edit(self) -> None:
        edit = ConfigEdit(problems=self.watch.problems, restart_settings=self.restart_settings)
        try:
            save_edit(self._snapshot_path.parent, edit)
        except OSError as error:
            logger.warning("what became of the edit can't be told: %s", error)

    async def _ingest_forever(self) -> None:
        failures = 0
        while True:
            if await self.ingest_now():
                failures = 0 if self.ingest_state.error is None else failures + 1
                await asyncio.sleep(compute_pause_s(self.config.ledger.ingest_interval_s, failures))

    async def ingest_now(self) -> bool:
        """One reading of the segments; False when more is waiting.  What fails is shown and tried again."""
        before = self.ingest_state
        try:
            report = await asyncio.to_thread(self._ingester.ingest_once)
        except Exception as error:  # the loop's outer edge: records wait, the rest goes on
            if before.error is None:
                known = isinstance(error, OSError | ForebayError)
                logger.error("records can't be taken in: %s", error, exc_info=None if known else error)
            self.ingest_state = replace(before, error=str(error) or type(error).__name__)
            return True
        if before.error is not None:
            logger.info("records are taken in again")
        self.ingest_state = before.absorb(report, self._clock.wall_ns())
        for problem in set(report.problems) - set(before.problems):
            logger.error("a record or segment is set aside: %s", problem)
        return report.is_complete


def compute_pause_s(interval_s: float, failures: int) -> float:
    """Seconds until the next reading: twice as long after each failure in a row, up to PAUSE_S_MAX."""
    return max(interval_s, min(interval_s * 2.0 ** min(failures, 30), PAUSE_S_MAX))
