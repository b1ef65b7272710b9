"""The control plane keeps the ledger as short as it was told: in the audit, in the status, and by hand."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_scene import BASE_S, LiveControl, Scene, make_event
from sqlalchemy import text
from typer.testing import CliRunner

from forebay.app import retention
from forebay.app.clock import SystemClock
from forebay.app.config_ledger import LedgerConfig, RetentionConfig
from forebay.app.control_views import show_retention
from forebay.app.retention import Keeper
from forebay.cli.main import app
from forebay.core.events import encode_event
from forebay.ledger.segment import SegmentWriter

DAY_S = 86_400
YAML = "ledger: {retention: {records_days: 2, hourly_days: 4}}\n"


class DayClock(SystemClock):
    """Stands in a day of its own."""

    days = 0

    def wall_ns(self) -> int:
        return (BASE_S + self.days * DAY_S) * 10**9


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    scene.record(*(make_event(n, hour=n * 24) for n in range(5)))
    yield scene
    scene.close()


def make_keeper(scene: Scene, days: int, retention: RetentionConfig) -> Keeper:
    clock = DayClock()
    clock.days = days
    return Keeper(scene.database, clock, lambda: LedgerConfig(retention=retention))


def load_audit(scene: Scene) -> list[tuple[str, str, object]]:
    page = scene.repos.audit.load_page(limit=100)
    events = [event for event in reversed(page) if event.action == "ledger.remove"]
    return [(event.action, event.subject, event.before) for event in events]


def test_what_goes_is_in_the_audit_and_in_the_status(scene: Scene) -> None:
    keeper = make_keeper(scene, 4, RetentionConfig(records_days=2, hourly_days=3))
    asyncio.run(keeper.remove_now())
    assert keeper.state.error is None
    assert keeper.state.removed == 3
    audit = load_audit(scene)
    assert [(action, subject.split()[0], before) for action, subject, before in audit] == [
        *[("ledger.remove", "records", {"rows": 1})] * 2,
        ("ledger.remove", "hourly", {"rows": 1}),
    ]
    assert audit[0][1] == audit[2][1].replace("hourly", "records"), "the same day"
    shown = show_retention(keeper.state)
    assert [(each.kind, each.rows, each.gone_before_s % DAY_S) for each in shown.removed] == [
        ("records", 2, 0),
        ("hourly", 1, 0),
    ]
    assert shown.removed[0].last_s == BASE_S + 4 * DAY_S
    asyncio.run(keeper.remove_now())
    assert load_audit(scene) == audit, "nothing more is too old"


def test_what_fails_is_shown_and_made_good(scene: Scene) -> None:
    keeper = make_keeper(scene, 4, RetentionConfig(records_days=2))
    with scene.database.begin() as connection:
        connection.execute(text("ALTER TABLE ledger_removals RENAME TO elsewhere"))
    asyncio.run(keeper.remove_now())
    assert "ledger_removals" in (show_retention(keeper.state).error or "")
    with scene.database.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO ledger_removals"))
    asyncio.run(keeper.remove_now())
    assert (keeper.state.error, keeper.state.removed) == (None, 2)


def test_room_that_holds_nothing_goes_back_to_the_disk(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with scene.database.begin() as connection:
        connection.execute(text("CREATE TABLE t (x TEXT)"))
        connection.execute(text("INSERT INTO t VALUES (:x)"), [{"x": "a" * 1000}] * 3000)
    with scene.database.begin() as connection:
        connection.execute(text("DROP TABLE t"))
    spare = scene.database.count_spare_bytes()
    keeper = make_keeper(scene, 0, RetentionConfig())
    asyncio.run(keeper.remove_now())
    assert scene.database.count_spare_bytes() == spare, "so little is for what comes next"
    monkeypatch.setattr(retention, "SPARE_BYTES_MAX", spare - 1)
    asyncio.run(keeper.remove_now())
    assert scene.database.count_spare_bytes() == 0


def test_a_control_plane_removes_what_is_old_and_the_command_line_shows_it(tmp_path: Path) -> None:
    control = LiveControl(tmp_path, YAML)
    try:
        now_s = SystemClock().wall_ns() // 10**9
        writer = SegmentWriter(control.data / "ledger", "w0", 1 << 20, SystemClock())
        for number in range(6):
            hour = (now_s - BASE_S) // 3600 - 24 * number
            writer.append(encode_event(make_event(number, hour=hour)))
        writer.close()
        control.wait_for(lambda: control.status()["ingest"]["records"] == 6)

        def run(*args: str) -> str:
            done = CliRunner().invoke(app, ["ledger", *args, "--config", str(control.file)])
            assert done.exit_code == 0, done.output
            return done.stdout

        shown = json.loads(run("compact", "--dry-run", "--json"))
        assert {kind: each["too_old"] for kind, each in shown["kinds"].items()} == {
            "records": 3, "hourly": 1, "daily": 0
        }  # fmt: skip
        after = json.loads(run("compact", "--json"))
        assert {kind: (each["too_old"], each["removed"]) for kind, each in after["kinds"].items()} == {
            "records": (0, 3), "hourly": (0, 1), "daily": (0, 0)
        }  # fmt: skip
        assert "totals of hours" in run("show")
        # A restarted control plane looks at once.
        control.process.kill()
        control.process.wait()
        control.start()
        control.wait_for(lambda: len(control.status()["retention"]["removed"]) == 2)
        events = control.get("/admin/v1/audit").json()["data"]
        actors = {each["actor"]["id"] for each in events if each["action"] == "ledger.remove"}
        assert actors == {"command-line"}
    finally:
        control.close()
