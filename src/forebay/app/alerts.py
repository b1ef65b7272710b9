"""Looks at the limits every second and has told what is due of them; what was told goes its way by itself.

Level-triggered: what is due is found from how limits stand now, so a look that failed is made good by the
next.  What was due while the database refused waits in memory, also beyond the end of its period.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from forebay.app.alert_delivery import AlertDelivery
from forebay.app.config_alerts import AlertsConfig
from forebay.core.clock import Clock
from forebay.core.errors import ForebayError
from forebay.core.limits import Kind, Limit
from forebay.gateway.alerts import Alert
from forebay.gateway.policy.alerting import Mark, choose_due, is_uncertain, may_be_due
from forebay.gateway.policy.lending import Standing
from forebay.gateway.repo_alerts import TOLD_MAX, AlertRepo, Place, make_limit_key

START_S: Final = 3.0  #: after a start, for workers to say what they hold
LOOK_S: Final = 1.0
AT_ONCE: Final = 100  #: limits that are looked at before others get a turn of the event loop
RECALLS_MAX: Final = 100  #: limits whose loans are asked back in one look
PENDING_MAX: Final = 20_000  #: limits in a period that wait for the database
KEPT_DAYS: Final = 90  #: an alert that is older is removed
CLEAN_S: Final = 3600.0

logger = logging.getLogger("forebay.alerts")


class Limits(Protocol):
    """The authority over the limits, as far as alerts need it."""

    @property
    def limits(self) -> tuple[Limit, ...]: ...

    def list_standings(self, limit_ids: Iterable[str] | None = None) -> list[Standing]: ...

    async def call_in(self, limit_ids: Iterable[str]) -> None: ...


class Alerts:
    """See the module.

    Args:
        get_config: the configuration in force.
    """

    def __init__(
        self,
        limits: Limits,
        repo: AlertRepo,
        delivery: AlertDelivery,
        get_config: Callable[[], AlertsConfig],
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._repo = repo
        self._delivery = delivery
        self._get_config = get_config
        self._clock = clock
        self._known: tuple[Limit, ...] = ()  #: those that `_keys` was made of
        self._keys: dict[str, str] = {}  #: of limits that may be told of, by id
        self._marks: dict[str, tuple[int, tuple[Mark, ...]]] = {}  #: by key, with the beginning of the period
        self._pending: dict[Place, tuple[Standing, int]] = {}
        self._error: str | None = None
        self._clean_at = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._delivery.run())
            group.create_task(self._look_forever())

    async def _look_forever(self) -> None:
        # Until the workers are back what they hold counts as used, and a share is told once and for all.
        await asyncio.sleep(START_S)
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """One look at all limits.  What fails is logged once and tried again."""
        try:
            await self._find_due()
            await self._tell_pending()
            await self._clean()
        except Exception as error:  # the loop's outer edge
            known = isinstance(error, OSError | ForebayError)
            if self._error is None:
                logger.error("alerts can't be told: %s", error, exc_info=None if known else error)
            self._error = str(error)
            return
        if self._error is not None:
            logger.info("alerts are told again")
            self._error = None

    async def _find_due(self) -> None:
        self._learn_limits()
        uncertain: list[str] = []
        for ids in _cut(self._keys, AT_ONCE):
            uncertain += self._note_due(self._limits.list_standings(ids))
            await asyncio.sleep(0)
        if uncertain:  # near a share, workers say what they have not spent of their loans
            ids = uncertain[:RECALLS_MAX]
            try:
                await self._limits.call_in(ids)
            except ForebayError:
                return  # an authority that is away: what they hold counts as not used
            self._note_due(self._limits.list_standings(ids))

    def _learn_limits(self) -> None:
        limits = self._limits.limits
        if limits is self._known:
            return
        self._known = limits
        self._keys = {limit.id: make_limit_key(limit.id) for limit in limits if _may_be_told_of(limit)}
        kept = set(self._keys.values())
        self._marks = {key: marks for key, marks in self._marks.items() if key in kept}

    def _note_due(self, standings: Sequence[Standing]) -> list[str]:
        """Takes down which are due; the ids of those that may be."""
        uncertain = []
        now_ns = self._clock.wall_ns()
        for standing in standings:
            if not may_be_due(standing):
                continue
            key, begins_ns = self._keys[standing.limit.id], standing.epoch
            known_ns, marks = self._marks.get(key, (0, ()))
            marks = marks if known_ns == begins_ns else ()
            if choose_due(standing, marks, now_ns):
                self._pending[key, begins_ns] = standing, now_ns
            if is_uncertain(standing, marks, now_ns):
                uncertain.append(standing.limit.id)
        return uncertain

    async def _tell_pending(self) -> None:
        while len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        for places in _cut(dict(self._pending), TOLD_MAX):
            standings = [self._pending[place] for place in places]
            choose = self._get_config().choose_webhooks
            told, marks = await asyncio.to_thread(self._repo.tell, standings, choose)
            self._absorb(told, marks)
            for place in places:
                del self._pending[place]

    def _absorb(self, told: Sequence[Alert], marks: Mapping[Place, tuple[Mark, ...]]) -> None:
        for (key, begins_ns), known in marks.items():
            if begins_ns >= self._marks.get(key, (0, ()))[0]:
                self._marks[key] = begins_ns, known
        for alert in told:
            logger.info("alert %s: %s", alert.event_id, spell_alert(alert))
        if told:
            self._delivery.wake()

    async def _clean(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._clean_at:
            return
        self._clean_at = now + CLEAN_S
        before_ns = self._clock.wall_ns() - KEPT_DAYS * 86_400 * 10**9
        while await asyncio.to_thread(self._repo.prune, before_ns):
            pass
        await asyncio.to_thread(self._delivery.expire)


def spell_alert(alert: Alert) -> str:
    """For a person: `share_reached: team growth has used 4012.5 of 5000 usd a month`."""
    data = alert.data
    return (
        f"{alert.kind.value}: {alert.owner} has used {data['used']} of {data['amount']} {data['unit']} "
        f"a {data['per']}"
    )


def _may_be_told_of(limit: Limit) -> bool:
    return bool(limit.alert_at) and limit.kind is Kind.CALENDAR and limit.period is not None


def _cut(keys: Mapping[Place, object] | Mapping[str, object], size: int) -> Iterator[list]:  # type: ignore[type-arg]
    rest = iter(tuple(keys))
    while part := list(islice(rest, size)):
        yield part
