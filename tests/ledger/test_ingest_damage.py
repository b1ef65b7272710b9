"""Ingest of what is torn, damaged or not understood: it costs no other record, and is kept as it was."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from ledger_examples import World, fold, load_quarantine, make_event

from forebay.core.events import Tokens, encode_event
from forebay.ledger.batch import AT_NS_MAX, NUMBER_MAX, Reason
from forebay.ledger.segment import HEADER, list_segments, read_frames
from forebay.ledger.tables import quarantine
from ledger_totals import load_usage_cells


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, busy_timeout_s=0.05)
    yield world
    world.close()


def test_a_torn_tail_ends_a_dead_writers_file_and_is_counted(world: World) -> None:
    world.write(make_event(0), make_event(1))
    (path,) = list_segments(world.folder)
    os.truncate(path, path.stat().st_size - 3)
    report = world.make_ingester().ingest_once()
    assert (report.records, report.set_aside, report.sealed) == (1, 0, 1)
    assert report.torn_bytes > 0
    assert report.lag_bytes == 0


def test_a_torn_tail_in_a_live_file_is_waited_for(world: World) -> None:
    writer = world.write(make_event(0), make_event(1), close=False)
    (path,) = list_segments(world.folder)
    content = path.read_bytes()
    os.truncate(path, len(content) - 3)
    ingester = world.make_ingester()
    report = ingester.ingest_once()
    assert (report.records, report.sealed, report.torn_bytes) == (1, 0, 0)
    assert report.lag_bytes > 0
    with path.open("ab") as file:
        file.write(content[-3:])
    assert ingester.ingest_once().records == 1
    writer.close()


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("part", ["length", "length_past_the_end", "checksum", "payload"])
def test_damage_costs_one_record_which_is_kept_as_it_is(world: World, is_live: bool, part: str) -> None:
    writer = world.write(*(make_event(n) for n in range(5)), close=False)
    (path,) = list_segments(world.folder)
    ends = [end for _, end in read_frames(path)]
    start = ends[1]
    content = bytearray(path.read_bytes())
    if part == "length_past_the_end":
        content[start + 1] ^= 0x10
    else:
        content[start + {"length": 0, "checksum": 4, "payload": 12}[part]] ^= 1
    path.write_bytes(content)
    if is_live:
        # Enough behind it that even the wrong length lies within the file.
        for number in range(5, 50):
            writer.append(encode_event(make_event(number, error="e" * 100)))
    else:
        writer.close()
    report = world.make_ingester(batch_records=2).ingest_once()
    assert (report.set_aside, report.damaged_bytes) == (1, ends[2] - start)
    assert load_quarantine(world) == [(Reason.DAMAGED, ends[2] - start, bytes(content[start : ends[2]]))]
    expected = [n for n in range(50 if is_live else 5) if n != 2]
    assert [event.request_id for event in world.load_all()] == [f"req_{n}" for n in expected]


def test_damage_at_the_end_of_a_live_file_waits_for_what_follows(world: World) -> None:
    writer = world.write(make_event(0), make_event(1), close=False)
    (path,) = list_segments(world.folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    ingester = world.make_ingester()
    for _ in range(2):
        report = ingester.ingest_once()
        assert path.name in report.problems[0]
        assert report.lag_bytes > 0
    assert load_quarantine(world) == []
    writer.append(encode_event(make_event(2)))
    report = ingester.ingest_once()
    assert (report.records, report.set_aside, report.problems) == (1, 1, [])
    assert [event.request_id for event in world.load_all()] == ["req_0", "req_2"]


def test_garbage_up_to_the_end_of_a_dead_file_is_set_aside(world: World) -> None:
    world.write(make_event(0))
    (path,) = list_segments(world.folder)
    with path.open("ab") as file:
        file.write(bytes(100_000))
    report = world.make_ingester().ingest_once()
    assert (report.records, report.damaged_bytes, report.sealed, report.lag_bytes) == (1, 100_000, 1, 0)


def test_a_damaged_header_costs_no_record(world: World) -> None:
    world.write(make_event(0), make_event(1))
    (path,) = list_segments(world.folder)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    report = world.make_ingester().ingest_once()
    assert (report.records, report.damaged_bytes) == (2, len(HEADER))


# --- records that are whole, but no events ------------------------------------------------------------------


def test_a_record_of_a_later_version_waits_and_becomes_an_event_once_it_is_understood(world: World) -> None:
    writer = world.write(make_event(0), close=False)
    unknown = msgspec.msgpack.encode({"type": "judged", "score": 1})
    writer.append(unknown)
    writer.append(b"\xc1 not even MessagePack")
    writer.append(encode_event(make_event(1)))
    report = world.make_ingester().ingest_once()
    assert (report.records, report.set_aside) == (2, 2)
    assert [(reason, payload) for reason, _, payload in load_quarantine(world)] == [
        (Reason.UNKNOWN, unknown),
        (Reason.UNKNOWN, b"\xc1 not even MessagePack"),
    ]

    understood = encode_event(make_event(2))
    with world.database.begin() as connection:
        connection.execute(
            quarantine.update().where(quarantine.c.payload == unknown).values(payload=understood)
        )
    ingester = world.make_ingester(batch_records=1)
    assert [ingester.ingest_once().recovered, ingester.ingest_once().recovered] == [1, 0]
    assert len(load_quarantine(world)) == 1
    assert [event.request_id for event in world.load_all()] == ["req_0", "req_1", "req_2"]
    with world.database.read() as connection:
        assert load_usage_cells(connection) == fold([make_event(n) for n in range(3)])


@pytest.mark.parametrize(
    "fields",
    [
        {"at_ns": -1},
        {"at_ns": AT_NS_MAX + 1},
        {"status": 2**31},
        {"attempts": -1},
        {"worker": 2**64 - 1},
        {"duration_ns": NUMBER_MAX + 1},
        {"overhead_ns": -NUMBER_MAX - 1},
        {"first_token_ns": 2**63},
        {"request_bytes": -1},
        {"answer_bytes": NUMBER_MAX + 1},
        {"tokens": Tokens(output_reasoning=-1)},
        {"tokens": Tokens(input_cache_write=2**60)},
        {"units": (("searches", -1),)},
        {"units": (("searches", 2**60),)},
        {"units": (("sear\0ches", 1),)},
        {"tokens": Tokens(input_audio=2**64 - 1)},
        {"model": "a\0b"},
        {"request_id": "\0"},
    ],
)
def test_a_value_that_no_table_takes_stops_no_other_record(world: World, fields: dict[str, object]) -> None:
    odd = make_event(1, **fields)
    world.write(make_event(0), odd, make_event(2))
    report = world.make_ingester().ingest_once()
    assert (report.records, report.set_aside) == (2, 1)
    assert [(reason, payload) for reason, _, payload in load_quarantine(world)] == [
        (Reason.IMPLAUSIBLE, encode_event(odd))
    ]


def test_the_largest_values_go_in(world: World) -> None:
    largest = make_event(
        0,
        at_ns=AT_NS_MAX,
        status=2**31 - 1,
        duration_ns=NUMBER_MAX,
        overhead_ns=-NUMBER_MAX,
        tokens=Tokens(output=NUMBER_MAX),
    )
    world.write(*[largest] * 1000)
    world.make_ingester().ingest_once()
    assert world.load_all() == [largest] * 1000
    with world.database.read() as connection:
        assert load_usage_cells(connection) == fold([largest] * 1000)
