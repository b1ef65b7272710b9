"""Wires the parts of alerts together, for the control plane's process and for tests."""

from collections.abc import Callable

from forebay.app.alert_delivery import AlertDelivery
from forebay.app.alerts import Alerts, Limits
from forebay.app.config_alerts import AlertsConfig
from forebay.app.control_alerts import AlertRoutes
from forebay.app.webhook_sender import WebhookSender
from forebay.core.clock import Clock
from forebay.gateway.repo_alerts import AlertRepo
from forebay.gateway.repo_deliveries import DeliveryRepo
from forebay.store.database import Database


class AlertParts:
    """The loops and the routes of one control plane.

    Args:
        limits: the authority over the limits.
        get_config: the configuration in force.
    """

    def __init__(
        self, limits: Limits, database: Database, get_config: Callable[[], AlertsConfig], clock: Clock
    ) -> None:
        repo = AlertRepo(database)
        self.sender = WebhookSender(clock)
        delivery = AlertDelivery(DeliveryRepo(database), self.sender, get_config, clock)
        self.alerts = Alerts(limits, repo, delivery, get_config, clock)
        self.routes = AlertRoutes(repo, self.sender, get_config, clock)

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            await self.alerts.run()
        finally:
            self.sender.close()
