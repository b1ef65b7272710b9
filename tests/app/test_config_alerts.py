"""The section `alerts`: every mistake has its line and says how to mend it, and shows no secret."""

import base64
from pathlib import Path

import pytest

from forebay.app.config import check_config, load_config
from forebay.app.config_alerts import AlertsConfig
from forebay.app.config_problems import ConfigInvalid, Severity
from forebay.gateway.policy.alerting import AlertKind

GOOD = f"whsec_{base64.b64encode(b'k' * 32).decode()}"
ENV = {"GOOD": GOOD, "BAD": "s3cret-word", "URL": "https://h/s3cret-path", "NOURL": "s3cret-word"}


def check(folder: Path, webhooks: str) -> list[str]:
    file = folder / "forebay.yaml"
    file.write_text(f"alerts:\n  webhooks:\n{webhooks}")
    _, problems = check_config(file, ENV)
    found = [problem.render().removeprefix(f"{file}:") for problem in problems]
    assert "s3cret" not in "".join(found)
    return found


def test_a_section_as_it_should_be(tmp_path: Path) -> None:
    assert check(tmp_path, "    - {url: 'https://h:8443/a/b', secret: env:GOOD}\n") == []
    assert (
        check(tmp_path, "    - {url: env:URL, secret: env:GOOD, events: [exceeded], owners: [team a*]}\n")
        == []
    )


@pytest.mark.parametrize(
    ("webhook", "words"),
    [
        ("{secret: env:GOOD}", "alerts.webhooks[0].url: is missing"),
        ("{url: 'https://h'}", "alerts.webhooks[0].secret: is missing"),
        (
            "{url: 'ftp://h', secret: env:GOOD}",
            "url: not an address; write an address like https://host/path",
        ),
        ("{url: 'https://u:s3cret@h', secret: env:GOOD}", "url: a name or password in the address"),
        ("{url: 'https://h/?k=s3cret', secret: env:GOOD}", "url: what follows a `?` is often secret"),
        (
            "{url: 'https://h', secret: s3cret}",
            "secret: a secret is given as a reference: env:NAME or file:PATH",
        ),
        ("{url: 'https://h', secret: env:NONE}", "secret: the environment variable NONE is not set"),
        ("{url: 'https://h', secret: 'file:none'}", "secret: the file with the secret can't be found"),
        (
            "{url: 'https://h', secret: env:BAD}",
            "secret: leads to what is of no use here (a secret of a webhook",
        ),
        ("{url: env:NOURL, secret: env:GOOD}", "url: leads to what is of no use here (not an address"),
        ("{url: 'https://h', secret: env:GOOD, events: [nope]}", "events[0]: not one of the values"),
        ("{url: 'https://h', secret: env:GOOD, events: []}", "events: needs at least 1"),
        ("{url: 'https://h', secret: env:GOOD, owners: []}", "owners: needs at least 1"),
        ("{url: 'https://h', secret: env:GOOD, tls_ca: none.pem}", "tls_ca: no such file"),
        ("{url: 'https://h', secret: env:GOOD, header: x}", "header: unknown key (known here: url, secret"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, webhook: str, words: str) -> None:
    (found,) = check(tmp_path, f"    - {webhook}\n")
    place = found.removeprefix("warning: ").removeprefix(f"{tmp_path / 'forebay.yaml'}:")
    assert place.startswith("3: ")
    assert words in found
    with pytest.raises(ConfigInvalid):
        load_config(tmp_path / "forebay.yaml", ENV)


def test_the_same_address_twice_is_a_mistake(tmp_path: Path) -> None:
    webhook = "    - {url: 'https://h/x', secret: env:GOOD}\n"
    (found,) = check(tmp_path, 2 * webhook)
    assert "alerts.webhooks[1].url: is the same as that of alerts.webhooks[0]" in found


def test_an_address_without_encryption_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text(
        "alerts:\n  webhooks:\n    - {url: 'http://hooks.example.com', secret: env:GOOD}\n"
        "    - {url: 'http://127.0.0.1:1/x', secret: env:GOOD}\n"
    )
    config, (problem,) = check_config(tmp_path / "forebay.yaml", ENV)
    assert config is not None
    assert (problem.severity, problem.key) == (Severity.WARNING, "alerts.webhooks[0].url")
    assert "without encryption" in problem.message


def test_a_webhook_hears_of_its_events_and_owners_alone() -> None:
    secret = "env:X"
    config = AlertsConfig.model_validate(
        {
            "webhooks": [
                {"url": "https://all", "secret": secret},
                {"url": "https://ends", "secret": secret, "events": ["exceeded", "grace_ended"]},
                {"url": "https://a", "secret": secret, "owners": ["team a", "project a/*"]},
            ]
        }
    )
    assert config.choose_webhooks(AlertKind.SHARE_REACHED, "team b") == ("https://all",)
    assert config.choose_webhooks(AlertKind.EXCEEDED, "team b") == ("https://all", "https://ends")
    assert config.choose_webhooks(AlertKind.GRACE_ENTERED, "project a/x") == ("https://all", "https://a")
    assert config.choose_webhooks(AlertKind.GRACE_ENTERED, "team ab") == ("https://all",)
