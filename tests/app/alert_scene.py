"""Alerts in a control plane without processes: a limit that a worker spends, and webhooks on real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from borrower import Borrower
from control_scene import Scene
from webhook_rig import make_secret

from forebay.app import alert_delivery
from forebay.gateway.alerts import Alert
from forebay.gateway.policy import redelivery
from forebay.gateway.tenancy import FOREBAY, NewKey

LIMIT_ID = "team:default/requests/month/calendar"
LIMIT_S = 60.0


def make_yaml(folder: Path, *urls: str, rule: str = "alert_at: [0.5, 0.8, 1.0]", amount: int = 100) -> str:
    secret = make_secret(folder)
    webhooks = "".join(f"\n    - {{url: '{url}', secret: '{secret}'}}" for url in urls)
    return (
        f"limits:\n  rules:\n"
        f"    - {{team: default, requests: {amount}, per: month, window: calendar, {rule}}}\n"
        f"alerts:\n  webhooks:{webhooks or ' []'}\n"
    )


class AlertScene(Scene):
    """One data folder with a limit; `working` gives a worker of it."""

    def __init__(self, folder: Path, yaml: str) -> None:
        super().__init__(folder, yaml)
        self.keys.create(NewKey(name="n"), FOREBAY)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[Borrower]:
        await self.plane.refresh_snapshot()
        await self.quota.start()
        borrower = Borrower(self.defaults.run_path / "quota.sock", LIMIT_ID)
        try:
            await borrower.connect()
            yield borrower
        finally:
            borrower.close()
            self.quota.close()

    async def look(self) -> None:
        await self.alerts.alerts.look()

    def told(self) -> list[Alert]:
        """The oldest first."""
        return list(reversed(self.repos.alerts.load_page(limit=1000)))

    def shares(self) -> list[int]:
        return [alert.share for alert in self.told()]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def until(is_true: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {LIMIT_S} s: {what}") from None


def hurry(monkeypatch: pytest.MonkeyPatch, *, claim_s: float = 30.0) -> None:
    """Tries follow each other in parts of a second."""
    monkeypatch.setattr(redelivery, "FIRST_S", 0.05)
    monkeypatch.setattr(alert_delivery, "LOOK_S", 0.05)
    monkeypatch.setattr(alert_delivery, "CLAIM_S", claim_s)
