"""Files and batches in SQL: each project's own, moved only as they may be, whoever else does so."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection
from tenancy_rig import SteppingClock

from forebay.batch.model import (
    BatchEnded,
    BatchNotThere,
    BatchRecord,
    Counts,
    FileElsewhere,
    FileInUse,
    FileNotThere,
    FileRecord,
    LineError,
    Owner,
    QuotaReached,
    Status,
)
from forebay.batch.policy import Happening
from forebay.batch.repo_batches import BatchRepo
from forebay.batch.repo_files import FileQuota, FileRepo, Page
from forebay.store.database import Database
from postgres_server import make_location, remove_location

MINE, THEIRS = Owner(team="a", project="b"), Owner(team="a", project="c")
QUOTA = FileQuota(files_max=3, bytes_max=1000)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.location = make_location(folder)
        self.database = Database.open(self.location)
        self.database.migrate()
        self.clock = SteppingClock()
        self.told: list[tuple[str, str]] = []
        self.files = FileRepo(self.database, self.clock, self.audit)
        self.batches = BatchRepo(self.database, self.clock, self.audit)

    def audit(
        self,
        connection: Connection,
        key: str,
        action: str,
        subject: str,
        before: Mapping[str, object] | None,
        after: Mapping[str, object] | None,
    ) -> None:
        self.told.append((action, subject))

    def add_file(self, id: str, size: int = 10, owner: Owner = MINE, **more: object) -> FileRecord:
        record = FileRecord(
            id=id, owner=owner, key="k", filename="ä\n", purpose="batch", size=size, sha256="0" * 64,
            store="here", created_ns=self.clock.wall_ns(), expires_ns=None,
        )  # fmt: skip
        record = replace(record, **more)  # type: ignore[arg-type]
        self.files.add(record, QUOTA)
        return record

    def add_batch(self, id: str, file: str = "f", owner: Owner = MINE, most: int = 100) -> BatchRecord:
        record = BatchRecord(
            id=id, owner=owner, key="k", store="here", endpoint="/v1/embeddings", input_file=file,
            window="24h", metadata={"ä": "b"}, status=Status.VALIDATING, created_ns=self.clock.wall_ns(),
            expires_ns=10**18, output_file=f"out-{id}", error_file=f"err-{id}",
        )  # fmt: skip
        self.batches.add(record, most)
        return record


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.database.close()
    remove_location(scene.location)


def test_a_file_comes_back_and_is_nobody_elses(scene: Scene) -> None:
    record = scene.add_file("f")
    assert scene.files.get(MINE, "f") == record
    assert scene.files.load_page(MINE, Page(limit=9)) == ([record], False)
    assert scene.files.load_page(THEIRS, Page(limit=9)) == ([], False)
    for ask in (scene.files.get, lambda owner, id: scene.files.delete(owner, id, "k")):
        with pytest.raises(FileNotThere):
            ask(THEIRS, "f")
    assert scene.files.delete(MINE, "f", "k") == record
    assert scene.told == [("file.create", "f"), ("file.delete", "f")]


def test_files_have_a_quota_for_each_project(scene: Scene) -> None:
    scene.add_file("f1", 500)
    with pytest.raises(QuotaReached, match="project_max_bytes"):
        scene.add_file("f2", 501)
    scene.add_file("f2", 500)
    scene.add_file("f3", 0)
    with pytest.raises(QuotaReached, match="project_files_max"):
        scene.add_file("f4", 0)
    scene.add_file("f5", 1000, THEIRS)
    assert scene.files.measure(MINE) == (3, 1000)


def test_of_many_uploads_at_once_no_more_fit_than_may(scene: Scene) -> None:
    refused: list[str] = []

    def add(number: int) -> None:
        try:
            scene.add_file(f"f{number}", 1)
        except QuotaReached:
            refused.append(f"f{number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    assert scene.files.measure(MINE) == (3, 3)


def test_pages_are_whole_whatever_shares_a_moment(scene: Scene) -> None:
    for id in ("f1", "f3", "f2"):
        scene.add_file(id, created_ns=7)
    pages: list[str] = []
    page = Page(limit=2)
    while True:
        found, has_more = scene.files.load_page(MINE, page)
        pages += [record.id for record in found]
        if not has_more:
            break
        page = Page(limit=2, after=pages[-1])
    assert pages == ["f3", "f2", "f1"]
    ascending, _ = scene.files.load_page(MINE, Page(limit=9, is_ascending=True, after="f1"))
    assert [record.id for record in ascending] == ["f2", "f3"]


def test_what_has_expired_is_not_there_and_goes_unless_a_batch_reads_it(scene: Scene) -> None:
    scene.add_file("f")
    scene.add_batch("b1")
    scene.add_file("old", expires_ns=scene.clock.wall_ns() + 50)
    with scene.database.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_files SET expires_ns = 1 WHERE id = 'f'")
    scene.clock.now_ns += 100
    with pytest.raises(FileNotThere):
        scene.files.get(MINE, "old")
    assert scene.files.remove_expired("elsewhere", 9) == ()
    assert scene.files.remove_expired("here", 9) == ("old",)
    assert scene.files.list_known("here") == {"f", "out-b1", "err-b1"}


def test_a_batch_comes_back_as_it_was_made(scene: Scene) -> None:
    scene.add_file("f")
    record = scene.add_batch("b1")
    assert scene.batches.get(MINE, "b1") == record
    assert scene.batches.list_unfinished("here") == [record]
    assert scene.batches.list_unfinished("elsewhere") == []
    assert scene.batches.load_page(THEIRS, Page(limit=9)) == ([], False)
    with pytest.raises(BatchNotThere):
        scene.batches.get(THEIRS, "b1")
    with pytest.raises(FileInUse):
        scene.files.delete(MINE, "f", "k")


def test_a_batch_needs_a_file_of_its_project_on_its_machine_and_room(scene: Scene) -> None:
    scene.add_file("f")
    scene.add_file("far", store="elsewhere")
    with pytest.raises(FileNotThere):
        scene.add_batch("b1", owner=THEIRS)
    with pytest.raises(FileElsewhere):
        scene.add_batch("b1", "far")
    scene.add_batch("b1", most=1)
    with pytest.raises(QuotaReached):
        scene.add_batch("b2", most=1)


def test_a_batch_moves_with_its_files_and_only_once(scene: Scene) -> None:
    scene.add_file("f")
    record = scene.add_batch("b1")
    error = LineError("code", "words", 3, "param")
    begun = scene.batches.move(record, Happening.VALID, counts=Counts(total=2), errors=(error,))
    assert (begun.status, begun.counts, begun.errors) == (Status.IN_PROGRESS, Counts(total=2), (error,))
    assert scene.batches.move(record, Happening.INVALID) == begun  # whoever comes late changes nothing
    ready = scene.batches.move(begun, Happening.ALL_DONE)
    output = replace(scene.files.get(MINE, "f"), id="out-b1", purpose="batch_output")
    done = scene.batches.move(ready, Happening.WRITTEN, counts=Counts(total=2, completed=2), files=(output,))
    assert (done.status, done.has_output, done.has_errors) == (Status.COMPLETED, True, False)
    assert list(done.times) == [Status.IN_PROGRESS, Status.FINALIZING, Status.COMPLETED]
    scene.batches.save_counts("b1", Counts(total=2, completed=1))  # of who was slow
    assert scene.batches.get(MINE, "b1") == done
    assert scene.files.get(MINE, "out-b1") == output
    with pytest.raises(BatchEnded):
        scene.batches.cancel(MINE, "b1", "k")
    scene.files.delete(MINE, "f", "k")
    assert scene.batches.remove_old("here", 1.0, 9) == 0
    scene.clock.now_ns = 2 * 10**18
    assert scene.batches.remove_old("here", 1.0, 9) == 1


def test_cancelling_twice_is_cancelling_once(scene: Scene) -> None:
    scene.add_file("f")
    record = scene.add_batch("b1")
    told = scene.batches.cancel(MINE, "b1", "k")
    assert told.status is Status.CANCELLING
    assert scene.batches.cancel(MINE, "b1", "k") == told
    assert scene.batches.move(record, Happening.VALID) == told
    assert [action for action, _ in scene.told] == ["file.create", "batch.create", "batch.cancel"]
