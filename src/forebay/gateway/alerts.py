"""An alert, and its way to each webhook, as records.  Pure: the text that goes out is made here.

A webhook is known by its address as it stands in the configuration, which may be a reference; no secret is in
any record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from forebay.core.limits import Limit, Measure, spell_usd
from forebay.gateway.policy.alerting import WHOLE, AlertKind, Due
from forebay.gateway.policy.lending import Standing
from forebay.gateway.policy.meter import find_period

TYPE_PREFIX: Final = "forebay.limit."  #: of an event's type; the kind and `.v1` follow
TEST_TYPE: Final = "forebay.test.v1"


class DeliveryState(StrEnum):
    WAITING = "waiting"  #: to be sent, or to be sent again
    DELIVERED = "delivered"
    FAILED = "failed"  #: given up

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One alert's way to one webhook.  Times are nanoseconds since the epoch.

    Attributes:
        webhook: its address as configured.
        due_ns: when it is tried next, or given to somebody else if whoever tries it now says nothing.
        ended_ns: when it was delivered or given up.
        status: of the last answer, None where there was none.
        error: why the last try failed; empty if it did not.
    """

    webhook: str
    state: DeliveryState
    attempts: int
    due_ns: int
    ended_ns: int | None
    status: int | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that was told.

    Attributes:
        id: goes up in the order in which alerts commit.
        event_id: names it everywhere.
        share: thousandths; 0 where the kind has none.
        data: what is told of it, see `describe_alert`.
    """

    id: int
    event_id: str
    at_ns: int
    kind: AlertKind
    limit_id: str
    owner: str
    share: int
    data: Mapping[str, object]
    deliveries: Sequence[Delivery] = field(default=())


def find_alert_period(standing: Standing) -> tuple[int, int]:
    """Beginning and end of the period of the calendar; of a limit without one, both are 0."""
    limit = standing.limit
    if not standing.epoch or limit.period is None:
        return 0, 0
    return standing.epoch, find_period(limit.period, limit.time_zone, standing.epoch)[1]


def describe_alert(standing: Standing, due: Due) -> dict[str, object]:
    """What is told of an alert, as JSON has it; amounts are decimals in text, exact."""
    limit = standing.limit
    begins_ns, ends_ns = find_alert_period(standing)
    return {
        "limit": limit.id,
        "owner": limit.owner,
        "measure": limit.measure.value,
        "unit": "usd" if limit.measure is Measure.COST else limit.measure.value.rsplit("_", 1)[-1],
        "amount": spell_amount(limit, limit.amount),
        "used": spell_amount(limit, standing.used),
        "used_share": round(standing.used / limit.amount, 4) if limit.amount > 0 else None,
        "share": due.share / WHOLE if due.share else None,
        "shares_passed": [share / WHOLE for share in due.passed],
        "per": None if limit.period is None else limit.period.value,
        "time_zone": limit.time_zone,
        "period_start": format_time(begins_ns),
        "period_end": format_time(ends_ns),
        "models": list(limit.models),
        "consequence": limit.exceeded.value,
        "exceeded_at": format_time(standing.exceeded_ns) if standing.exceeded_ns else None,
        "grace": _describe_grace(standing),
    }


def _describe_grace(standing: Standing) -> dict[str, object] | None:
    limit = standing.limit
    if not limit.grace_units or not limit.grace_ns:
        return None
    ends = standing.exceeded_ns + limit.grace_ns if standing.exceeded_ns else 0
    return {
        "amount": spell_amount(limit, limit.grace_units),
        "ends_at": format_time(ends) if ends else None,
    }


def spell_amount(limit: Limit, units: int) -> str:
    """So many units of a limit as a decimal; USD where it counts them."""
    return spell_usd(units) if limit.measure is Measure.COST else str(units)


def format_time(time_ns: int) -> str:
    """RFC 3339, to the second."""
    return datetime.fromtimestamp(time_ns // 10**9, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def encode_cloud_event(alert: Alert, source: str) -> bytes:
    """The alert as a CloudEvent 1.0 in JSON; the same bytes whenever it is made."""
    event = {
        "specversion": "1.0",
        "id": alert.event_id,
        "source": source,
        "type": f"{TYPE_PREFIX}{alert.kind.value}.v1",
        "subject": alert.owner,
        "time": format_time(alert.at_ns),
        "datacontenttype": "application/json",
        "data": dict(alert.data),
    }
    return msgspec.json.encode(event)


def encode_test_event(event_id: str, source: str, now_ns: int) -> bytes:
    """An event that tells of nothing, to see whether it arrives."""
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": event_id,
            "source": source,
            "type": TEST_TYPE,
            "time": format_time(now_ns),
            "datacontenttype": "application/json",
            "data": {"message": "a test by `forebay alerts test`: nothing has happened"},
        }
    )
