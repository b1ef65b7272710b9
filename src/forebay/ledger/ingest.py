"""Brings segments into the tables, each record once, whoever is killed and whoever else ingests.

A portion of a file is read first; then its rows, its totals and the move of the file's cursor commit in one
transaction, and only if the cursor still stands where the reading began.  A file is sealed when its writer is
gone and all of it is in the tables, and removed some time later.  Nothing is ever written to a segment here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from forebay.core.clock import Clock
from forebay.core.prices import NO_PRICES, PriceBook
from forebay.ledger.batch import Batch, SetAside, read_batch
from forebay.ledger.folder import load_folder_id
from forebay.ledger.quarantine import add_accepted, add_set_aside, reconsider_unknown
from forebay.ledger.repo import (
    Segment,
    add_events,
    add_segment,
    adopt_segment,
    advance_segment,
    change_state,
    find_segment,
    load_segments,
    lock_ledger,
)
from forebay.ledger.rollup import NO_ROLLUPS, Rollups
from forebay.ledger.segment import HEADER, SegmentError, is_final, list_segments, remove_unborn
from forebay.ledger.tables import SegmentState
from forebay.store.database import Database
from forebay.store.errors import StoreValueRefused

#: A file without a header may be in the making.  Its writer would notice the removal, but have to start anew.
UNBORN_AGE_S_MIN = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestLimits:
    """`batch_records` bounds a transaction, `records_max` (to within a batch) a call of `ingest_once`."""

    batch_records: int = 5_000
    records_max: int = 200_000
    keep_segments_s: float = 86_400.0  #: how long a file stays after all of it is in the tables


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """What one call did.  All but `lag_bytes` and `is_complete` counts what is new in this call."""

    records: int = 0  #: became events
    set_aside: int = 0  #: went to quarantine: damaged, unknown, implausible or refused
    damaged_bytes: int = 0
    torn_bytes: int = 0  #: half records of writers that died; never acknowledged, so nothing is lost
    recovered: int = 0  #: left quarantine, because this version can read them
    sealed: int = 0
    deleted: int = 0
    missing: int = 0  #: files that went away before they were sealed
    newest_at_ns: int | None = None  #: the latest moment among the new events
    lag_bytes: int = 0  #: in files, but not in the tables yet
    is_complete: bool = True  #: False when `records_max` ended the call early
    problems: list[str] = field(default_factory=list)  #: each names its file


class Ingester:
    """Any number of these may work on one folder and database, in any number of processes, and on any number
    of folders over one database: each looks after the files of its own.

    Args:
        database: where the tables are.
        folder: where the segments are.
        clock: for how old a file is.
        limits: None takes the defaults.
        get_prices: the price book in force, by which the cost of what comes is computed.
        get_rollups: which tags have totals of their own.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        clock: Clock,
        limits: IngestLimits | None = None,
        *,
        get_prices: Callable[[], PriceBook] = lambda: NO_PRICES,
        get_rollups: Callable[[], Rollups] = lambda: NO_ROLLUPS,
    ) -> None:
        self._database = database
        self._folder = folder
        self._clock = clock
        self._limits = limits or IngestLimits()
        self._get_prices = get_prices
        self._get_rollups = get_rollups
        self._has_reconsidered = False
        self._folder_id = ""

    def ingest_once(self) -> IngestReport:
        """Ingest what there is, seal what is finished, remove what is old.

        A file that can't be read stays as it is, is named in the report's `problems`, and holds no other up.
        Raises StoreBusy or StoreUnavailable; nothing is lost then, and the next call goes on.
        """
        report = IngestReport()
        if not self._has_reconsidered:
            self._reconsider(report)
        try:
            self._folder_id = self._folder_id or load_folder_id(self._folder)
        except OSError as error:
            report.problems.append(f"the folder of the ledger has no name of its own: {error}")
            return report
        paths = list_segments(self._folder)
        known = self._load_known(paths)
        for path in paths:
            segment = known.pop(path.name, None)
            try:
                if segment is None or segment.state is not SegmentState.SEALED:
                    self._ingest_file(path, segment, report)
                elif self._is_old(segment.state_since_ns):
                    self._delete(path, segment, report)
            except FileNotFoundError:
                continue  # another ingester removed it a moment ago, or the next call reports it missing
            except (OSError, SegmentError) as error:
                report.problems.append(str(error))
        self._note_absent(known, report)
        return report

    def _load_known(self, paths: list[Path]) -> dict[str, Segment]:
        """The rows of this folder's files, by name; of a file that has come from elsewhere it becomes one."""
        with self._database.read() as connection:
            known = load_segments(connection, self._folder_id)
            found = [find_segment(connection, path.name) for path in paths if path.name not in known]
        for segment in found:
            # A file may have gone, and its row become a deleted one, since the folder was listed.
            if segment is None or not (self._folder / segment.name).exists():
                continue
            with self._database.begin() as connection:
                adopted = adopt_segment(connection, segment, self._folder_id)
            if adopted is not None:
                known[adopted.name] = adopted
        return known

    def _ingest_file(self, path: Path, segment: Segment | None, report: IngestReport) -> None:
        # Asked before reading: what is read afterwards is then all that will ever be in the file.
        final = is_final(path)
        size = path.stat().st_size
        if segment is None and size < len(HEADER):
            self._remove_if_unborn(path)
            return
        while True:
            start = segment.position if segment else 0
            if report.records + report.set_aside >= self._limits.records_max:
                report.is_complete = False
                report.lag_bytes += max(size - start, 0)
                return
            batch = read_batch(path, start, self._limits.batch_records, is_final=final)
            state = SegmentState.SEALED if final and batch.is_last else SegmentState.OPEN
            if segment and batch.end == start and state is segment.state:
                break  # nothing new
            segment = self._commit(path.name, segment, batch, state, report)
            if segment.state not in (SegmentState.OPEN, SegmentState.MISSING):
                return
            if batch.is_last and segment.position == batch.end:
                break
        if batch.waiting:
            report.problems.append(f"{batch.waiting}; waiting for a whole record behind it")
        report.lag_bytes += max(path.stat().st_size - segment.position, 0)

    def _commit(
        self, name: str, segment: Segment | None, batch: Batch, state: SegmentState, report: IngestReport
    ) -> Segment:
        """Store a batch and move the cursor; returns the file's row as it stands then.

        When another ingester has moved the cursor since the batch was read, nothing is stored.
        """
        try:
            return self._try_commit(name, segment, batch, state, report, is_doubtful=False)
        except StoreValueRefused:
            return self._try_commit(name, segment, batch, state, report, is_doubtful=True)

    def _try_commit(
        self,
        name: str,
        segment: Segment | None,
        batch: Batch,
        state: SegmentState,
        report: IngestReport,
        *,
        is_doubtful: bool,
    ) -> Segment:
        """`is_doubtful` says that the database refused something in the batch, which is to be found."""
        now_ns, book, rollups = self._clock.wall_ns(), self._get_prices(), self._get_rollups()
        refused: list[SetAside] = []
        with self._database.begin() as connection:
            lock_ledger(connection)
            segment = segment or add_segment(connection, name, self._folder_id, now_ns)
            if not advance_segment(connection, segment, batch, state, now_ns):
                return add_segment(connection, name, self._folder_id, now_ns)
            if is_doubtful:
                refused = add_accepted(connection, segment.id, batch.events, book, rollups)
            else:
                add_events(connection, segment.id, batch.events, book, rollups)
            add_set_aside(connection, segment.id, [*batch.set_aside, *refused], now_ns)
        # Counted after the commit: a report never claims what was rolled back.
        report.records += len(batch.events) - len(refused)
        report.set_aside += len(batch.set_aside) + len(refused)
        report.damaged_bytes += batch.damaged_bytes
        report.torn_bytes += batch.torn_bytes
        report.sealed += state is SegmentState.SEALED
        newest = max((event.at_ns for _, event in batch.events), default=None)
        report.newest_at_ns = max(filter(None, (newest, report.newest_at_ns)), default=None)
        return replace(segment, state=state, position=batch.end)

    def _is_old(self, since_ns: int, age_s_min: float = 0.0) -> bool:
        age_ns = self._clock.wall_ns() - since_ns
        return age_ns >= max(self._limits.keep_segments_s, age_s_min) * 1e9

    def _remove_if_unborn(self, path: Path) -> None:
        """A writer that died before its first record leaves a file without a header."""
        if self._is_old(path.stat().st_mtime_ns, UNBORN_AGE_S_MIN):
            remove_unborn(path)

    def _delete(self, path: Path, segment: Segment, report: IngestReport) -> None:
        if not is_final(path) or path.stat().st_size != segment.position:
            report.problems.append(f"{path.name}: has changed after it was sealed, and is kept")
            return
        # The file goes first.  If we die in between, the next call finds no file, and notes that.
        path.unlink(missing_ok=True)
        self._change_state(segment, SegmentState.DELETED)
        report.deleted += 1

    def _note_absent(self, absent: dict[str, Segment], report: IngestReport) -> None:
        """Rows whose file was not in the listing."""
        if not self._folder.is_dir():
            if absent:
                report.problems.append(f"{self._folder}: the folder of the ledger is not there")
            return
        for segment in absent.values():
            if (self._folder / segment.name).exists():
                continue  # it came after the listing
            if segment.state is SegmentState.SEALED:
                self._change_state(segment, SegmentState.DELETED)
            elif segment.state is SegmentState.OPEN and self._change_state(segment, SegmentState.MISSING):
                report.missing += 1
                report.problems.append(
                    f"{segment.name}: the file is gone; all after byte {segment.position} is lost"
                )

    def _change_state(self, segment: Segment, state: SegmentState) -> bool:
        with self._database.begin() as connection:
            return change_state(connection, segment, state, self._clock.wall_ns())

    def _reconsider(self, report: IngestReport) -> None:
        """Once for each start: what was set aside may have waited for this version, or for a better price."""
        place: tuple[int, int] | None = (0, 0)
        while place is not None:
            with self._database.begin() as connection:
                lock_ledger(connection)
                moved, place = reconsider_unknown(
                    connection, place, self._limits.batch_records, self._get_prices(), self._get_rollups()
                )
            report.recovered += moved
        self._has_reconsidered = True
