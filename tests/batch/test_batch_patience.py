"""Nobody holds a place for files for ever, and a full disk holds up no end."""

import resource
import signal
from pathlib import Path

import pytest
from batch_scene import BatchScene
from hypothesis import given
from hypothesis import strategies as st
from test_batches import Place, make_line, submit, wait_end

from forebay.app.batch import Auditor
from forebay.app.clock import SystemClock
from forebay.batch.model import Owner
from forebay.batch.repo_batches import BatchRepo
from forebay.gateway.batch_door import PIECE_S, RATE_MIN_BYTES, find_patience
from forebay.testing.gateway import make_key, make_route
from forebay.testing.steps import Gate


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 10_000_000)), max_size=200))
def test_who_drips_is_cut_and_who_keeps_pace_is_not(pieces: list[tuple[float, int]]) -> None:
    age_s, passed = 0.0, 0
    for pause_s, size in pieces:
        patience_s = find_patience(age_s, passed)
        assert patience_s <= PIECE_S
        if pause_s > patience_s:
            return  # it is cut here
        age_s, passed = age_s + pause_s, passed + size
        assert age_s <= PIECE_S + passed / RATE_MIN_BYTES + 1e-6, "there is an end for any number of bytes"


def test_one_byte_in_59_s_is_cut_in_the_second_minute() -> None:
    assert find_patience(0.0, 0) == PIECE_S
    assert find_patience(59.0, 1) == pytest.approx(1.0, abs=0.01)
    assert find_patience(0.0, 200 * 2**20) == PIECE_S


LINES = 120


def limit_files(pid: int, size: int) -> None:
    """As a full disk: what would make a file longer than that is refused."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "in_progress"])
def test_a_full_disk_does_not_keep_the_process_from_ending(tmp_path: Path, is_cancelled: bool) -> None:
    place = Place()
    place.gate = Gate()
    with (
        place.upstream,
        BatchScene(
            tmp_path / "data", [make_route("m", place.upstream.url)], settings={"grace_s": 0.5}
        ) as scene,
        scene.client() as client,
    ):
        batch = submit(client, [make_line(n, custom_id=f"{n} {'x' * 500}") for n in range(LINES)])
        scene.until(lambda: place.upstream.requests)
        limit_files(scene.process.pid, 32 * 1024)  # a part of the lines fits, and the log
        if is_cancelled:
            repo = BatchRepo(scene.database, SystemClock(), Auditor(SystemClock()))
            owner = Owner(team=make_key().team, project=make_key().project)
            repo.cancel(owner, batch.id, "k1")
        else:
            place.gate.open()
        scene.until(lambda: "the disk refuses" in scene.log)
        scene.process.send_signal(signal.SIGTERM)
        assert scene.process.wait(20) == 0, scene.log
        place.gate.open()
        scene.start()
        done = wait_end(scene, client, batch.id)
        counts = done.request_counts
        assert done.status == ("cancelled" if is_cancelled else "completed")
        assert counts.completed + counts.failed == counts.total == LINES
