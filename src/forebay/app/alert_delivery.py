"""Takes what is to be told from the database to the webhooks, until it has arrived or is given up.

Each webhook has tries of its own in flight, so none waits for a slow one.  What is in flight when the process
dies is tried again by whoever is there when the claim runs out: an event may arrive twice, with the same id.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from forebay.app.config_alerts import AlertsConfig, WebhookConfig
from forebay.app.webhook_sender import Sent, WebhookSender
from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.gateway.alerts import DeliveryState, encode_cloud_event
from forebay.gateway.policy.redelivery import GIVE_UP_S, compute_wait_s, is_given_up
from forebay.gateway.repo_deliveries import Claim, DeliveryRepo, Result

LOOK_S: Final = 1.0  #: between two looks for what is due
CLAIM_S: Final = 30.0  #: longer than any try takes, and than clocks of several machines differ
IN_FLIGHT_MAX: Final = 4  #: to one webhook
NOT_CONFIGURED: Final = "forebay.yaml has had no such webhook for days"

logger = logging.getLogger("forebay.alerts")


class AlertDelivery:
    """See the module.

    Args:
        get_config: the configuration in force.
        draw: a number from 0 to 1, at random.
    """

    def __init__(
        self,
        repo: DeliveryRepo,
        sender: WebhookSender,
        get_config: Callable[[], AlertsConfig],
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._repo = repo
        self._sender = sender
        self._get_config = get_config
        self._clock = clock
        self._draw = draw
        self._in_flight: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._error: str | None = None

    def wake(self) -> None:
        """There is something new to send."""
        self._news.set()

    async def run(self) -> None:
        """Until it is cancelled; what is in flight then is tried again later."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._look(group)
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()
                except TimeoutError:
                    pass
                self._news.clear()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        try:
            await self._claim_all(group)
            self._error = None
        except Exception as error:  # the loop's outer edge: what is due stays due
            known = isinstance(error, OSError | ForebayError)
            if self._error is None:
                logger.error("alerts can't be sent: %s", error, exc_info=None if known else error)
            self._error = str(error)

    async def _claim_all(self, group: asyncio.TaskGroup) -> None:
        webhooks = self._get_config().webhooks
        if not webhooks:
            return
        now_ns = self._clock.wall_ns()
        due = await asyncio.to_thread(self._repo.count_due, now_ns)
        for webhook in webhooks:
            count = min(due.get(webhook.url, 0), IN_FLIGHT_MAX - self._in_flight[webhook.url])
            if count > 0:
                until_ns = now_ns + int(CLAIM_S * 1e9)
                claims = await asyncio.to_thread(self._repo.claim, webhook.url, count, now_ns, until_ns)
                for claim in claims:
                    self._in_flight[webhook.url] += 1
                    group.create_task(self._deliver(webhook, claim))

    async def _deliver(self, webhook: WebhookConfig, claim: Claim) -> None:
        try:
            body = encode_cloud_event(claim.alert, self._get_config().source)
            sent = await self._sender.send(webhook, claim.alert.event_id, body)
            result = self._judge(claim, sent)
            await asyncio.to_thread(self._repo.finish, claim, result, self._clock.wall_ns())
            self._log(claim, result)
        except Exception as error:  # the task's outer edge: it is tried again when its claim has run out
            known = isinstance(error, OSError | ForebayError)
            logger.error("an alert can't be sent: %s", error, exc_info=None if known else error)
        finally:
            self._in_flight[webhook.url] -= 1
            self._news.set()

    def _judge(self, claim: Claim, sent: Sent) -> Result:
        if not sent.error:
            return Result(state=DeliveryState.DELIVERED, status=sent.status)
        now_ns = self._clock.wall_ns()
        if is_given_up((now_ns - claim.alert.at_ns) / 1e9, sent.status):
            return Result(state=DeliveryState.FAILED, status=sent.status, error=sent.error)
        wait_s = compute_wait_s(claim.attempts, sent.retry_after_s, self._draw())
        again_ns = now_ns + int(wait_s * 1e9)
        return Result(state=DeliveryState.WAITING, status=sent.status, error=sent.error, again_ns=again_ns)

    def _log(self, claim: Claim, result: Result) -> None:
        if result.state is DeliveryState.FAILED:
            logger.error(
                "%s is not sent to %s any more: %s", claim.alert.event_id, claim.webhook, result.error
            )
        elif result.state is DeliveryState.WAITING and claim.attempts == 1:
            logger.warning(
                "%s did not reach %s and is tried again: %s",
                claim.alert.event_id,
                claim.webhook,
                result.error,
            )

    def expire(self) -> None:
        """Gives up what waits for a webhook that is configured no more.  Raises StoreError."""
        now_ns = self._clock.wall_ns()
        known = [webhook.url for webhook in self._get_config().webhooks]
        before_ns = now_ns - int(GIVE_UP_S * 1e9)
        self._repo.expire(before_ns, known, NOT_CONFIGURED, now_ns)
