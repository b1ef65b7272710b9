"""Alerts at rest: what is told, and to which webhooks, commits in one transaction with the mark that it was
told; so nothing is told twice, and nothing that was told is lost on its way.

Sends nothing: `repo_deliveries` hands out what is to be sent.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection, RowMapping, delete, exists, insert, select, text, tuple_

from forebay.gateway.alerts import Alert, Delivery, DeliveryState, describe_alert, find_alert_period
from forebay.gateway.policy.alerting import AlertKind, Mark, choose_due
from forebay.gateway.policy.lending import Standing
from forebay.gateway.repo_alert_tables import alerts, deliveries
from forebay.store.database import Database

TOLD_MAX: Final = 200  #: limits in one transaction
OWNER_MAX: Final = 250

ChooseWebhooks = Callable[[AlertKind, str], Iterable[str]]
Place = tuple[str, int]  #: a limit, by its key, and the beginning of a period


class AlertRepo:
    """See the module."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tell(
        self, standings: Sequence[tuple[Standing, int]], choose_webhooks: ChooseWebhooks
    ) -> tuple[tuple[Alert, ...], Mapping[Place, tuple[Mark, ...]]]:
        """Writes down what is due of some limits, and for whom.

        Args:
            standings: each with the wall time at which it was so; at most `TOLD_MAX`.
            choose_webhooks: the webhooks that hear of a kind of alert about an owner.

        Returns:
            What was told now, and all that is told by now of these limits in their periods.

        Raises:
            StoreError: nothing was told.
        """
        places = [
            (make_limit_key(standing.limit.id), find_alert_period(standing)[0]) for standing, _ in standings
        ]
        made: list[Alert] = []
        with self._database.begin() as connection:
            if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
                connection.execute(text("LOCK TABLE gateway_alerts IN SHARE ROW EXCLUSIVE MODE"))
            told = _load_marks(connection, places)
            for (standing, at_ns), place in zip(standings, places, strict=True):
                for due in choose_due(standing, told[place], at_ns):
                    data = describe_alert(standing, due)
                    mark = Mark(due.kind, due.share, standing.limit.amount, at_ns)
                    alert = _insert(connection, standing, mark, place, data)
                    webhooks = dict.fromkeys(choose_webhooks(due.kind, standing.limit.owner))
                    _queue(connection, alert, webhooks)
                    told[place].append(mark)
                    made.append(alert)
        return tuple(made), {place: tuple(marks) for place, marks in told.items()}

    def load_page(
        self,
        *,
        limit: int,
        before_id: int | None = None,
        owner: str | None = None,
        kind: AlertKind | None = None,
        state: DeliveryState | None = None,
    ) -> tuple[Alert, ...]:
        """The newest first, those older than `before_id` alone.

        Args:
            state: only those of which a delivery is in this state.
        """
        query = select(alerts).order_by(alerts.c.id.desc()).limit(limit)
        if before_id is not None:
            query = query.where(alerts.c.id < before_id)
        if owner is not None:
            query = query.where(alerts.c.owner == owner[:OWNER_MAX])
        if kind is not None:
            query = query.where(alerts.c.kind == kind.value)
        if state is not None:
            is_of_it = (deliveries.c.alert_id == alerts.c.id) & (deliveries.c.state == state.value)
            query = query.where(exists().where(is_of_it))
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
            sent = _load_deliveries(connection, [row["id"] for row in rows])
        return tuple(make_alert(row, sent.get(row["id"], ())) for row in rows)

    def prune(self, before_ns: int, limit: int = 1000) -> int:
        """Removes so many of the alerts that are older, and says how many; none that is still on its way."""
        is_waiting = exists().where(
            (deliveries.c.alert_id == alerts.c.id) & (deliveries.c.state == DeliveryState.WAITING.value)
        )
        old = select(alerts.c.id).where(alerts.c.at_ns < before_ns, ~is_waiting).limit(limit)
        with self._database.begin() as connection:
            ids = list(connection.execute(old).scalars())
            if ids:
                connection.execute(delete(deliveries).where(deliveries.c.alert_id.in_(ids)))
                connection.execute(delete(alerts).where(alerts.c.id.in_(ids)))
        return len(ids)


def make_limit_key(limit_id: str) -> str:
    """Names a limit in few letters."""
    return hashlib.sha256(limit_id.encode()).hexdigest()[:32]


def make_alert(row: RowMapping, sent: Sequence[Delivery] = ()) -> Alert:
    return Alert(
        id=row["id"],
        event_id=row["event_id"],
        at_ns=row["at_ns"],
        kind=AlertKind(row["kind"]),
        limit_id=row["limit_id"],
        owner=row["owner"],
        share=row["share"],
        data=msgspec.json.decode(row["data"], type=dict[str, object]),
        deliveries=sent,
    )


def _load_marks(connection: Connection, places: Sequence[Place]) -> dict[Place, list[Mark]]:
    found: dict[Place, list[Mark]] = {place: [] for place in places}
    columns = (alerts.c.limit_key, alerts.c.begins_ns, alerts.c.kind, alerts.c.share, alerts.c.amount)
    query = select(*columns, alerts.c.at_ns).where(
        tuple_(alerts.c.limit_key, alerts.c.begins_ns).in_(list(found))
    )
    for row in connection.execute(query):
        found[row.limit_key, row.begins_ns].append(
            Mark(AlertKind(row.kind), row.share, row.amount, row.at_ns)
        )
    return found


def _insert(
    connection: Connection, standing: Standing, mark: Mark, place: Place, data: dict[str, object]
) -> Alert:
    limit = standing.limit
    event_id = f"alert_{secrets.token_hex(16)}"
    values = {
        "event_id": event_id,
        "at_ns": mark.at_ns,
        "kind": mark.kind.value,
        "limit_key": place[0],
        "limit_id": limit.id,
        "owner": limit.owner[:OWNER_MAX],
        "begins_ns": place[1],
        "share": mark.share,
        "amount": mark.amount,
        "data": msgspec.json.encode(data).decode(),
    }
    made = connection.execute(insert(alerts).values(values).returning(alerts.c.id)).scalar_one()
    return Alert(
        id=made,
        event_id=event_id,
        at_ns=mark.at_ns,
        kind=mark.kind,
        limit_id=limit.id,
        owner=limit.owner,
        share=mark.share,
        data=data,
    )


def _queue(connection: Connection, alert: Alert, webhooks: Iterable[str]) -> None:
    rows = [
        {
            "alert_id": alert.id,
            "webhook": webhook,
            "state": DeliveryState.WAITING.value,
            "attempts": 0,
            "due_ns": alert.at_ns,
            "error": "",
        }
        for webhook in webhooks
    ]
    if rows:
        connection.execute(insert(deliveries), rows)


def _load_deliveries(connection: Connection, ids: Sequence[int]) -> Mapping[int, tuple[Delivery, ...]]:
    found: dict[int, list[Delivery]] = {}
    if ids:
        query = select(deliveries).where(deliveries.c.alert_id.in_(ids)).order_by(deliveries.c.webhook)
        for row in connection.execute(query).mappings():
            found.setdefault(row["alert_id"], []).append(_make_delivery(row))
    return {alert_id: tuple(each) for alert_id, each in found.items()}


def _make_delivery(row: RowMapping) -> Delivery:
    return Delivery(
        webhook=row["webhook"],
        state=DeliveryState(row["state"]),
        attempts=row["attempts"],
        due_ns=row["due_ns"],
        ended_ns=row["ended_ns"],
        status=row["status"],
        error=row["error"],
    )
