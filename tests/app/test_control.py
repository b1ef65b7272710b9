"""The control plane as a process: first start, edits of the configuration, restarts, the end."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from control_scene import AUTH, ENGINE_URLS, LiveControl, Scene, make_event

from forebay.app import control_plane
from forebay.app.clock import SystemClock
from forebay.app.config import Config, load_config
from forebay.app.config_edit import ConfigEdit, load_edit
from forebay.app.control_setup import ensure_local_key, load_admin_token
from forebay.app.control_watch import list_restart_settings, load_saved_config, save_config
from forebay.core.events import encode_event
from forebay.core.keys import compute_key_digest
from forebay.core.routes import decode_snapshot
from forebay.gateway.tenancy import FOREBAY, NewKey
from forebay.ledger.segment import SegmentWriter

ONE = "models:\n  one: {endpoints: [chat/completions], targets: [{engine: smollm2-135m}]}\n"
TWO = ONE + "  two: {endpoints: [embeddings], targets: [{engine: minilm-l6-v2}]}\n"

Start = Callable[..., LiveControl]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[LiveControl] = []

    def start_control(yaml: str | None = None) -> LiveControl:
        started.append(LiveControl(tmp_path, yaml))
        return started[-1]

    yield start_control
    for control in started:
        control.close()


# --- the first start ----------------------------------------------------------------------------------------


def test_the_first_start_makes_token_key_and_snapshot_for_the_owner_alone(start: Start) -> None:
    control = start()
    key = (control.data / "local.key").read_text().strip()
    assert control.token.startswith("fba-")
    assert key.startswith("fb-")
    snapshot = decode_snapshot((control.data / "run" / "snapshot.msgpack").read_bytes())
    assert [entry.digest for entry in snapshot.keys] == [compute_key_digest(key)]
    assert [route.model for route in snapshot.table.routes] == sorted(ENGINE_URLS)
    for name in ("local.key", "admin.token", "forebay.db", "run/snapshot.msgpack"):
        assert (control.data / name).stat().st_mode & 0o077 == 0, name
    log = control.log.read_text()
    assert key not in log
    assert control.token not in log

    before = (key, control.token, snapshot)
    control.process.kill()
    control.process.wait()
    control.start()
    after = (
        (control.data / "local.key").read_text().strip(),
        control.token,
        decode_snapshot((control.data / "run" / "snapshot.msgpack").read_bytes()),
    )
    assert after == before, "a restart changes none of them"


def test_a_local_key_is_made_only_where_the_database_knows_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    path = tmp_path / "local.key"
    ensure_local_key(path, scene.keys)
    first = path.read_text()
    ensure_local_key(path, scene.keys)
    assert path.read_text() == first
    scene.keys.revoke(scene.keys.list_live()[0].id, FOREBAY)
    ensure_local_key(path, scene.keys)
    assert path.read_text() == first, "what was revoked stays revoked"
    assert scene.keys.list_live() == ()
    path.write_text("fb-of-another-database\n")
    ensure_local_key(path, scene.keys)
    assert [key.digest for key in scene.keys.list_live()] == [compute_key_digest(path.read_text().strip())]
    scene.close()


def test_an_empty_token_file_is_no_token(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    path.write_text("\n")
    token = load_admin_token(path)
    assert len(token) > 40
    assert load_admin_token(path) == token


# --- edits --------------------------------------------------------------------------------------------------


def test_an_edit_that_empties_the_file_changes_nothing(start: Start) -> None:
    """It is what a full disk leaves, or an editor that cuts the file before it writes."""
    control = start(ONE)
    control.file.write_text("\n")
    control.wait_for(lambda: not control.status()["config"]["valid"])
    assert "is empty" in control.status()["config"]["problems"][0]
    assert control.model_names() == ["one"]
    control.file.write_text(ONE)
    control.wait_for(lambda: control.status()["config"]["valid"])


def test_a_file_that_comes_later_is_an_edit_like_any_other(start: Start) -> None:
    control = start()
    run = control.data / "run"
    assert control.model_names() == sorted(ENGINE_URLS)
    assert control.status()["config"]["file"] is None
    control.file.write_text("\n")  # an editor that makes it first asks for what is in force
    control.file.write_text("models: {one: \n")
    control.wait_for(lambda: not control.status()["config"]["valid"])
    assert control.model_names() == sorted(ENGINE_URLS)
    control.file.write_text(ONE)
    control.wait_for(lambda: control.model_names() == ["one"])
    control.wait_for(lambda: load_edit(run) == ConfigEdit(restart_settings=("engines.minilm-l6-v2",)))
    assert control.status()["config"]["file"] == str(control.file)


@pytest.mark.parametrize("loss", ["removed", "emptied"])
def test_a_file_that_came_and_went_leaves_what_it_said_in_force(start: Start, loss: str) -> None:
    control = start()
    control.file.write_text(ONE)
    control.wait_for(lambda: control.model_names() == ["one"])
    for is_restart in (False, True):
        if loss == "removed":
            control.file.unlink(missing_ok=True)
        else:
            control.file.write_text("\n")
        if is_restart:
            control.process.kill()
            control.process.wait()
            control.start()
        control.wait_for(lambda: not control.status()["config"]["valid"])
        (problem,) = control.status()["config"]["problems"]
        assert ("can't be read" if loss == "removed" else "is empty") in problem
        assert "put its content back" in problem
        assert control.model_names() == ["one"]


def test_a_file_that_came_while_the_control_plane_was_away_is_told(start: Start) -> None:
    control = start()
    control.process.kill()
    control.process.wait()
    control.file.write_text(ONE)
    control.start()
    control.wait_for(lambda: control.model_names() == ["one"])
    control.wait_for(lambda: load_edit(control.data / "run") is not None)


def test_a_secret_that_is_new_to_the_environment_needs_a_restart_or_a_file(start: Start) -> None:
    control = start(ONE)
    remote = (
        "  far: {{endpoints: [embeddings], targets: [{{url: 'http://127.0.0.1:9/v1', api_key: '{}'}}]}}\n"
    )
    control.file.write_text(ONE + remote.format("env:NOT_SET_AT_THE_START"))
    control.wait_for(lambda: not control.status()["config"]["valid"])
    (problem,) = control.status()["config"]["problems"]
    assert "environment of `forebay up`: export it and start that again" in problem
    assert "or use file:PATH" in problem
    (control.folder / "far.key").write_text("sk-canary\n")
    control.file.write_text(ONE + remote.format("file:far.key"))
    control.wait_for(lambda: control.model_names() == ["far", "one"])


def test_a_pipe_in_the_place_of_the_file_holds_nothing_up(start: Start) -> None:
    control = start(ONE)
    control.file.unlink()
    os.mkfifo(control.file)
    control.wait_for(lambda: not control.status()["config"]["valid"])
    control.file.unlink()
    control.file.write_text(TWO)
    control.wait_for(lambda: control.model_names() == ["one", "two"])


def test_a_snapshot_that_was_damaged_or_removed_is_written_again(start: Start) -> None:
    control = start(ONE)
    path = control.data / "run" / "snapshot.msgpack"
    good = path.read_bytes()
    path.write_bytes(b"no snapshot")
    control.wait_for(lambda: path.read_bytes() == good)
    path.unlink()
    control.wait_for(lambda: path.exists() and path.read_bytes() == good)


def test_a_valid_edit_is_swapped_in_and_an_invalid_one_is_shown(start: Start) -> None:
    control = start(ONE)
    assert control.model_names() == ["one"]
    control.file.write_text(TWO)
    control.wait_for(lambda: control.model_names() == ["one", "two"])
    good = (control.data / "run" / "snapshot.msgpack").read_bytes()

    control.file.write_text(TWO + "gateway: {port: many}\nnonsense: 1\n")
    control.wait_for(lambda: not control.status()["config"]["valid"])
    shown = control.status()["config"]
    assert len(shown["problems"]) == 2
    assert any("gateway.port" in problem and "forebay.yaml:4" in problem for problem in shown["problems"])
    assert "gateway.port" in control.log.read_text()
    assert control.model_names() == ["one", "two"]
    assert (control.data / "run" / "snapshot.msgpack").read_bytes() == good

    control.process.kill()
    control.process.wait()
    control.start()
    assert not control.status()["config"]["valid"], "the edit is as invalid as before"
    assert control.model_names() == ["one", "two"], "what was in force is in force again"

    control.file.unlink()
    control.wait_for(lambda: "can't be read" in "".join(control.status()["config"]["problems"]))
    control.file.write_text(ONE)
    control.wait_for(lambda: control.model_names() == ["one"])
    assert control.status()["config"]["problems"] == []


def test_what_needs_a_restart_is_named(start: Start) -> None:
    control = start(ONE)
    assert control.status()["config"]["restart_needed"] == []
    control.file.write_text(
        TWO
        + "  new: {endpoints: [chat/completions], targets: [{engine: big}, {engine: smollm2-135m}]}\n"
        + "gateway: {port: 9090, workers: 7}\n"
        + "engines: {big: {kind: llamacpp, context_tokens: 512}}\n"
    )
    control.wait_for(lambda: bool(control.status()["config"]["restart_needed"]))
    shown = control.status()["config"]
    assert shown["valid"]
    assert shown["restart_needed"] == [
        "gateway.port",
        "gateway.workers",
        "engines.big",
        "engines.minilm-l6-v2",
    ]
    assert shown["engines_missing"] == ["big"]
    control.wait_for(lambda: control.model_names() == ["new", "one", "two"])
    targets = control.get("/admin/v1/models").json()["data"][0]["targets"]
    assert [target["id"] for target in targets] == ["new@smollm2-135m"]
    for name in ("gateway.port", "engines.big"):
        assert f"the edit of {name} takes effect after a restart" in control.log.read_text()


def test_the_settings_at_the_start_of_the_supervisor_count(start: Start, tmp_path: Path) -> None:
    """The control plane is restarted after the edit, and still knows what the others run with."""
    control = start(ONE)
    started = tmp_path / "started.json"
    save_config(started, load_config(control.file))
    control.process.kill()
    control.process.wait()
    control.file.write_text(ONE + "gateway: {workers: 3}\ndata: {dir: elsewhere}\n")
    control.start("--started-json", str(started))
    assert control.status()["config"]["restart_needed"] == ["data.dir", "gateway.workers"]
    assert not (tmp_path / "elsewhere").exists()


def test_an_invalid_file_at_the_very_first_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ended with 2") as caught:
        LiveControl(tmp_path, "gateway: {port: many}\n")
    assert "gateway.port" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "changes", "named"),
    [
        ("gateway", {"port": 1}, ["gateway.port"]),
        ("gateway", {"host": "::1", "connections_max": 5}, ["gateway.host", "gateway.connections_max"]),
        ("gateway", {"drain": {"deadline_s": 1.0}}, ["gateway.drain"]),
        ("gateway", {"attempts_max": 1, "body_max_bytes": 4096}, []),
        ("ledger", {"ingest_interval_s": 0.1}, []),
        ("ledger", {"keep_segments_s": 5.0}, ["ledger.keep_segments_s"]),
        ("control", {"port": 1}, ["control.port"]),
        ("data", {"dir": "/elsewhere"}, ["data.dir"]),
        (
            "engines",
            {"minilm-l6-v2": {"kind": "minilm", "threads": 2}},
            ["engines.minilm-l6-v2", "engines.smollm2-135m"],
        ),
    ],
)
def test_each_setting_takes_effect_when_it_is_said_to(
    section: str, changes: dict[str, object], named: list[str]
) -> None:
    assert list(list_restart_settings(Config.embedded(), Config.model_validate({section: changes}))) == named


def test_a_kept_configuration_is_the_same_again(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(TWO + "data: {dir: here}\ngateway: {drain: {grace_s: 3}, workers: 2}\n")
    config = load_config(file)
    save_config(tmp_path / "kept.json", config)
    kept = load_saved_config(tmp_path / "kept.json", file)
    assert kept == config
    assert kept is not None
    assert kept.file == file
    (tmp_path / "kept.json").write_text("{")
    assert load_saved_config(tmp_path / "kept.json", file) is None
    assert load_saved_config(tmp_path / "none.json", file) is None


# --- records and keys from outside, and the end -------------------------------------------------------------


def test_records_are_taken_in_to_the_last_one_on_sigterm(start: Start) -> None:
    control = start("ledger: {ingest_interval_s: 60}\n")
    control.wait_for(lambda: control.status()["ingest"]["last_success_s"] is not None)
    writer = SegmentWriter(control.data / "ledger", "w0", 1 << 20, SystemClock())
    for number in range(10):
        writer.append(encode_event(make_event(number)))
    writer.close()
    control.process.send_signal(signal.SIGTERM)
    assert control.process.wait(timeout=60) == 0
    control.start()
    assert control.get("/admin/v1/usage").json()["data"][0]["requests"] == 10
    assert "Traceback" not in control.log.read_text()


def test_a_key_that_the_command_line_revokes_leaves_the_snapshot(start: Start, tmp_path: Path) -> None:
    control = start()
    scene = Scene(tmp_path)
    scene.keys.revoke(scene.keys.list_live()[0].id, FOREBAY)
    scene.close()
    path = control.data / "run" / "snapshot.msgpack"
    control.wait_for(lambda: decode_snapshot(path.read_bytes()).keys == ())


def test_a_change_of_keys_waits_for_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "REFRESH_INTERVAL_S", 3600.0)
    monkeypatch.setattr(control_plane, "KEYS_INTERVAL_S", 3600.0)
    scene, other = Scene(tmp_path), Scene(tmp_path)

    async def see_changes() -> None:
        loops = asyncio.create_task(scene.plane.run())
        for name in ("a", "b"):
            record, _ = await asyncio.to_thread(other.keys.create, NewKey(name=name), FOREBAY)
            await wait_for_keys(1)
            await asyncio.to_thread(other.keys.revoke, record.entry.id, FOREBAY)
            await wait_for_keys(0)
        loops.cancel()

    async def wait_for_keys(count: int) -> None:
        async with asyncio.timeout(60):
            while (written := scene.plane.snapshot_state) is None or len(written.snapshot.keys) != count:
                await asyncio.sleep(0.01)

    asyncio.run(see_changes())
    scene.close()
    other.close()


def test_a_snapshot_that_vanishes_is_written_again(start: Start) -> None:
    control = start()
    path = control.data / "run" / "snapshot.msgpack"
    path.unlink()
    control.wait_for(path.exists)


def test_ctrl_c_and_the_token_stay_quiet_in_the_log(start: Start) -> None:
    control = start()
    assert control.get("/admin/v1/status").status_code == 200
    os.kill(control.process.pid, signal.SIGINT)
    assert control.process.wait(timeout=60) == 0
    log = control.log.read_text()
    assert "Traceback" not in log
    assert control.token not in log
    assert AUTH["authorization"] not in log
