"""Several machines, each with a folder of its own, over one database: each looks after its files alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_examples import World, load_states, make_event
from sqlalchemy import select, update

from forebay.core.events import encode_event
from forebay.ledger.folder import load_folder_id
from forebay.ledger.ingest import Ingester, IngestLimits
from forebay.ledger.segment import SegmentWriter, list_segments
from forebay.ledger.tables import SegmentState, segments


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def make_machine(world: World, name: str) -> tuple[Ingester, SegmentWriter]:
    folder = world.folder.parent / name / "ledger"
    writer = SegmentWriter(folder, f"w{name}", 1 << 20, world.clock)
    ingester = Ingester(world.database, folder, world.clock, IngestLimits(keep_segments_s=100))
    return ingester, writer


def load_folders(world: World) -> list[str]:
    with world.database.read() as connection:
        return list(connection.execute(select(segments.c.folder).order_by(segments.c.id)).scalars())


def test_no_machine_takes_the_files_of_another_for_its_own_or_for_lost(world: World) -> None:
    machines = {name: make_machine(world, name) for name in ("one", "other")}
    for number, (ingester, writer) in enumerate(machines.values()):
        writer.append(encode_event(make_event(number)))
        ingester.ingest_once()
    for ingester, _ in 2 * list(machines.values()):
        report = ingester.ingest_once()
        assert (report.problems, report.missing) == ([], 0)
    assert load_states(world) == [SegmentState.OPEN] * 2
    for _, writer in machines.values():
        writer.close()
    for age_s, state in ((0, SegmentState.SEALED), (100, SegmentState.DELETED)):
        world.clock.now_ns += age_s * 10**9
        reports = [ingester.ingest_once() for ingester, _ in 2 * list(machines.values())]
        assert [report.problems for report in reports] == [[]] * 4
        assert load_states(world) == [state] * 2
        assert sum(report.sealed + report.deleted for report in reports) == 2
    for name in machines:
        assert list_segments(world.folder.parent / name / "ledger") == []
    assert len(world.load_all()) == 2


def test_the_loss_of_ones_own_file_is_still_told_by_a_new_process(world: World) -> None:
    ingester, writer = make_machine(world, "one")
    other, _ = make_machine(world, "other")
    writer.append(encode_event(make_event(0)))
    ingester.ingest_once()
    assert writer.path is not None
    writer.path.unlink()
    assert other.ingest_once().missing == 0
    again, _ = make_machine(world, "one")
    assert again.ingest_once().missing == 1


def test_rows_of_nobody_go_to_whoever_has_the_file(world: World) -> None:
    machines = {name: make_machine(world, name) for name in ("one", "other")}
    for number, (ingester, writer) in enumerate(machines.values()):
        writer.append(encode_event(make_event(number)))
        ingester.ingest_once()
    with world.database.begin() as connection:
        connection.execute(update(segments).values(folder=""))
    for ingester, _ in machines.values():
        assert ingester.ingest_once().problems == []
    names = [load_folder_id(world.folder.parent / name / "ledger") for name in machines]
    assert load_folders(world) == names
    assert len(set(names)) == 2
    assert len(world.load_all()) == 2


def test_a_file_that_was_taken_for_deleted_is_removed_and_not_taken_in_again(world: World) -> None:
    ingester, writer = make_machine(world, "one")
    writer.append(encode_event(make_event(0)))
    writer.close()
    ingester.ingest_once()
    with world.database.begin() as connection:
        connection.execute(update(segments).values(state=SegmentState.DELETED.value, folder=""))
    ingester.ingest_once()
    assert load_states(world) == [SegmentState.SEALED]
    world.clock.now_ns += 100 * 10**9
    report = ingester.ingest_once()
    assert (report.deleted, report.problems) == (1, [])
    assert list_segments(world.folder.parent / "one" / "ledger") == []
    assert (load_states(world), len(world.load_all())) == ([SegmentState.DELETED], 1)


def test_a_folder_that_moves_takes_its_files_along(world: World) -> None:
    ingester, writer = make_machine(world, "one")
    writer.append(encode_event(make_event(0)))
    ingester.ingest_once()
    writer.append(encode_event(make_event(1)))
    writer.close()
    moved = world.folder.parent / "moved"
    (world.folder.parent / "one" / "ledger").rename(moved)
    report = Ingester(world.database, moved, world.clock).ingest_once()
    assert (report.records, report.sealed, report.problems) == (1, 1, [])
    assert ingester.ingest_once().missing == 0
    assert [event.request_id for event in world.load_all()] == ["req_0", "req_1"]


def test_a_name_that_a_disk_lost_is_given_anew(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    first = load_folder_id(folder)
    assert load_folder_id(folder) == first
    (tmp_path / "ledger.id").write_bytes(b"\0" * 33)
    second = load_folder_id(folder)
    assert second != first
    assert load_folder_id(folder) == second
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.id"]
