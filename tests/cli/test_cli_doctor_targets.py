"""`forebay doctor` on targets with a `url`: name, connection, TLS and credentials, and no request."""

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme
from command_line import forebay

from forebay.cli import doctor_targets
from forebay.testing.answers import json_answer
from forebay.testing.threaded import Blackhole, ThreadedUpstream, find_closed_port
from forebay.testing.upstream import UpstreamSettings

Findings = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found out is waited for: the machine may be busy."""
    monkeypatch.setattr(doctor_targets, "REACH_S", 60.0)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def over_tls(authority: trustme.CA) -> Iterator[ThreadedUpstream]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ThreadedUpstream(lambda _: json_answer({}), UpstreamSettings(tls=context)) as upstream:
        yield upstream


def examine(*targets: dict[str, str]) -> tuple[int, Findings]:
    models = {f"m{n}": {"endpoints": ["embeddings"], "targets": [target]} for n, target in enumerate(targets)}
    gateway = {"gateway": {"port": 0}, "control": {"port": 0}}
    Path("forebay.yaml").write_text(json.dumps({**gateway, "models": models}))
    result = forebay("doctor", "--json")
    report = json.loads(result.stdout)
    return result.exit_code, {
        found["name"]: found for found in report["findings"] if found["name"].startswith("target")
    }


@pytest.mark.usefixtures("patience")
def test_targets_that_take_connections_are_well(
    authority: trustme.CA, over_tls: ThreadedUpstream, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "key").write_text("sk-canary\n")
    with ThreadedUpstream(lambda _: json_answer({})) as plain:
        status, found = examine(
            {"url": plain.url, "api_key": f"file:{tmp_path}/key"}, {"url": over_tls.url, "tls_ca": "ca.pem"}
        )
        plain.wait_until(lambda: plain.connections_open == 0)
        assert not plain.requests
    assert not over_tls.requests, "no request is sent"
    assert (status, list(found)) == (0, ["targets"])
    assert found["targets"]["message"].startswith("2 of 2 ")


@pytest.mark.usefixtures("patience")
def test_each_that_is_not_is_a_warning_with_cause_and_remedy(
    authority: trustme.CA, over_tls: ThreadedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_targets, "ALERT_S", 60.0)
    (tmp_path / "key").write_text("\n")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    strict = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(strict)
    authority.configure_trust(strict)
    strict.verify_mode = ssl.CERT_REQUIRED
    with (
        ThreadedUpstream(lambda _: json_answer({})) as plain,
        ThreadedUpstream(lambda _: json_answer({}), UpstreamSettings(tls=strict)) as mutual,
    ):
        nobody = f"http://127.0.0.1:{find_closed_port()}"
        cases = [
            ({"url": "http://no-such-host.invalid/v1"}, "does not resolve", "DNS"),
            ({"url": f"http://127.0.0.1:{find_closed_port()}/v1"}, "takes no connection", "the port"),
            ({"url": over_tls.url}, "certificate is not to be trusted", "tls_ca"),
            ({"url": f"https://127.0.0.1:{plain.port}/v1"}, "TLS fails", "http://"),
            ({"url": mutual.url, "tls_ca": "ca.pem"}, "after the handshake", "tls_cert"),
            ({"url": plain.url, "proxy": nobody}, "its proxy takes no connection", "`proxy`"),
            ({"url": plain.url, "api_key": f"file:{tmp_path}/key"}, "key is empty", "put the secret there"),
        ]
        status, found = examine(*(target for target, _, _ in cases))
    assert status == 0
    assert "targets" not in found, "none is well"
    for number, (target, cause, hint) in enumerate(cases):
        (finding,) = [each for name, each in found.items() if name.startswith(f"target m{number}@")]
        assert finding["verdict"] == "warn"
        assert target["url"].split("/")[2] in finding["message"]
        assert cause in finding["message"]
        assert hint in finding["hint"]


def test_targets_that_say_nothing_take_little_time() -> None:
    """All are tried at once: one after the other would take longer than is allowed here."""
    with ExitStack() as stack:
        holes = [stack.enter_context(Blackhole()) for _ in range(30)]
        started = time.monotonic()
        _, found = examine(*({"url": f"http://127.0.0.1:{hole.port}/v1"} for hole in holes))
    assert time.monotonic() - started < 55
    assert len(found) == 30
    assert {found[name]["verdict"] for name in found} == {"warn"}


def test_without_targets_elsewhere_nothing_is_asked() -> None:
    Path("forebay.yaml").write_text("engines: {}\n")
    found = json.loads(forebay("doctor", "--json").stdout)["findings"]
    assert not [each for each in found if each["name"].startswith("target")]
