"""Two control planes on machines of their own, over one PostgreSQL: each looks after its own segments."""

import time
from pathlib import Path

import pytest
from control_scene import LiveControl, make_event

from forebay.app.clock import SystemClock
from forebay.core.events import encode_event
from forebay.ledger.segment import SegmentWriter, list_segments
from postgres_server import PostgresServer

YAML = "data: {database: env:FOREBAY_TEST_DATABASE}\nledger: {keep_segments_s: 1, ingest_interval_s: 0.1}\n"
LIMIT_S = 60


@pytest.mark.usefixtures("postgres_server")
def test_neither_takes_the_others_files_for_lost_and_both_remove_their_own(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_server.create("empty")
    controls: list[LiveControl] = []
    try:
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            controls.append(LiveControl(tmp_path / name, YAML, {"FOREBAY_TEST_DATABASE": url}))
        for number, control in enumerate(controls):
            # The clocks' names for files never meet, and the second machine's worker is as any other.
            writer = SegmentWriter(control.data / "ledger", "w0", 1 << 20, SystemClock())
            writer.append(encode_event(make_event(number)))
            control.wait_for(lambda c=control: c.status()["ingest"]["records"] == 1, LIMIT_S)  # type: ignore[misc]
            writer.close()
        started = time.monotonic()
        for control in controls:
            control.wait_for(lambda c=control: not list_segments(c.data / "ledger"), LIMIT_S)  # type: ignore[misc]
        assert time.monotonic() - started < LIMIT_S
        for control in controls:
            found = control.status()["ingest"]
            assert (found["records"], found["problems"]) == (1, [])
            assert "the file is gone" not in control.log.read_text()
    finally:
        for control in controls:
            control.close()
        postgres_server.drop(url)
