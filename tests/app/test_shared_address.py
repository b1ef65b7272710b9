"""The address of the shared authority over limits: no part of its password is ever shown."""

import asyncio
import re

import pytest

from forebay.app.config import Config
from forebay.app.quota_opening import find_address
from forebay.app.redaction import redactor
from forebay.app.redis_link import FAILURES, explain, fetch_info

SECRETS = re.compile("Tr0ub4dor|s3cretpw|hunter2|31337|swordfish|zebra")


def find(monkeypatch: pytest.MonkeyPatch, url: str) -> str:
    monkeypatch.setenv("SHARED_LIMITS", url)
    config = Config.model_validate({"limits": {"authority": "env:SHARED_LIMITS"}})
    return find_address(config)


@pytest.mark.parametrize(
    "url",
    [
        "redis://limits:Tr0ub4dor/3@redis.example.com:6379/0",
        "redis://:s3cretpw?x@redis.example.com:6379/0",
        "redis://u:hunter2#a@h:6379/0",
        "redis://u:31337/swordfish@h:6379/0",
        "redis://u:31337?swordfish@h:6379/0",
        "redis://u:31337#swordfish@h:6379/0",
        "redis://[swordfish@h:6379/0",
        "unix://u:31337/swordfish@/run/redis.sock",
        "swordfish",
    ],
)
def test_what_is_no_address_is_refused_without_a_word_of_it(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    with pytest.raises(LookupError) as caught:
        find(monkeypatch, url)
    said = explain(caught.value)
    assert not SECRETS.search(said)
    assert "env:SHARED_LIMITS" in said
    assert "%2F" in said, "and how to mend it"


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:swordfish@127.0.0.1:1/zebra",
        "redis://u:swordfish@127.0.0.1:1/0?db=zebra",
        "redis://u:swordfish@127.0.0.1:1/0?zebra=1",
        "redis://u:swordfish@127.0.0.1:1/0?socket_timeout=zebra",
        "redis://u:swordfish@zebra.invalid:1/0",
        f"redis://u:swordfish@{'zebra' * 20}:1/0",
        "redis://u:swordfish@zebra..invalid:1/0",
    ],
)
def test_what_can_t_be_used_of_an_address_is_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    found = find(monkeypatch, url)
    with pytest.raises(FAILURES) as caught:
        asyncio.run(fetch_info(found))
    said = redactor.redact(explain(caught.value))
    assert said
    assert not SECRETS.search(said)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:a%2Fb%40c@h:6379/0",
        "rediss://:pw@h/1?ssl_ca_certs=/x/y.pem",
        "redis://[::1]:6379",
        "unix:///run/redis@1.sock",
        "unix://u:pw@/run/redis.sock?db=1",
    ],
)
def test_an_address_is_found(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert find(monkeypatch, url) == url
