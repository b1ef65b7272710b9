"""The admin API's routes for alerts: what was told of limits, what became of it, and a test of the webhooks.

The address of a webhook is shown as it stands in `forebay.yaml`; nobody can name another.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Query
from pydantic import Field

from forebay.app.config_alerts import AlertsConfig, WebhookConfig
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.webhook_sender import WebhookSender
from forebay.core.clock import Clock
from forebay.gateway.alerts import Alert, Delivery, DeliveryState, encode_test_event
from forebay.gateway.policy.alerting import WHOLE, AlertKind
from forebay.gateway.repo_alerts import AlertRepo
from forebay.gateway.tenancy import Role

PAGE_MAX = 1000
Owner = Annotated[
    str,
    Query(pattern=r"^[ -~]{1,250}$", description="Only of this owner's limits: `team growth`, for example."),
]


class DeliveryView(View):
    webhook: str = Field(description="Its address as it stands in `forebay.yaml`.")
    state: DeliveryState
    attempts: int = Field(description="How often it was sent.")
    next_at_s: float | None = Field(description="Unix time of the next try; null once it has ended.")
    ended_at_s: float | None = Field(description="Unix time at which it was delivered or given up.")
    status: int | None = Field(description="Of the last answer; null where there was none.")
    error: str | None = Field(description="Why the last try failed; null if it did not.")


class AlertView(View):
    id: int
    event_id: str = Field(description="The event's id, and the header `webhook-id`.")
    at_s: float
    event: AlertKind
    limit: str = Field(description="The limit's id.")
    owner: str
    share: float | None = Field(description="The part of the amount that was reached.")
    data: dict[str, Any] = Field(description="The event's `data`.")
    deliveries: list[DeliveryView] = Field(description="One for each webhook that is told of it.")


class AlertPage(View):
    data: list[AlertView] = Field(description="The newest first.")
    next_cursor: int | None = Field(description="Null on the last page.")


class TestView(View):
    webhook: str = Field(description="Its address as it stands in `forebay.yaml`.")
    status: int | None = Field(description="Of the answer; null where there was none.")
    error: str | None = Field(description="Why it did not arrive; null if it did.")
    answer: str = Field(description="The first words of the answer.")
    duration_s: float


class TestList(View):
    data: list[TestView] = Field(description="In the order of `forebay.yaml`.")


class AlertRoutes:
    """See the module.

    Args:
        get_config: the configuration in force.
    """

    def __init__(
        self,
        repo: AlertRepo,
        sender: WebhookSender,
        get_config: Callable[[], AlertsConfig],
        clock: Clock,
    ) -> None:
        self._repo = repo
        self._sender = sender
        self._get_config = get_config
        self._clock = clock

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        add("GET", "/alerts", self.get_alerts, "What was told of limits")
        add("POST", "/alerts/test", self.test, "Send a test event to each webhook", role=Role.OPERATOR)

    async def get_alerts(
        self,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
        cursor: Annotated[
            int | None, Query(ge=1, le=1 << 53, description="`next_cursor` of the page before.")
        ] = None,
        owner: Owner | None = None,
        event: Annotated[AlertKind | None, Query(description="Only events of this kind.")] = None,
        delivery: Annotated[
            DeliveryState | None, Query(description="Only those of which a delivery is in this state.")
        ] = None,
    ) -> AlertPage:
        """Alerts of the last 90 days, the newest first."""
        found = await asyncio.to_thread(
            lambda: self._repo.load_page(
                limit=limit + 1, before_id=cursor, owner=owner, kind=event, state=delivery
            )
        )
        page = found[:limit]
        return AlertPage(
            data=[show_alert(alert) for alert in page],
            next_cursor=page[-1].id if len(found) > limit else None,
        )

    async def test(self) -> TestList:
        """Answered when all have answered, or have had ten seconds for it.  Nothing is kept of it."""
        webhooks = self._get_config().webhooks
        return TestList(data=list(await asyncio.gather(*map(self._test, webhooks))))

    async def _test(self, webhook: WebhookConfig) -> TestView:
        event_id = f"test_{secrets.token_hex(16)}"
        body = encode_test_event(event_id, self._get_config().source, self._clock.wall_ns())
        sent = await self._sender.send(webhook, event_id, body)
        return TestView(
            webhook=webhook.url,
            status=sent.status,
            error=sent.error or None,
            answer=sent.answer,
            duration_s=sent.duration_s,
        )


def show_alert(alert: Alert) -> AlertView:
    return AlertView(
        id=alert.id,
        event_id=alert.event_id,
        at_s=alert.at_ns / 1e9,
        event=alert.kind,
        limit=alert.limit_id,
        owner=alert.owner,
        share=alert.share / WHOLE if alert.share else None,
        data=dict(alert.data),
        deliveries=[_show_delivery(each) for each in alert.deliveries],
    )


def _show_delivery(delivery: Delivery) -> DeliveryView:
    is_waiting = delivery.state is DeliveryState.WAITING
    return DeliveryView(
        webhook=delivery.webhook,
        state=delivery.state,
        attempts=delivery.attempts,
        next_at_s=delivery.due_ns / 1e9 if is_waiting else None,
        ended_at_s=None if delivery.ended_ns is None else delivery.ended_ns / 1e9,
        status=delivery.status,
        error=delivery.error or None,
    )
