"""`kill -9`, at any moment, of the writer and of two ingesters: what was acknowledged is there, once."""

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_examples import START_NS, World, fold

from forebay.ledger.ingest import Ingester, IngestLimits
from forebay.ledger.segment import HEADER, list_segments
from forebay.store.database import Database
from forebay.store.errors import StoreBusy, StoreUnavailable
from ledger_totals import load_usage_cells

KILLS = 20

WRITER = """
import os, sys, time
from pathlib import Path
from forebay.core.events import Finished, Tokens, encode_event
from forebay.ledger.segment import SegmentWriter
class Clock:
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
writer = SegmentWriter(Path(sys.argv[1]), "0", 4_000, Clock())
number, start_ns = int(sys.argv[2]), int(sys.argv[3])
while True:
    event = Finished(request_id=str(number), at_ns=start_ns + number * 10**10, key=f"key_{number % 3}",
                     model="m", tokens=Tokens(output=number), duration_ns=number)
    writer.append(encode_event(event))
    os.write(1, b"%d\\n" % number)
    time.sleep(0.0003)  # so that the ingesters are at the end of the file, where it is hardest
    number += 1
"""


class WallClock:
    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class Children:
    """Processes that do not outlive the test."""

    def __init__(self) -> None:
        self.ingesters: list[int] = []

    def start_ingester(self, folder: Path) -> None:
        """A fork, because loading SQLAlchemy anew for each would take most of the test's time."""
        child = os.fork()
        if child:
            self.ingesters.append(child)
            return
        try:
            ingest_forever(folder)
        finally:
            os._exit(1)

    def kill_ingester(self, which: int) -> None:
        child = self.ingesters.pop(which)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the ingester had ended by itself"


def ingest_forever(folder: Path) -> None:
    # Kept for no time at all, so that files are removed under the feet of the other ingester as well.
    limits = IngestLimits(batch_records=7, keep_segments_s=0)
    ingester = Ingester(Database.open(folder / "forebay.db"), folder / "ledger", WallClock(), limits)
    while True:
        with contextlib.suppress(StoreBusy):
            report = ingester.ingest_once()
            if report.problems:
                os.write(2, f"{report.problems}\n".encode())
                return


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    for child in children.ingesters:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def write_until_killed(
    folder: Path, start: int, acks: int, kills: dict[int, list[int]], children: Children
) -> int:
    """Kill ingesters at some acknowledgements, the writer after the last; returns its last number."""
    command = [sys.executable, "-c", WRITER, str(folder / "ledger"), str(start), str(START_NS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        fcntl.fcntl(writer.stdout, fcntl.F_SETPIPE_SZ, 4096)  # the writer never runs far ahead of us
        lines = []
        for count in range(acks):
            lines.append(writer.stdout.readline())
            for which in kills.get(count, ()):
                children.kill_ingester(which)
                children.start_ingester(folder)
        writer.kill()
        lines += writer.stdout.readlines()
    return int([line for line in lines if line.endswith(b"\n")][-1])


def test_whoever_is_killed_whenever_each_acknowledged_record_is_counted_once(
    tmp_path: Path, children: Children
) -> None:
    draw = random.Random(20240607)
    world = World(tmp_path)
    world.close()  # forks must not share its connections
    for _ in range(2):
        children.start_ingester(tmp_path)
    acknowledged: set[int] = set()
    unacknowledged: set[int] = set()
    start = 0
    for _ in range(KILLS):
        acks = draw.randint(1, 400)
        kills = {draw.randrange(acks): [draw.randrange(2)], draw.randrange(acks): [0, 0]}
        last = write_until_killed(tmp_path, start, acks, kills, children)
        acknowledged |= set(range(start, last + 1))
        unacknowledged.add(last + 1)  # written perhaps, and then killed before saying so
        start = last + 2
    while children.ingesters:
        children.kill_ingester(0)

    world = World(tmp_path)
    ingester = Ingester(world.database, world.folder, WallClock(), IngestLimits(keep_segments_s=0))
    before = len(world.load_all())
    ingester.ingest_once()  # seals what is left
    report = ingester.ingest_once()
    assert (report.records, report.lag_bytes, report.problems) == (0, 0, [])
    # A writer killed between making a file and heading it leaves one that may count as in the making.
    assert [path for path in list_segments(world.folder) if path.stat().st_size >= len(HEADER)] == []
    events = world.load_all()
    assert before > len(events) * 0.2, "the ingesters did too little to be killed at it"
    counts = Counter(int(event.request_id) for event in events)
    assert set(counts.values()) == {1}
    assert acknowledged <= set(counts) <= acknowledged | unacknowledged
    with world.database.read() as connection:
        assert load_usage_cells(connection) == fold(events)
    world.close()


def test_a_full_disk_under_the_database_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    world = World(small_disk)
    world.folder = tmp_path / "ledger"
    writer = world.make_writer(segment_max_bytes=100_000)
    for number in range(2000):
        writer.append(f"record {number} that no version knows".encode() * 8)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(4096))
    ingester = world.make_ingester(batch_records=300)
    with pytest.raises(StoreUnavailable, match="full"):
        ingester.ingest_once()
    ballast.unlink()
    world.close()

    roomy = World(tmp_path)
    assert roomy.make_ingester().ingest_once().set_aside == 2000
    roomy.close()
