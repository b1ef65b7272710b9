"""What is to be sent to webhooks, at rest: handed out to one sender at a time, for a while.

Whoever claims a delivery has it alone until the claim runs out; so of several control planes over one
database each sends others, and what one that was killed had claimed is sent by the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, func, select, update

from forebay.gateway.alerts import Alert, DeliveryState
from forebay.gateway.repo_alert_tables import alerts, deliveries
from forebay.gateway.repo_alerts import make_alert
from forebay.store.database import Database

PUT_OFF_MAX_NS: Final = 2 * 3600 * 10**9  #: longer than any claim or pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A delivery that is ours to try.  `attempts` counts this one."""

    alert: Alert
    webhook: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a try.

    Attributes:
        again_ns: when to try again, where it is `WAITING`.
    """

    state: DeliveryState
    status: int | None
    error: str = ""
    again_ns: int = 0


def _is_due(now_ns: int) -> ColumnElement[bool]:
    """Also what a clock that ran ahead put off for longer than anything waits."""
    return (deliveries.c.due_ns <= now_ns) | (deliveries.c.due_ns > now_ns + PUT_OFF_MAX_NS)


class DeliveryRepo:
    """See the module."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def count_due(self, now_ns: int) -> Mapping[str, int]:
        """How many are to be tried now, by webhook."""
        query = (
            select(deliveries.c.webhook, func.count())
            .where(deliveries.c.state == DeliveryState.WAITING.value, _is_due(now_ns))
            .group_by(deliveries.c.webhook)
        )
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def claim(self, webhook: str, count: int, now_ns: int, until_ns: int) -> tuple[Claim, ...]:
        """Up to so many that are due, the oldest first; nobody else gets them before `until_ns`."""
        due = (
            select(deliveries.c.alert_id)
            .where(
                deliveries.c.webhook == webhook,
                deliveries.c.state == DeliveryState.WAITING.value,
                _is_due(now_ns),
            )
            .order_by(deliveries.c.due_ns, deliveries.c.alert_id)
            .limit(count)
            .with_for_update(skip_locked=True)  # SQLite has one writer at a time anyway
        )
        with self._database.begin() as connection:
            ids = list(connection.execute(due).scalars())
            if not ids:
                return ()
            mine = (deliveries.c.webhook == webhook) & deliveries.c.alert_id.in_(ids)
            connection.execute(
                update(deliveries).where(mine).values(due_ns=until_ns, attempts=deliveries.c.attempts + 1)
            )
            rows = connection.execute(
                select(alerts, deliveries.c.attempts)
                .join(deliveries, deliveries.c.alert_id == alerts.c.id)
                .where(mine)
                .order_by(alerts.c.id)
            ).mappings()
            return tuple(
                Claim(alert=make_alert(row), webhook=webhook, attempts=row["attempts"]) for row in rows
            )

    def finish(self, claim: Claim, result: Result, now_ns: int) -> bool:
        """Writes down what became of a claim; False where somebody else has claimed it meanwhile."""
        is_ended = result.state is not DeliveryState.WAITING
        values: dict[str, object] = {
            "state": result.state.value,
            "status": result.status,
            "error": result.error[:1000],
            "ended_ns": now_ns if is_ended else None,
        }
        if not is_ended:
            values["due_ns"] = result.again_ns
        ours = (
            (deliveries.c.alert_id == claim.alert.id)
            & (deliveries.c.webhook == claim.webhook)
            & (deliveries.c.state == DeliveryState.WAITING.value)
        )
        if result.state is not DeliveryState.DELIVERED:  # what has arrived has, whoever sent it
            ours &= deliveries.c.attempts == claim.attempts
        with self._database.begin() as connection:
            return connection.execute(update(deliveries).where(ours).values(values)).rowcount > 0

    def expire(self, before_ns: int, known: Sequence[str], error: str, now_ns: int) -> int:
        """Gives up what waits for webhooks that are not known, of older alerts; says how many."""
        old = select(alerts.c.id).where(alerts.c.at_ns < before_ns)
        query = update(deliveries).where(
            deliveries.c.state == DeliveryState.WAITING.value,
            deliveries.c.due_ns < now_ns,
            deliveries.c.webhook.not_in(known),
            deliveries.c.alert_id.in_(old),
        )
        values = {"state": DeliveryState.FAILED.value, "error": error, "ended_ns": now_ns}
        with self._database.begin() as connection:
            return connection.execute(query.values(values)).rowcount
