"""Segments: what was appended comes back, whatever cuts the writer short or damages the file."""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_rig import make_writer, read_all, write_file

from forebay.ledger.segment import (
    HEAD_BYTES,
    HEADER,
    PAYLOAD_MAX_BYTES,
    SegmentCorrupt,
    SegmentVersionUnknown,
    find_frame,
    is_final,
    list_segments,
    read_frames,
    remove_unborn,
)


def read_around_damage(path: Path) -> list[bytes]:
    """What a reader gets that goes on after each damaged place."""
    records: list[bytes] = []
    start: int | None = 0
    while start is not None:
        try:
            for payload, _ in read_frames(path, start):
                records.append(payload)
            return records
        except SegmentCorrupt as error:
            start = find_frame(path, error.offset + 1)
    return records


EXAMPLES = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, EXAMPLES)


def write_only_file(payloads: list[bytes]) -> Path:
    """A file in a folder that holds no other, for tests with many examples."""
    for path in list_segments(EXAMPLES):
        path.unlink()
    return write_file(EXAMPLES, payloads)


payload_lists = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=12)


@settings(deadline=None)
@given(payloads=payload_lists)
def test_what_was_appended_is_read_back(payloads: list[bytes]) -> None:
    path = write_only_file(payloads)
    assert read_all(path) == payloads


@settings(deadline=None)
@given(payloads=payload_lists)
def test_reading_from_any_frame_gives_the_rest(payloads: list[bytes]) -> None:
    path = write_only_file(payloads)
    offsets = [offset for _, offset in read_frames(path)]
    assert offsets[-1] == path.stat().st_size
    for count, offset in enumerate(offsets, start=1):
        assert [payload for payload, _ in read_frames(path, offset)] == payloads[count:]


@settings(max_examples=30, deadline=None)
@given(payloads=payload_lists)
def test_a_file_cut_anywhere_gives_a_prefix(payloads: list[bytes]) -> None:
    path = write_only_file(payloads)
    ends = [offset for _, offset in read_frames(path)]
    for cut in reversed(range(path.stat().st_size + 1)):
        os.truncate(path, cut)
        assert read_all(path) == payloads[: sum(end <= cut for end in ends)]


@settings(deadline=None)
@given(payloads=payload_lists, data=st.data())
def test_one_flipped_bit_costs_one_record_at_most(payloads: list[bytes], data: st.DataObject) -> None:
    path = write_only_file(payloads)
    content = bytearray(path.read_bytes())
    ends = [len(HEADER), *(offset for _, offset in read_frames(path))]
    bit = data.draw(st.integers(len(HEADER) * 8, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    hit = sum(end <= bit // 8 for end in ends) - 1

    expected = payloads[:hit] + payloads[hit + 1 :]
    tail: int | None = ends[hit]
    got = read_around_damage(path)
    if got != expected:
        # A length that now points past the end reads as a torn tail; whoever knows the file to be final
        # looks for frames behind it.
        assert got == payloads[:hit]
        tail = find_frame(path, ends[hit] + 1)
        rest = [] if tail is None else [payload for payload, _ in read_frames(path, tail)]
        assert got + rest == expected


def test_damage_is_named_by_file_and_offset(tmp_path: Path) -> None:
    path = write_file(tmp_path, [b"one", b"two", b"three"])
    content = bytearray(path.read_bytes())
    _, start = next(read_frames(path))
    content[start + HEAD_BYTES] ^= 1
    path.write_bytes(content)
    with pytest.raises(SegmentCorrupt) as caught:
        read_all(path)
    assert (caught.value.path, caught.value.offset) == (path, start)
    assert path.name in caught.value.message
    assert str(start) in caught.value.message


def test_the_end_of_a_file_that_is_all_zeros_is_damage_and_not_records(tmp_path: Path) -> None:
    # After a power failure a file may be longer than what reached the disk.
    path = write_file(tmp_path, [b"one"])
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(5_000_000))
    with pytest.raises(SegmentCorrupt) as caught:
        read_all(path)
    assert caught.value.offset == end
    assert find_frame(path, end) is None


def test_a_frame_behind_megabytes_of_garbage_is_found(tmp_path: Path) -> None:
    path = write_file(tmp_path, [b"one"])
    frame = path.read_bytes()[len(HEADER) :]
    with path.open("ab") as file:
        file.write(os.urandom(2_000_000) + frame)
    assert find_frame(path, len(HEADER) + 1) == path.stat().st_size - len(frame)


def test_a_file_of_a_later_version_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "a.seg"
    path.write_bytes(b"forebay-segment 2\n" + b"whatever")
    with pytest.raises(SegmentVersionUnknown):
        read_all(path)
    path.write_bytes(b"not a segment, but long enough")
    with pytest.raises(SegmentCorrupt):
        read_all(path)


@pytest.mark.parametrize("size", [0, PAYLOAD_MAX_BYTES + 1])
def test_a_record_of_impossible_size_is_refused_and_leaves_no_trace(tmp_path: Path, size: int) -> None:
    writer = make_writer(tmp_path)
    writer.append(b"before")
    with pytest.raises(ValueError, match=str(size)):
        writer.append(bytes(size))
    writer.append(b"x" * PAYLOAD_MAX_BYTES)
    writer.close()
    assert [len(p) for path in list_segments(tmp_path) for p in read_all(path)] == [6, PAYLOAD_MAX_BYTES]


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, segment_max_bytes=100)
    payloads = [f"record {number:04}".encode() for number in range(20)]
    for payload in payloads:
        writer.append(payload)
    paths = list_segments(tmp_path)
    assert all(path.stat().st_size <= 100 for path in paths)
    assert [payload for path in paths for payload in read_all(path)] == payloads
    assert [is_final(path) for path in paths] == [True] * (len(paths) - 1) + [False]
    writer.close()
    assert is_final(paths[-1])


def test_two_writers_of_one_name_and_moment_share_no_file(tmp_path: Path) -> None:
    first, second = make_writer(tmp_path), make_writer(tmp_path)
    first.append(b"first")
    second.append(b"second")
    assert first.path != second.path
    assert sorted(read_all(path)[0] for path in list_segments(tmp_path)) == [b"first", b"second"]


def test_a_forked_child_writes_to_a_file_of_its_own(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.append(b"parent")
    child = os.fork()
    if child == 0:
        writer.append(b"child")
        os._exit(0)
    os.waitpid(child, 0)
    writer.append(b"parent again")
    assert sorted(read_all(path) for path in list_segments(tmp_path)) == [
        [b"child"],
        [b"parent", b"parent again"],
    ]


def test_nothing_is_created_before_the_first_record(tmp_path: Path) -> None:
    writer = make_writer(tmp_path / "deep" / "ledger")
    assert list_segments(tmp_path / "deep" / "ledger") == []
    writer.append(b"x")
    assert (tmp_path / "deep" / "ledger").stat().st_mode & 0o777 == 0o700
    assert writer.path is not None
    assert writer.path.stat().st_mode & 0o777 == 0o600


def test_a_file_without_its_header_is_not_final_and_can_be_removed(tmp_path: Path) -> None:
    unborn = tmp_path / "a.seg"
    unborn.write_bytes(HEADER[:5])
    assert not is_final(unborn)
    assert read_all(unborn) == []
    written = write_file(tmp_path, [b"x"])
    assert not remove_unborn(written)
    assert remove_unborn(unborn)
    assert list_segments(tmp_path) == [written]


def test_a_writer_notices_when_its_newborn_file_is_taken_away(tmp_path: Path) -> None:
    remover = os.fork()
    if remover == 0:
        while True:
            for path in list_segments(tmp_path):
                with contextlib.suppress(FileNotFoundError):
                    remove_unborn(path)
    writer = make_writer(
        tmp_path, segment_max_bytes=len(HEADER) + HEAD_BYTES + 1
    )  # a new file for each record
    written: list[bytes] = []
    try:
        for number in range(1000):
            payload = b"%d" % number
            with contextlib.suppress(OSError):
                writer.append(payload)
                written.append(payload)
    finally:
        os.kill(remover, signal.SIGKILL)
        os.waitpid(remover, 0)
    found = [payload for path in list_segments(tmp_path) for payload in read_all(path)]
    assert sorted(found) == sorted(written)
    assert len(written) > 300


PRINT_HEAVY_IMPORTS = """
import sys
import forebay.ledger.segment as segment
print(sorted({"time"} & set(vars(segment)) | {"sqlalchemy", "pydantic"} & set(sys.modules)))
"""


def test_the_hot_path_loads_nothing_heavy_and_no_clock() -> None:
    command = [sys.executable, "-c", PRINT_HEAVY_IMPORTS]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_file_that_somebody_removed_is_left_for_a_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    writer = make_writer(folder)
    writer.append(b"lost with its file")
    writer.leave_if_removed()
    writer.append(b"still the same file")
    assert len(list_segments(folder)) == 1
    shutil.rmtree(folder)
    writer.leave_if_removed()
    writer.append(b"in a folder made again")
    assert [read_all(path) for path in list_segments(folder)] == [[b"in a folder made again"]]


def test_a_folder_whose_parent_is_gone_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "ledger"
    writer = make_writer(folder)
    writer.append(b"lost with its file")
    shutil.rmtree(folder.parent)
    writer.leave_if_removed()
    with pytest.raises(FileNotFoundError):
        writer.append(b"kept by the caller")
    folder.mkdir(parents=True)
    writer.append(b"kept by the caller")
    assert [read_all(path) for path in list_segments(folder)] == [[b"kept by the caller"]]
    writer.close()


def test_files_with_names_that_no_writer_gives_are_no_segments(tmp_path: Path) -> None:
    path = write_file(tmp_path, [b"a record"])
    for name in (b"\xff.seg", "é.seg".encode(), b"a\nb.seg", b"x" * 200 + b".seg", b".seg", b"note.txt"):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).touch()
    assert list_segments(tmp_path) == [path]
