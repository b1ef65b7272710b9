"""`forebay alerts`: what was told of limits, whether it has arrived, and a test of the webhooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from forebay.app.control_alerts import show_alert
from forebay.app.webhook_sender import TOTAL_S
from forebay.cli.admin_client import fetch_admin
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import format_moment, open_repos, print_json
from forebay.cli.terminal import BadOption, Failure, Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.gateway.alerts import Alert, Delivery, DeliveryState
from forebay.gateway.policy.alerting import WHOLE, AlertKind

_Choice = TypeVar("_Choice", bound=StrEnum)
_STYLES: Final = {DeliveryState.FAILED: "red", DeliveryState.WAITING: "yellow", DeliveryState.DELIVERED: ""}
_COLUMNS: Final = (
    Column(title="When", kind="whole"),
    Column(title="Owner"),
    Column(title="Event", kind="whole"),
    Column(title="Used", align="right", kind="whole"),
    Column(title="Of", align="right", kind="whole", rank=1),
    Column(title="Period", kind="whole", rank=2),
    Column(title="Told", kind="prose", rank=3),
)
_TEST_COLUMNS: Final = (
    Column(title="Webhook"),
    Column(title="Answer", kind="whole"),
    Column(title="Took", align="right", kind="whole", rank=1),
    Column(title="What came back", kind="prose"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertOptions:
    """Options of `forebay alerts list`."""

    owner: str | None
    event: str | None
    delivery: str | None
    limit: int
    as_json: bool


class _Test(msgspec.Struct, kw_only=True):
    """One of `POST /admin/v1/alerts/test`."""

    webhook: str
    status: int | None
    error: str | None
    answer: str
    duration_s: float


class _TestList(msgspec.Struct, kw_only=True):
    data: list[_Test]


def list_alerts(file: Path | None, options: AlertOptions) -> Outcome:
    kind = _choose(AlertKind, "--event", options.event)
    state = _choose(DeliveryState, "--delivery", options.delivery)
    with open_repos(file) as repos:
        found = repos.alerts.load_page(limit=options.limit + 1, owner=options.owner, kind=kind, state=state)
    shown = found[: options.limit]
    if options.as_json:
        print_json([show_alert(alert).model_dump(mode="json") for alert in shown])
    elif not shown:
        is_narrow = options.owner or kind or state
        print_note(
            "no such alerts; an owner reads `team growth`, `project growth/search` or `key key_…`"
            if is_narrow
            else "no alerts: a limit's rule asks for them with `alert_at`"
        )
    else:
        print_table(Table(columns=_COLUMNS, rows=[_make_row(alert) for alert in shown]))
    if len(found) > options.limit:
        print_note(f"there are older ones; `--limit {options.limit * 10}` shows more")
    return Outcome.OK


def test_webhooks(file: Path | None, *, as_json: bool) -> Outcome:
    config = load_usable_config(file)
    body = fetch_admin(config, "/alerts/test", method="POST", timeout_s=3 * TOTAL_S)
    try:
        tests = msgspec.json.decode(body, type=_TestList).data
    except msgspec.DecodeError:
        raise Failure(
            "the control plane does not answer like this version of Forebay",
            hint="restart `forebay up` after an update",
        ) from None
    if as_json:
        print_line(msgspec.json.format(body, indent=2).decode())
    elif not tests:
        print_note(
            "no webhooks: the configuration in force names none under `alerts` "
            "(`forebay doctor` tells of edits that were refused)"
        )
    else:
        print_table(Table(columns=_TEST_COLUMNS, rows=[_make_test_row(test) for test in tests]))
    return Outcome.PROBLEM if any(test.error for test in tests) else Outcome.OK


def _choose(kind: type[_Choice], option: str, word: str | None) -> _Choice | None:
    if word is None:
        return None
    try:
        return kind(word)
    except ValueError:
        raise BadOption(f"can't understand {option} {word}", hint=f"possible: {', '.join(kind)}") from None


def _make_row(alert: Alert) -> Sequence[str | Cell]:
    data = alert.data
    event = f"{alert.share * 100 / WHOLE:g}% reached" if alert.share else alert.kind.value.replace("_", " ")
    period = f"{data.get('per')} from {data.get('period_start')}"
    style = "" if alert.kind is AlertKind.SHARE_REACHED and alert.share < WHOLE else "red"
    return (
        format_moment(alert.at_ns),
        alert.owner,
        Cell(text=event, style=style),
        str(data.get("used", "")),
        f"{data.get('amount', '')} {data.get('unit', '')}",
        period,
        _describe_deliveries(alert.deliveries),
    )


def _describe_deliveries(deliveries: Sequence[Delivery]) -> Cell:
    """`delivered`, or what is wrong with which webhook."""
    late = [each for each in deliveries if each.state is not DeliveryState.DELIVERED]
    if not late:
        return Cell(text=f"{len(deliveries)} delivered" if deliveries else "")
    worst = (
        DeliveryState.FAILED if any(each.state is DeliveryState.FAILED for each in late) else late[0].state
    )
    words = (f"{each.webhook} {each.state.value}{_explain(each)}" for each in late)
    return Cell(text="; ".join(words), style=_STYLES[worst])


def _explain(delivery: Delivery) -> str:
    if not delivery.attempts:
        return ""
    return f" after {delivery.attempts} tries: {delivery.error}" if delivery.error else ""


def _make_test_row(test: _Test) -> Sequence[str | Cell]:
    style = "red" if test.error else ""
    status = "none" if test.status is None else str(test.status)
    words = test.error or test.answer or "delivered"
    return (
        test.webhook,
        Cell(text=status, style=style),
        f"{test.duration_s:.2f} s",
        Cell(text=words, style=style),
    )
