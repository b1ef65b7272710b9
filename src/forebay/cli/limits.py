"""`forebay limits`: what teams, projects and keys may use, and what is left of it, the tightest first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.cli.admin_client import fetch_admin
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import Failure, Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.core.limits import NANO_PER_USD

BAR_MARKS: Final = 10
FULL: Final = 0.9  #: from this part on a limit is shown as nearly used up

_COLUMNS: Final = (
    Column(title="Owner"),
    Column(title="Limit", kind="whole"),
    Column(title="Models", rank=2),
    Column(title="Left", align="right", kind="whole"),
    Column(title="Used", kind="whole", rank=1),
    Column(title="Resets", kind="whole", rank=3),
    Column(title="Computed from", kind="prose", rank=4),
)


class _Use(msgspec.Struct, kw_only=True):
    """A signal as a limit sees it."""

    name: str
    value: float
    fresh: list[str]
    stale: list[str]

    def spell(self) -> str:
        value = int(self.value) if self.value.is_integer() else self.value
        if not self.stale:
            return f"{self.name} {value:,}" + ("" if self.fresh else " by default")
        projects = "" if len(self.stale) == 1 else f" of {len(self.stale)} projects"
        return f"{self.name} {value:,}, stale{projects}"


class _Limit(msgspec.Struct, kw_only=True):
    """One of `GET /admin/v1/limits`, as far as it is shown."""

    owner: str
    measure: str
    unit: str
    amount: int
    per: str | None
    models: list[str]
    left: int
    when_exceeded: str = "refuse"
    exceeded_at_s: float | None = None
    resets_at_s: float | None
    expression: str | None
    signals: list[_Use]

    @property
    def used(self) -> float:
        """The part that is used or lent; more than 1 while more was used than there was."""
        return (self.amount - self.left) / self.amount if self.amount else 1.0

    def spell(self, units: int) -> str:
        if self.unit != "nano_usd":
            return f"{units:,}"
        usd = units / NANO_PER_USD
        return f"{usd:,.2f}" if abs(self.amount) >= 100 * NANO_PER_USD else f"{usd:,.6f}"


class _LimitList(msgspec.Struct, kw_only=True):
    data: list[_Limit]


def show_limits(file: Path | None, *, as_json: bool) -> Outcome:
    body = fetch_admin(load_usable_config(file), "/limits")
    if as_json:
        print_line(msgspec.json.format(body, indent=2).decode())
        return Outcome.OK
    try:
        limits = msgspec.json.decode(body, type=_LimitList).data
    except msgspec.DecodeError:
        raise Failure(
            "the control plane does not answer like this version of Forebay",
            hint="restart `forebay up` after an update",
        ) from None
    if not limits:
        print_note("no limits: forebay.yaml has none for a team, project or key that has a live key")
        return Outcome.OK
    now_s = SystemClock().wall_ns() / 1e9
    limits.sort(key=lambda limit: (-limit.used, limit.owner))
    print_table(Table(columns=_COLUMNS, rows=[_make_row(limit, now_s) for limit in limits]))
    return Outcome.OK


def _make_row(limit: _Limit, now_s: float) -> Sequence[str | Cell]:
    when = "at a time" if limit.per is None else f"a {limit.per}"
    what = limit.measure.removesuffix("_requests" if limit.per is None else "").replace("_", " ")
    what = "USD" if limit.unit == "nano_usd" else what
    style = "red" if limit.used >= 1 else "yellow" if limit.used >= FULL else ""
    return (
        limit.owner,
        f"{limit.spell(limit.amount)} {what} {when}{_describe_state(limit)}",
        "" if limit.models == ["*"] else " ".join(limit.models),
        Cell(text=limit.spell(limit.left), style=style),
        Cell(text=f"{draw_bar(limit.used)} {int(max(0.0, limit.used) * 100):3}%", style=style),
        format_wait(None if limit.resets_at_s is None else limit.resets_at_s - now_s),
        _spell_source(limit),
    )


def _spell_source(limit: _Limit) -> str:
    """`600 + 1.5 * ccu (ccu 100)`; empty where the amount is fixed."""
    if limit.expression is None:
        return ""
    uses = "; ".join(use.spell() for use in limit.signals)
    return f"{limit.expression} ({uses})" if uses else limit.expression


def _describe_state(limit: _Limit) -> str:
    """What holds since a request found no room."""
    if limit.exceeded_at_s is None:
        return ""
    return {"downgrade": ", downgrades", "throttle": ", throttles"}.get(limit.when_exceeded, ", was exceeded")


def draw_bar(part: float) -> str:
    """A bar of `BAR_MARKS` marks; a part that is neither nothing nor all is never drawn as one of them."""
    marks = round(part * BAR_MARKS)
    if 0 < part < 1:
        marks = min(max(marks, 1), BAR_MARKS - 1)
    marks = min(max(marks, 0), BAR_MARKS)
    return "█" * marks + "░" * (BAR_MARKS - marks)


def format_wait(seconds: float | None) -> str:
    """`in 12 s`, `in 5 min`, `in 3 h 20 min`, `in 12 d`; empty where there is nothing to wait for."""
    if seconds is None or seconds < 0.5:
        return ""
    whole = round(seconds)
    if whole < 120:
        return f"in {whole} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"in {minutes} min"
    if minutes < 48 * 60:
        return f"in {minutes // 60} h {minutes % 60} min"
    return f"in {round(seconds / 86_400)} d"
