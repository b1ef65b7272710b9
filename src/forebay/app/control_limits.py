"""The admin API's route for limits: what each allows, and what is left of it.

The authority (`quota_server`) knows; nothing is changed here, since `forebay.yaml` says what holds.
"""

from typing import Literal

from fastapi import FastAPI
from pydantic import Field

from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.live_amounts import LiveAmounts
from forebay.app.quota_server import QuotaServer
from forebay.core.clock import Clock
from forebay.core.limits import Exceeded, Kind, Limit, Measure, Period
from forebay.gateway.policy.lending import Standing
from forebay.gateway.policy.signals import Reading
from forebay.gateway.signals import spell_micro


class SignalUse(View):
    """A signal as the expression of a limit sees it."""

    name: str
    value: float = Field(
        description="That it counts with: of a team's limit, the sum of all its projects that report."
    )
    fresh: list[str] = Field(description="Projects whose reports count, as `TEAM/PROJECT`.")
    stale: list[str] = Field(description="Projects whose reports are too old: for each the default counts.")


class LimitView(View):
    id: str = Field(description="Names it; the same whatever becomes of its amount.")
    owner: str = Field(description="Whose it is: `team growth`, `project growth/search`, `key key_…`.")
    measure: Measure = Field(description="What it counts.")
    unit: Literal["requests", "tokens", "nano_usd"] = Field(
        description="Of `amount`, `left` and `lent`; a nano-USD is a billionth of a USD."
    )
    amount: int = Field(description="At present, in that unit.")
    expression: str | None = Field(description="What the amount is computed from; null where it is fixed.")
    signals: list[SignalUse] = Field(description="What the expression sees.")
    per: Period | None = Field(description="In which time; null for `concurrent_requests`.")
    window: Kind | None = Field(description="How time gives back; null for `concurrent_requests`.")
    time_zone: str | None = Field(description="In which a calendar's periods begin; null for others.")
    models: list[str] = Field(description="Patterns over the public names that it counts.")
    left: int = Field(
        description="Neither used nor lent to a worker; negative while more was used than there was."
    )
    lent: int = Field(
        description="Lent to workers, which may have used it; for `concurrent_requests`, in use or reserved."
    )
    resets_at_s: float | None = Field(
        description="Unix time at which all of it is there again if nobody takes any; of a calendar, at "
        "which the next period begins; null where time does not tell."
    )
    when_exceeded: Exceeded = Field(description="What becomes of requests for which there is no room.")
    exceeded_at_s: float | None = Field(
        description="Unix time at which it first had no room in this period; null while it had."
    )


class LimitList(View):
    data: list[LimitView]


class LimitRoutes:
    """See the module."""

    def __init__(self, quota: QuotaServer, clock: Clock, live: LiveAmounts | None = None) -> None:
        self._quota = quota
        self._clock = clock
        self._live = live

    def install(self, app: FastAPI) -> None:
        RouteAdder(app)("GET", "/limits", self.get_limits, "Limits, and what is left of them")

    async def get_limits(self) -> LimitList:
        """In the order of their ids: those of `forebay.yaml`, for owners that have a live key."""
        now_ns = self._clock.wall_ns()
        return LimitList(
            data=[self._show(standing, now_ns) for standing in await self._quota.fetch_standings()]
        )

    def _show(self, standing: Standing, now_ns: int) -> LimitView:
        readings = () if self._live is None else self._live.read(standing.limit.id)
        return _show(standing, [_show_use(reading) for reading in readings], now_ns)


def _show_use(reading: Reading) -> SignalUse:
    value = spell_micro(reading.value_micro)
    return SignalUse(name=reading.name, value=value, fresh=list(reading.fresh), stale=list(reading.stale))


def _show(standing: Standing, signals: list[SignalUse], now_ns: int) -> LimitView:
    limit = standing.limit
    is_timed = limit.period is not None
    return LimitView(
        id=limit.id,
        owner=limit.owner,
        measure=limit.measure,
        unit=_find_unit(limit),
        amount=limit.amount,
        expression=limit.expression or None,
        signals=signals,
        per=limit.period,
        window=limit.kind if is_timed else None,
        time_zone=limit.time_zone if is_timed and limit.kind is Kind.CALENDAR else None,
        models=list(limit.models),
        left=standing.left,
        lent=standing.lent,
        resets_at_s=None if standing.full_in_ns is None else (now_ns + standing.full_in_ns) / 1e9,
        when_exceeded=limit.exceeded,
        exceeded_at_s=standing.exceeded_ns / 1e9 if standing.exceeded_ns else None,
    )


def _find_unit(limit: Limit) -> Literal["requests", "tokens", "nano_usd"]:
    if limit.measure is Measure.COST:
        return "nano_usd"
    return "requests" if limit.measure in (Measure.REQUESTS, Measure.CONCURRENT) else "tokens"
