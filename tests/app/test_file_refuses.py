"""A database file that is locked or can't be written: records wait in their segments, and come once."""

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_scene import Scene, make_event
from sqlalchemy import text

from forebay.core.events import encode_event
from forebay.gateway.tenancy import FOREBAY, NewKey
from forebay.ledger.ingest import Ingester
from forebay.ledger.segment import SegmentWriter
from forebay.store.database import Database
from forebay.store.errors import StoreUnavailable

NOBODY = 65534


def write(scene: Scene, *numbers: int) -> None:
    writer = SegmentWriter(scene.defaults.ledger_path, "w0", 1 << 20, scene.clock)
    for number in numbers:
        writer.append(encode_event(make_event(number)))
    writer.close()


def count(scene: Scene) -> list[int]:
    with scene.database.read() as connection:
        return [
            int(connection.execute(text(f"SELECT {what} FROM ledger_{table}")).scalar() or 0)
            for what, table in (("count(*)", "events"), ("sum(requests)", "usage_daily"))
        ]


def test_a_locked_file_holds_records_up_and_loses_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.refresh()
    write(scene, 1, 2)
    other = sqlite3.connect(scene.defaults.database_path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    impatient = Database.open(scene.defaults.database_path, busy_timeout_s=0.05)
    scene.plane._ingester = Ingester(impatient, scene.defaults.ledger_path, scene.clock)
    for _ in range(3):
        asyncio.run(scene.plane.ingest_now())
        assert "busy" in (scene.plane.ingest_state.error or "")
    scene.refresh()  # the snapshot is looked after all the same
    assert scene.plane.snapshot_error is None
    assert count(scene) == [0, 0]
    write(scene, 3)
    other.execute("ROLLBACK")
    other.close()
    asyncio.run(scene.plane.ingest_now())
    assert (scene.plane.ingest_state.error, scene.plane.ingest_state.records) == (None, 3)
    assert count(scene) == [3, 3]
    impatient.close()
    scene.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Others may enter it, unlike those that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_file_that_can_not_be_written_holds_records_up_and_loses_none(open_folder: Path) -> None:
    scene = Scene(open_folder)
    key, _ = scene.keys.create(NewKey(name="known"), FOREBAY)
    write(scene, 1, 2)
    scene.database.close()
    files = list(scene.defaults.data_path.glob("forebay.db*"))
    for path in (scene.defaults.data_path, scene.defaults.ledger_path, scene.defaults.run_path):
        path.chmod(0o777)
    for path in (*files, *scene.defaults.ledger_path.iterdir()):
        path.chmod(0o444)
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)  # what is read-only is not so to root
    try:
        if was != 0 or not os.access(scene.defaults.database_path, os.W_OK, effective_ids=True):
            scene.refresh()
            asyncio.run(scene.plane.ingest_now())
        with pytest.raises(StoreUnavailable, match="readonly"), scene.database.begin() as connection:
            connection.execute(text("DELETE FROM ledger_events"))
    finally:
        os.seteuid(was)
    assert "readonly" in (scene.plane.ingest_state.error or "")
    assert scene.plane.snapshot_state is not None
    known = [entry.id for entry in scene.plane.snapshot_state.snapshot.keys]
    assert key.entry.id in known, "who is known goes on being so"
    scene.database.close()
    for path in scene.defaults.data_path.glob("forebay.db*"):
        path.chmod(0o600)
    asyncio.run(scene.plane.ingest_now())
    assert (scene.plane.ingest_state.error, count(scene)) == (None, [2, 2])
    scene.close()
