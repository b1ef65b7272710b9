"""Ingest: each record once, nothing lost in silence, files kept as long as anybody needs them."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_examples import World, event_strategy, fold, load_states, make_event
from sqlalchemy import text

from forebay.core.events import Finished, Tokens, encode_event
from forebay.ledger.folder import load_folder_id
from forebay.ledger.repo import load_events, load_segments
from forebay.ledger.segment import HEADER, list_segments
from forebay.ledger.tables import SegmentState
from forebay.store.errors import StoreBusy
from ledger_totals import load_usage_cells


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, busy_timeout_s=0.05)
    yield world
    world.close()


def test_every_field_of_an_event_comes_back_as_it_was_written(world: World) -> None:
    full = {name: f"value of {name}" for name in ("project", "team", "endpoint", "target", "pool", "tier")}
    full |= {
        "route_hash": "abc",
        "error": "e",
        "experiment": "x",
        "variant": "y",
        "region": "eu",
        "version": "v",
        "asked_model": "big",
        "mirror_of": "req_0",
        "hedged": "t2",
        "batch": "batch_1/7",
    }
    full |= {"tags": (("a", "b"), ("c", "d"))}
    full |= {"units": (("searches", 3), ("b'\"]{$.é", 0))}
    tokens = Tokens(**{name: count for count, name in enumerate(Tokens.__struct_fields__, start=1)})
    numbers = {"status": 499, "attempts": 2, "first_token_ns": 7, "duration_ns": 8, "overhead_ns": 9}
    numbers |= {"request_bytes": 10, "answer_bytes": 11, "worker": 12}
    numbers |= {"mirror_same": False, "mirrors_dropped": 13, "filler_ns": 14, "hedged_tokens": 15}
    numbers |= {"queued_ns": 16}
    event = make_event(
        1, stream=True, outcome="abandoned", usage_source="estimated", tokens=tokens, **full, **numbers
    )
    defaults = Finished(request_id="", at_ns=0, key="")
    kept = [n for n in Finished.__struct_fields__ if n not in ("prices", "queued_ns")]  # in no table
    unlike = [n for n in kept if getattr(event, n) == getattr(defaults, n)]
    assert unlike == [], "each field must differ from its default for this test to see it"
    world.write(msgspec.convert(msgspec.to_builtins(event), Finished), defaults)
    world.make_ingester().ingest_once()
    assert world.load_all() == [msgspec.convert(msgspec.to_builtins(event), Finished), defaults]


@settings(max_examples=12, deadline=None)
@given(
    portions=st.lists(st.lists(event_strategy, max_size=12), min_size=1, max_size=4),
    batch_records=st.integers(1, 7),
)
def test_any_portions_give_the_same_ledger_and_its_totals_are_the_fold(
    tmp_path_factory: pytest.TempPathFactory, portions: list[list[Finished]], batch_records: int
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    writer = world.make_writer(segment_max_bytes=600)
    for portion in portions:
        for event in portion:
            writer.append(encode_event(event))
        report = world.make_ingester(batch_records).ingest_once()
        assert (report.records, report.lag_bytes, report.problems) == (len(portion), 0, [])
    everything = [event for portion in portions for event in portion]
    assert world.load_all() == everything
    with world.database.read() as connection:
        assert load_usage_cells(connection) == fold(everything)
    world.close()


def test_ids_go_up_so_that_a_reader_can_keep_its_place(world: World) -> None:
    world.write(*(make_event(n) for n in range(10)))
    world.make_ingester(batch_records=3).ingest_once()
    with world.database.read() as connection:
        first = load_events(connection, 0, 4)
        rest = load_events(connection, first[-1][0], 100)
    assert [event.request_id for _, event in first + rest] == [f"req_{n}" for n in range(10)]


def test_a_call_stops_at_its_limit_and_says_so(world: World) -> None:
    world.write(*(make_event(n) for n in range(10)))
    ingester = world.make_ingester(batch_records=2, records_max=4)
    report = ingester.ingest_once()
    assert (report.records, report.is_complete) == (4, False)
    assert report.lag_bytes > 0
    while not ingester.ingest_once().is_complete:
        pass
    assert len(world.load_all()) == 10


def test_ingesters_in_turns_count_nothing_twice(world: World) -> None:
    writer = world.write(*(make_event(n) for n in range(5)), close=False)
    one, other = world.make_ingester(batch_records=2), world.make_ingester(batch_records=3)
    assert one.ingest_once().records == 5
    assert other.ingest_once().records == 0
    writer.append(encode_event(make_event(5)))
    assert other.ingest_once().records == 1
    assert one.ingest_once().records == 0
    assert [event.request_id for event in world.load_all()] == [f"req_{n}" for n in range(6)]


def test_a_locked_database_is_told_and_loses_nothing(world: World) -> None:
    world.write(*(make_event(n) for n in range(5)))
    ingester = world.make_ingester()
    is_file = world.database.dialect == "sqlite"  # which has one writer at a time
    lock = "SELECT 1" if is_file else "LOCK TABLE ledger_events IN ACCESS EXCLUSIVE MODE"
    with world.database.begin() as connection:
        connection.execute(text(lock))
        with pytest.raises(StoreBusy):
            ingester.ingest_once()
    assert ingester.ingest_once().records == 5


def test_a_file_is_sealed_when_its_writer_is_gone_and_not_before(world: World) -> None:
    writer = world.write(make_event(0), close=False)
    ingester = world.make_ingester()
    world.clock.now_ns += 10**15
    assert ingester.ingest_once().sealed == 0
    writer.append(encode_event(make_event(1)))
    writer.close()
    report = ingester.ingest_once()
    assert (report.records, report.sealed) == (1, 1)
    assert load_states(world) == [SegmentState.SEALED]


def test_a_sealed_file_is_removed_when_it_is_old_and_its_name_is_remembered(world: World) -> None:
    world.write(make_event(0))
    ingester = world.make_ingester()
    ingester.ingest_once()
    (path,) = list_segments(world.folder)
    content = path.read_bytes()

    world.clock.now_ns += 99 * 10**9
    assert ingester.ingest_once().deleted == 0
    world.clock.now_ns += 10**9
    assert ingester.ingest_once().deleted == 1
    assert list_segments(world.folder) == []

    path.write_bytes(content)  # out of a backup, say
    assert ingester.ingest_once().records == 0
    assert len(world.load_all()) == 1


def test_an_old_file_that_is_still_written_is_never_removed(world: World) -> None:
    writer = world.write(make_event(0), close=False)
    ingester = world.make_ingester()
    for _ in range(3):
        world.clock.now_ns += 10**15
        ingester.ingest_once()
    writer.append(encode_event(make_event(1)))
    ingester.ingest_once()
    assert len(world.load_all()) == 2


def test_a_removal_that_was_cut_short_is_noted_by_the_next_call(world: World) -> None:
    world.write(make_event(0))
    ingester = world.make_ingester()
    ingester.ingest_once()
    list_segments(world.folder)[0].unlink()  # as when killed between the file's removal and the row's change
    report = ingester.ingest_once()
    assert (report.missing, report.problems) == (0, [])
    assert load_states(world) == [SegmentState.DELETED]


def test_a_file_that_changed_after_it_was_sealed_is_kept_and_named(world: World) -> None:
    world.write(make_event(0))
    ingester = world.make_ingester()
    ingester.ingest_once()
    (path,) = list_segments(world.folder)
    with path.open("ab") as file:
        file.write(b"x")
    world.clock.now_ns += 10**15
    (problem,) = ingester.ingest_once().problems
    assert path.name in problem
    assert path.exists()


def test_a_file_that_goes_away_is_reported_once_and_taken_up_again_when_it_is_back(world: World) -> None:
    writer = world.write(make_event(0), close=False)
    ingester = world.make_ingester()
    ingester.ingest_once()
    writer.append(encode_event(make_event(1)))
    (path,) = list_segments(world.folder)
    away = path.with_suffix(".away")
    path.rename(away)
    first, second = ingester.ingest_once(), ingester.ingest_once()
    assert (first.missing, second.missing) == (1, 0)
    assert path.name in first.problems[0]
    away.rename(path)
    assert ingester.ingest_once().records == 1
    assert [event.request_id for event in world.load_all()] == ["req_0", "req_1"]


def test_a_lost_folder_is_a_problem_but_gives_up_no_file(world: World) -> None:
    world.write(make_event(0), close=False)
    ingester = world.make_ingester()
    ingester.ingest_once()
    world.folder.rename(world.folder.with_name("elsewhere"))
    report = ingester.ingest_once()
    assert (report.missing, len(report.problems)) == (0, 1)
    assert load_states(world) == [SegmentState.OPEN]


def test_a_file_of_a_later_version_is_left_alone_and_holds_no_other_up(world: World) -> None:
    world.folder.mkdir(exist_ok=True)
    later = world.folder / "0-later-1.seg"
    later.write_bytes(b"forebay-segment 2\nwhatever")
    world.write(make_event(0))
    ingester = world.make_ingester()
    for records in (1, 0):
        world.clock.now_ns += 10**15
        report = ingester.ingest_once()
        assert report.records == records
        assert later.name in report.problems[0]
    assert later.exists()


def test_a_file_without_a_header_is_removed_only_when_it_is_old(world: World) -> None:
    world.folder.mkdir(exist_ok=True)
    unborn = world.folder / "0-dead-1.seg"
    unborn.write_bytes(HEADER[:7])
    os.utime(unborn, ns=(world.clock.now_ns, world.clock.now_ns))
    ingester = world.make_ingester()
    ingester.ingest_once()
    assert unborn.exists()
    world.clock.now_ns += 101 * 10**9
    assert ingester.ingest_once().problems == []
    assert not unborn.exists()
    with world.database.read() as connection:
        assert load_segments(connection, load_folder_id(world.folder)) == {}


def test_a_file_without_a_record_is_sealed_like_any_other(world: World) -> None:
    world.folder.mkdir(exist_ok=True)
    (world.folder / "0-idle-1.seg").write_bytes(HEADER)
    report = world.make_ingester().ingest_once()
    assert (report.sealed, report.torn_bytes, report.lag_bytes, report.problems) == (1, 0, 0, [])


def test_other_things_in_the_folder_are_not_touched(world: World) -> None:
    world.write(make_event(0))
    (world.folder / "notes.txt").write_text("x")
    (world.folder / "folder.seg").mkdir()
    (world.folder / "link.seg").symlink_to("/etc/passwd")
    report = world.make_ingester().ingest_once()
    assert (report.records, report.problems) == (1, [])
