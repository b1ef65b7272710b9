"""`forebay doctor` asks the server over which machines share their limits."""

import json
from pathlib import Path

import pytest
from command_line import forebay

from forebay.testing.threaded import find_closed_port
from redis_server import RedisServer


def find(folder: Path, url: str) -> list[dict[str, str]]:
    (folder / "forebay.yaml").write_text(
        f"gateway: {{port: 0}}\ncontrol: {{port: 0}}\nengines: {{}}\nlimits: {{authority: '{url}'}}\n"
    )
    findings = json.loads(forebay("doctor", "--json").stdout)["findings"]
    return [each for each in findings if each["name"] == "authority over limits"]


def test_doctor_names_the_server_and_says_why_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    for url in (redis_server.url, redis_server.socket_url):
        there, warned = find(tmp_path, url)
        assert there["verdict"] == "ok"
        assert "answers, in" in there["message"]
        assert "keeps nothing on disk" in warned["message"]
    (gone,) = find(tmp_path, f"redis://127.0.0.1:{find_closed_port()}/0")
    assert gone["verdict"] == "fail"
    assert "no connection" in gone["message"]
