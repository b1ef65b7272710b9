"""Counters of one worker, kept where every worker can sum them: one mapped file each, one cell a series.

Labels come from configuration alone, so every series is known before the first request, and counting is one
addition to a memory cell.  A file outlives its worker: what a killed worker had counted stays counted.  The
exposition is prometheus-client's.
"""

import fcntl
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from operator import add
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from forebay.core.engine_load import EngineState
from forebay.core.events import Finished, Tokens
from forebay.core.keys import PRIORITIES
from forebay.gateway.metrics_layout import (
    DURATION_S,
    DURATION_SUM,
    ESTIMATE_SOURCES,
    ESTIMATE_TYPES,
    OVERHEAD_S,
    OVERHEAD_SUM,
    STATUS_CLASSES,
    TOKEN_CLASSES,
    WAIT_S,
    Family,
    Layout,
)

MAGIC = b"FBCELLS1"
FOLD = "fold.json"  #: a fold that has begun and not ended


class EndpointCells(msgspec.Struct, frozen=True):
    """Where the cells of one model and endpoint begin."""

    requests: int
    duration: int
    first_token: int
    tokens: int


class Cells:
    """The cells of one worker under one layout.

    Args:
        folder: where all workers of this machine keep theirs.
        name: unique among the files ever made there, e.g. worker, process id and layout.
    """

    def __init__(self, folder: Path, name: str, layout: Layout) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.layout = layout
        self._index = layout.index()
        header = msgspec.json.encode(layout)
        start = _cells_start(len(header))
        # It gets its name when it is whole and locked, for others look at whatever has that name.
        making = folder / f"{name}.making"
        self._file = open(making, "w+b", buffering=0)  # noqa: SIM115 - lives with us
        # The lock says "alive"; the kernel takes it back however the process ends.
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:  # reserved, not sparse: a full disk must show here, not as a signal at the first count
            os.posix_fallocate(self._file.fileno(), 0, start + 8 * layout.size)
        except OSError:
            making.unlink()
            raise
        self._map = mmap.mmap(self._file.fileno(), start + 8 * layout.size)
        self._map[: len(MAGIC) + 4 + len(header)] = MAGIC + struct.pack("<I", len(header)) + header
        making.rename(folder / f"{name}.cells")
        self.cells = memoryview(self._map)[start:].cast("d")
        self.in_flight = self._index[("forebay_requests_in_flight",)]
        self.records_waiting = self._index[("forebay_records_waiting",)]
        self.memory_held = self._index[("forebay_memory_held_bytes",)]
        self.internal_errors = self._index[("forebay_internal_errors",)]
        self._waiting = [self._index[("forebay_waiting", priority)] for priority in PRIORITIES]
        self._board = self._index[("forebay_board_connected",)]
        self._queued = {
            (model, priority): offset
            for (family, *labels), offset in self._index.items()
            if family == "forebay_queue_waiting"
            for model, priority in [labels]
        }
        self._overhead = self._index[("forebay_overhead_seconds",)]

    def endpoint(self, model: str, endpoint: str) -> EndpointCells:
        index = self._index
        return EndpointCells(
            index[("forebay_requests", model, endpoint, STATUS_CLASSES[0])],
            index[("forebay_request_duration_seconds", model, endpoint)],
            index[("forebay_time_to_first_token_seconds", model, endpoint)],
            index[("forebay_tokens", model, endpoint, TOKEN_CLASSES[0])],
        )

    def attempts(self, target: str) -> tuple[int, int]:
        """The cells of a target's good and failed attempts."""
        index = self._index
        return index[("forebay_attempts", target, "ok")], index[("forebay_attempts", target, "failed")]

    def count_refusal(self, reason: str) -> None:
        self.cells[self._index[("forebay_refused", reason)]] += 1

    def count_estimate(self, endpoint: str, estimate: Tokens, tokens: Tokens, *, names_output: bool) -> None:
        """Counts what a request was estimated to take beside what its target reported."""
        cells = self.cells
        at = self._index["forebay_estimate_tokens", endpoint, ESTIMATE_TYPES[0], ESTIMATE_SOURCES[0]]
        cells[at] += estimate.input or 0
        cells[at + 1] += tokens.input_total
        if estimate.output is not None:
            at += 4 if names_output else 2
            cells[at] += estimate.output
            cells[at + 1] += tokens.output_total

    def count_wait(self, priority: str, result: str, waited_s: float | None) -> None:
        """Counts a request that might wait, and how long it stood in a line; None if in none."""
        self.cells[self._index[("forebay_waits", priority, result)]] += 1
        if waited_s is not None:
            self._observe(self._index[("forebay_wait_seconds", priority)], WAIT_S, waited_s)

    def count_hedge(self, model: str, result: str) -> None:
        """Counts a request that was late."""
        self.cells[self._index[("forebay_hedges", model, result)]] += 1

    def count_retry(self, result: str) -> None:
        """Counts a retry that was made, or one that was denied."""
        self.cells[self._index[("forebay_retries", result)]] += 1

    def count_queued(self, model: str, priority: str, result: str, waited_s: float | None) -> None:
        """Counts a request that found all places full, and how long it waited for one; None if not at all."""
        self.cells[self._index["forebay_queue_waits", model, priority, result]] += 1
        if waited_s is not None:
            self._observe(self._index["forebay_queue_wait_seconds", priority], WAIT_S, waited_s)

    def count_usage_rule(self, target: str, name: str, result: str) -> None:
        self.cells[self._index[("forebay_usage_rules", target, name, result)]] += 1

    def count_mirror(self, model: str, mirror: str, result: str) -> None:
        """Counts what became of a copy for a mirror."""
        self.cells[self._index[("forebay_mirrors", model, mirror, result)]] += 1

    def count_filler(self, model: str) -> None:
        self.cells[self._index["forebay_fillers", model]] += 1

    def count_keep_alive(self) -> None:
        self.cells[self._index[("forebay_keep_alives",)]] += 1

    def count_snapshot_refused(self) -> None:
        self.cells[self._index[("forebay_snapshots_refused",)]] += 1

    def count_finished(self, at: EndpointCells, record: Finished) -> None:
        """Counts one record."""
        cells = self.cells
        status = record.status
        kind = 0 if status < 400 else 2 if status == 499 else 1 if status < 500 else 3
        cells[at.requests + kind] += 1
        # Two observations are written out here: a call for each would cost more than they do.
        value = record.duration_ns * 1e-9
        first = at.duration
        cells[first + bisect_left(DURATION_S, value)] += 1
        cells[first + DURATION_SUM] += value
        if record.first_token_ns is not None:
            self._observe(at.first_token, DURATION_S, record.first_token_ns * 1e-9)
        if record.overhead_ns is not None:
            value = record.overhead_ns * 1e-9
            first = self._overhead
            cells[first + bisect_left(OVERHEAD_S, value)] += 1
            cells[first + OVERHEAD_SUM] += value
        tokens = record.tokens
        if tokens.input:
            cells[at.tokens] += tokens.input
        if tokens.output:
            cells[at.tokens + 3] += tokens.output
        if (
            tokens.input_cached
            or tokens.output_reasoning
            or tokens.input_cache_write
            or tokens.input_audio
            or tokens.output_audio
        ):
            self._count_details(at.tokens, tokens)

    def _count_details(self, at: int, tokens: Tokens) -> None:
        self.cells[at + 1] += tokens.input_cached or 0
        self.cells[at + 2] += tokens.input_audio or 0
        self.cells[at + 4] += tokens.output_reasoning or 0
        self.cells[at + 5] += tokens.output_audio or 0
        self.cells[at + 6] += tokens.input_cache_write or 0

    def _observe(self, at: int, buckets: tuple[float, ...], value: float) -> None:
        cells = self.cells
        cells[at + bisect_left(buckets, value)] += 1
        cells[at + len(buckets) + 1] += value

    def retire(self) -> None:
        """Other cells take over: what nobody sets any more must not be summed.

        Requests that began with these still count here.
        """
        self.cells[self.in_flight] = 0
        self.cells[self.records_waiting] = 0
        self.cells[self.memory_held] = 0
        self.tell_waiting([0] * len(PRIORITIES))
        self.tell_board(False, dict.fromkeys(EngineState, 0))
        self.tell_queued({})

    def tell_held(self, in_flight: int, records_waiting: int, memory_held: int) -> None:
        """What this worker has in hand at the moment."""
        self.cells[self.in_flight] = in_flight
        self.cells[self.records_waiting] = records_waiting
        self.cells[self.memory_held] = memory_held

    def tell_waiting(self, counts: Iterable[int]) -> None:
        """How many wait for limits, by rank."""
        for at, count in zip(self._waiting, counts, strict=True):
            self.cells[at] = count

    def tell_board(self, is_heard: bool, engines: Mapping[EngineState, int]) -> None:
        """Whether this worker knows the loads of the others, and what it knows of engines."""
        self.cells[self._board] = is_heard
        for state, count in engines.items():
            self.cells[self._index["forebay_places", state.value]] = count

    def tell_queued(self, counts: Mapping[tuple[str, str], int]) -> None:
        """How many wait for places, by model and class."""
        for labels, at in self._queued.items():
            self.cells[at] = counts.get(labels, 0)

    def close(self) -> None:
        self.cells.release()
        self._map.close()
        self._file.close()


def _cells_start(header_bytes: int) -> int:
    return -(-(len(MAGIC) + 4 + header_bytes) // 8) * 8


class _File(msgspec.Struct):
    path: Path
    header: bytes
    values: list[float]
    alive: bool


def _read(path: Path) -> _File | None:
    """One worker's file; None when it is gone, or none of ours."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            alive = False
        except BlockingIOError:
            alive = True
    finally:
        os.close(fd)
    if data[: len(MAGIC)] != MAGIC or len(data) < len(MAGIC) + 4:
        return None
    (size,) = struct.unpack_from("<I", data, len(MAGIC))
    start = _cells_start(size)
    if start > len(data):
        return None
    values = memoryview(data)[start : start + (len(data) - start) // 8 * 8].cast("d")
    return _File(path, data[len(MAGIC) + 4 : len(MAGIC) + 4 + size], list(map(float, values)), alive)


@contextmanager
def _folder_lock(folder: Path, kind: int) -> Iterator[None]:
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, kind)
        yield
    finally:
        os.close(fd)


def _read_all(folder: Path) -> list[_File]:
    found = (_read(path) for path in sorted(folder.glob("*.cells")))
    return [entry for entry in found if entry is not None]


class _Fold(msgspec.Struct, frozen=True):
    """Files of one layout that become one.  It lies on disk from when the sum is ready until all is done."""

    sum: str
    into: str
    remove: tuple[str, ...]


def fold_dead_files(folder: Path) -> None:
    """Sums the files of dead workers that share a layout into one, so that restarts pile up nothing.

    Killed at any point, it leaves what counts everything once, as soon as somebody looks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _folder_lock(folder, fcntl.LOCK_EX):
        _finish_fold(folder)
        groups: dict[bytes, list[_File]] = {}
        for entry in _read_all(folder):
            if not entry.alive:
                groups.setdefault(entry.header, []).append(entry)
        for header, files in groups.items():
            if len(files) < 2:
                continue
            sums = [sum(column) for column in zip(*(entry.values for entry in files), strict=False)]
            _write_cells(folder / "fold.new", header, sums)
            names = [entry.path.name for entry in files]
            fold = _Fold(sum="fold.new", into=names[0], remove=tuple(names[1:]))
            (folder / "fold.making").write_bytes(msgspec.json.encode(fold))
            (folder / "fold.making").rename(folder / FOLD)  # from here on there is no way back
            _finish_fold(folder)


def _finish_fold(folder: Path) -> None:
    """Does what is left of a fold that began; each step may be done again."""
    try:
        fold = msgspec.json.decode((folder / FOLD).read_bytes(), type=_Fold)
    except FileNotFoundError:
        return
    with suppress(FileNotFoundError):  # done already
        (folder / fold.sum).rename(folder / fold.into)
    for name in fold.remove:
        (folder / name).unlink(missing_ok=True)
    (folder / FOLD).unlink()


def _write_cells(path: Path, header: bytes, values: list[float]) -> None:
    prefix = MAGIC + struct.pack("<I", len(header)) + header
    data = prefix.ljust(_cells_start(len(header)), b"\0") + struct.pack(f"={len(values)}d", *values)
    path.write_bytes(data)


class Collector:
    """All workers' cells as Prometheus families."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add_up(self) -> tuple[dict[str, Family], dict[str, dict[tuple[str, ...], list[float]]]]:
        """Families by their names, and the cells of each one's rows, summed over all workers."""
        if (self._folder / FOLD).exists():
            with _folder_lock(self._folder, fcntl.LOCK_EX):
                _finish_fold(self._folder)
        with _folder_lock(self._folder, fcntl.LOCK_SH):
            files = _read_all(self._folder)
        families: dict[str, Family] = {}
        sums: dict[str, dict[tuple[str, ...], list[float]]] = {}
        for entry in files:
            try:
                layout = msgspec.json.decode(entry.header, type=Layout)
            except msgspec.DecodeError:
                continue  # damaged, or of another version
            families |= {family.name: family for family in layout.families}
            for series in layout.series:
                family = families[series.family]
                if family.kind == "gauge" and not entry.alive:
                    continue
                values = entry.values[series.offset : series.offset + family.width]
                rows = sums.setdefault(series.family, {})
                known = rows.get(series.labels)
                rows[series.labels] = values if known is None else list(map(add, known, values))
        return families, sums

    def collect(self) -> Iterable[Metric]:
        families, sums = self.add_up()
        for name, family in families.items():
            yield _to_metric(family, sums.get(name, {}))


def _to_metric(family: Family, rows: dict[tuple[str, ...], list[float]]) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        bounds = (*map(str, family.buckets), "+Inf")
        for labels, values in rows.items():
            histogram.add_metric(labels, list(zip(bounds, accumulate(values), strict=False)), values[-1])
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, values in rows.items():
        metric.add_metric(labels, values[0])
    return metric


def render_metrics(folder: Path) -> bytes:
    """The text exposition, all workers summed.  Takes milliseconds: call it off the event loop."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(folder))
    return generate_latest(registry)
