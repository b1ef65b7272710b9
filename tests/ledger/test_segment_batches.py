"""Batches of records: all of each is written, also on a disk that takes only a part; none is doubled."""

import resource
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_rig import make_writer, read_all

from forebay.ledger.segment import (
    BATCH_MAX_BYTES,
    HEAD_BYTES,
    HEADER,
    PAYLOAD_MAX_BYTES,
    SegmentWriter,
    list_segments,
    read_frames,
)


def append_batch(writer: SegmentWriter, batch: list[bytes], written: list[bytes]) -> bool:
    """Writes a batch as far as it goes and notes what was taken; whether that was all."""
    at = 0
    try:
        while at < len(batch):
            count = writer.append_many(batch, at)
            assert count > 0
            written += batch[at : at + count]
            at += count
    except OSError:
        return False
    return True


@settings(deadline=None)
@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=20), max_size=10),
    st.sampled_from([len(HEADER) + HEAD_BYTES + 1, 300, 5000]),
)
def test_batches_hold_what_was_given_in_its_order(batches: list[list[bytes]], segment_max_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = make_writer(Path(folder), segment_max_bytes)
        written: list[bytes] = []
        for batch in batches:
            assert append_batch(writer, batch, written)
        writer.close()
        paths = list_segments(Path(folder))
        assert [payload for path in paths for payload in read_all(path)] == written == list(chain(*batches))
        for path in paths:
            largest = max(map(len, read_all(path)))
            assert path.stat().st_size <= max(segment_max_bytes, len(HEADER) + HEAD_BYTES + largest)


def test_a_batch_goes_out_in_writes_of_a_bounded_size(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, 1 << 24)
    batch = [bytes([1]) * 1000] * 1000
    at = 0
    while at < len(batch):
        count = writer.append_many(batch, at)
        assert 0 < count * (1000 + HEAD_BYTES) <= BATCH_MAX_BYTES
        at += count
    assert writer.append_many([b"x" * PAYLOAD_MAX_BYTES, b"y"]) == 1, "a large one goes alone"


# --- a disk that takes no more ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_on_a_full_disk_appends_fail_whole_and_go_on_once_there_is_room(
    small_disk: Path, batch_size: int
) -> None:
    writer = make_writer(small_disk)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(940 * 1024))
    written: list[bytes] = []
    refused = 0
    for number in range(0, 400, batch_size):
        if refused == (20 if batch_size == 1 else 1) and ballast.exists():
            ballast.unlink()
        batch = [f"{number + index:08}".encode() * 41 for index in range(batch_size)]
        refused += not append_batch(writer, batch, written)
    assert not ballast.exists(), "the disk was never full"
    assert written[-1] == batch[-1], "the writer never went on"
    paths = list_segments(small_disk)
    assert [payload for path in paths for payload in read_all(path)] == written
    for path in paths:
        assert [0, *(offset for _, offset in read_frames(path))][-1] == path.stat().st_size


LIMITED_WRITER = """
import os, resource, sys
from pathlib import Path
from forebay.ledger.segment import SegmentWriter
class Clock:
    def wall_ns(self): return 1
    def monotonic_ns(self): return 0
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
writer = SegmentWriter(Path(sys.argv[1]), "0", 1 << 20, Clock())
batch_size, breaks = int(sys.argv[2]), sys.argv[3] == "broken"
if breaks:
    def fail(*arguments): raise OSError(5, "EIO")
    os.ftruncate = fail
for first in range(0, 200, batch_size):
    batch = [b"%08d" % number * 30 for number in range(first, first + batch_size)]
    at = 0
    while at < batch_size:
        try:
            count = writer.append_many(batch, at)
            for number in range(first + at, first + at + count):
                print(number, flush=True)
            at += count
        except OSError as error:
            print("refused", error.errno, flush=True)
"""


@pytest.mark.parametrize("truncation", ["works", "broken"])
@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_a_limit_on_file_size_moves_the_writer_to_the_next_file(
    tmp_path: Path, batch_size: int, truncation: str
) -> None:
    """No frame that was whole, and so may have been read, is ever taken back and written again elsewhere."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    run = subprocess.run(
        [sys.executable, "-c", LIMITED_WRITER, tmp_path, str(batch_size), truncation],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = run.stdout.splitlines()
    assert [int(line) for line in lines if line.isdigit()] == list(range(200))
    assert batch_size > 1 or "refused 27" in lines  # EFBIG
    assert len(list_segments(tmp_path)) > 3
    records = [payload for path in list_segments(tmp_path) for payload in read_all(path)]
    assert [int(payload[:8]) for payload in records] == list(range(200))
