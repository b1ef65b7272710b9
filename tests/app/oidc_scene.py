"""What tests of an identity provider stand on: keys, a door to the admin API, and its configuration."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oidc_issuer import AUDIENCE, Issuer, make_ec, make_rsa

from forebay.app.config_oidc import OidcConfig
from forebay.app.control_oidc import OidcDoor
from forebay.app.control_roles import Principal
from forebay.app.oidc_fetch import FetchFailed, fetch_document
from forebay.app.oidc_keys import Fetch
from forebay.core.errors import Unauthenticated
from forebay.testing.clock import VirtualClock

RSA = make_rsa()
OTHER_RSA = make_rsa()
EC = make_ec()
ROLES = {"viewer": ["readers"], "operator": ["deployers"], "owner": ["admins"]}


@pytest.fixture(name="issuer")
def make_issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        issuer.add("rsa-1", RSA)
        issuer.add("ec-1", EC)
        yield issuer


class Door:
    """One door to the admin API, in one event loop, with a clock of its own."""

    def __init__(self, issuer: Issuer, fetch: Fetch = fetch_document, **settings: Any) -> None:
        self.config = make_config(issuer, **settings)
        self.clock = VirtualClock()
        self.door = OidcDoor(lambda: self.config, self.clock, fetch)
        self.runner = asyncio.Runner()

    def identify(self, token: str) -> Principal | None:
        return self.runner.run(self.door.identify(token))

    def refuses(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as caught:
            self.identify(token)
        return caught.value.message


class Hanging:
    """Asks a provider that has stopped to answer, once `is_hanging`, until `release`."""

    def __init__(self) -> None:
        self.is_hanging = False
        self.asked = 0
        self._answers = threading.Event()

    def __call__(self, url: str, tls_ca: Path | None, timeout_s: float) -> bytes:
        if not self.is_hanging:
            return fetch_document(url, tls_ca, timeout_s)
        self.asked += 1
        self._answers.wait(60)
        raise FetchFailed(f"{url} hangs")

    def release(self) -> None:
        self._answers.set()


def make_config(issuer: Issuer, **settings: Any) -> OidcConfig:
    section = {"issuer": issuer.url, "audience": AUDIENCE, "roles": ROLES, **settings}
    return OidcConfig.model_validate_json(json.dumps(section, default=str))


@pytest.fixture(name="door")
def make_door(issuer: Issuer) -> Iterator[Door]:
    door = Door(issuer)
    yield door
    door.runner.close()


def encode(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
