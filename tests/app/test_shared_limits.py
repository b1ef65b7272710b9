"""`limits.authority`: two control planes show and lend one limit; what is wrong with it is said in words."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_scene import LiveControl

import redis_server as redis_servers
from forebay.app.clock import SystemClock
from forebay.app.config import check_config
from forebay.cli.doctor_authority import examine_info
from forebay.cli.finding import Verdict
from forebay.core.limits import Limit, Measure, WhenAway
from forebay.core.routes import decode_snapshot
from forebay.gateway.quota import Quota
from forebay.providers import openai
from redis_server import RedisServer

SECRET = "s3cret-w0rd"
YAML = """
limits:
  authority: env:FOREBAY_TEST_AUTHORITY
  rules:
    - {each: project, requests: 100, per: month, window: calendar}
"""


@pytest.fixture
def server(redis_program: Path) -> Iterator[RedisServer]:
    with redis_servers.run(redis_program, "--requirepass", SECRET) as server:
        yield server


def start(folder: Path, server: RedisServer) -> LiveControl:
    folder.mkdir()
    url = f"redis://default:{SECRET}@127.0.0.1:{server.port}/0"
    return LiveControl(folder, YAML, {"FOREBAY_TEST_AUTHORITY": url})


def test_two_control_planes_show_one_limit_and_say_when_nobody_can_tell(
    tmp_path: Path, server: RedisServer
) -> None:
    controls = [start(tmp_path / name, server) for name in ("one", "other")]
    try:
        for control in controls:
            control.wait_for(lambda control=control: control.get("/admin/v1/limits").status_code == 200)  # type: ignore[misc]
            (shown,) = control.get("/admin/v1/limits").json()["data"]
            assert (shown["owner"], shown["left"], shown["lent"]) == ("project default/default", 100, 0)
        server.kill()
        first = controls[0]
        first.wait_for(lambda: first.get("/admin/v1/limits").status_code == 503)
        error = first.get("/admin/v1/limits").json()["error"]
        assert error["code"] == "quota_authority_unavailable"
        assert "limits.authority" in error["message"]
        assert first.get("/readyz").status_code == 200
        server.start()
        first.wait_for(lambda: first.get("/admin/v1/limits").status_code == 200)
        assert SECRET not in first.log.read_text()
        lines = first.log.read_text().splitlines()
        told = [line.split(" ERROR ")[1] for line in lines if "can't be used" in line]
        assert len(told) == len(set(told)) > 0, "each reason once: a reset, then that nobody listens"
    finally:
        for control in controls:
            control.close()


def test_the_share_of_a_worker_is_that_of_all_machines(tmp_path: Path, server: RedisServer) -> None:
    controls = [start(tmp_path / name, server) for name in ("one", "other")]
    own = decode_snapshot((controls[0].data / "run" / "snapshot.msgpack").read_bytes()).quota_workers
    limit = Limit(id="x", owner="team a", measure=Measure.CONCURRENT, amount=1)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        path = controls[1].data / "run" / "quota.sock"
        quotas = [Quota(loop, path, f"w{number}", openai, SystemClock()) for number in range(own + 3)]
        for quota in quotas:
            quota.set_limits((limit,), WhenAway.SHARE, 1)

        def count() -> int:
            for quota in quotas:
                quota.sweep()
            return decode_snapshot((controls[0].data / "run" / "snapshot.msgpack").read_bytes()).quota_workers

        async with asyncio.timeout(60):
            while count() != own + 3:
                await asyncio.sleep(0.1)
        for quota in quotas:
            quota.close()

    try:
        asyncio.run(test())
    finally:
        for control in controls:
            control.close()


def test_a_wrong_password_is_told_without_it(tmp_path: Path, server: RedisServer) -> None:
    url = f"redis://default:{SECRET}-not@127.0.0.1:{server.port}/0"
    control = LiveControl(tmp_path, YAML, {"FOREBAY_TEST_AUTHORITY": url})
    try:
        control.wait_for(lambda: "does not accept the name and password" in control.log.read_text())
        assert SECRET not in control.log.read_text()
    finally:
        control.close()


def test_nothing_starts_with_a_reference_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"ended with 2: .*FOREBAY_TEST_AUTHORITY is not set"):
        LiveControl(tmp_path, YAML, {"FOREBAY_TEST_AUTHORITY": ""})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (f"redis://u:{SECRET}@h/0", "given as a reference"),
        (f"redis://h/0?password={SECRET}", "given as a reference"),
        ("http://h", "not an address"),
        ("redis://", "not an address"),
        ("unix:", "not an address"),
        ("h:6379", "not an address"),
        ("redis://h:6379/abc", "not an address"),
        ("unix:///a\0b", "not an address"),
        ("redis://h:6379/0?socket_timeout=abc", "no query but"),
        ("redis://h?ssl_ca_certs=/x", "no query but"),
        ("rediss://h?ssl_ca_certs=/nope", "is not there"),
        ("env:a b", "as a reference"),
    ],
)
def test_an_address_that_can_not_be_used_is_refused_with_its_line(
    tmp_path: Path, value: str, words: str
) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(f"limits:\n  authority: {json.dumps(value)}\n")
    (problem,) = check_config(file, {})[1]
    assert (problem.line, problem.key) == (2, "limits.authority")
    assert words in problem.message
    assert SECRET not in problem.render()


def test_a_reference_to_nothing_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(YAML)
    config, (warning,) = check_config(file, {})
    assert config is not None
    assert (warning.key, warning.secret) == ("limits.authority", True)


GOOD = {"valkey_version": "9.1.2", "role": "master", "aof_enabled": 1, "maxmemory": 0}


@pytest.mark.parametrize(
    ("more", "verdicts", "words"),
    [
        ({}, [Verdict.OK], "Valkey 9.1.2 answers"),
        ({"valkey_version": None, "redis_version": "7.0.15"}, [Verdict.OK], "Redis 7.0.15 answers"),
        ({"role": "slave"}, [Verdict.FAIL], "a replica"),
        ({"aof_enabled": 0}, [Verdict.OK, Verdict.WARN], "keeps nothing on disk"),
        ({"maxmemory": 9, "maxmemory_policy": "allkeys-lru"}, [Verdict.OK, Verdict.WARN], "forgets limits"),
        ({"maxmemory": 9, "maxmemory_policy": "noeviction"}, [Verdict.OK], "answers"),
    ],
)
def test_doctor_says_what_a_server_would_forget(
    more: dict[str, object], verdicts: list[Verdict], words: str
) -> None:
    findings = list(examine_info(GOOD | more, 1.0))
    assert [finding.verdict for finding in findings] == verdicts
    assert words in findings[-1].message
