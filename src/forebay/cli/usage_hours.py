"""When the tokens of each row of `forebay usage` were used, drawn as a line of little bars.  Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.ledger.usage import HOUR_S, UsageBy, UsageRow

MARKS_MAX: Final = 25  #: the last 24 hours touch so many
_SPARKS: Final = "▁▂▃▄▅▆▇█"

Group = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Tokens of each hour from the first to the last, for each group."""

    tokens: Mapping[Group, Sequence[int]]
    hours_per_mark: int

    def draw(self, row: UsageRow) -> str:
        return compute_sparkline(self.tokens.get(_group_of(row), ()))

    @property
    def title(self) -> str:
        return "By hour" if self.hours_per_mark == 1 else f"By {self.hours_per_mark} hours"


def fold_hours(
    rows: Sequence[UsageRow],
    count: Callable[[UsageRow], int],
    *,
    first_s: int | None,
    now_s: int,
    marks_max: int = MARKS_MAX,
) -> Hours:
    """Adds rows up by hour, or by as many hours as let the line fit.

    Args:
        rows: grouped by hour, and by whatever else.
        count: a row's tokens.
        first_s: Unix seconds at which the line begins; None begins it with the first row.
        now_s: Unix seconds in the hour at which it ends.
        marks_max: how many marks fit.
    """
    first = min((row.start_s or 0 for row in rows), default=now_s) if first_s is None else first_s
    last_hour = now_s // HOUR_S
    hours = max(1, last_hour - first // HOUR_S + 1)
    per_mark = -(-hours // marks_max)
    marks = -(-hours // per_mark)
    tokens: dict[Group, list[int]] = {}
    for row in rows:
        # The last mark ends with the present hour; what a clock ahead of ours wrote belongs to it.
        ago = max(0, last_hour - (row.start_s or 0) // HOUR_S) // per_mark
        if ago < marks:
            tokens.setdefault(_group_of(row), [0] * marks)[marks - 1 - ago] += count(row)
    return Hours(tokens=tokens, hours_per_mark=per_mark)


def compute_sparkline(values: Sequence[int]) -> str:
    """One character for each value, its height by the highest."""
    peak = max(values, default=0) or 1
    return "".join(_SPARKS[round(value / peak * (len(_SPARKS) - 1))] for value in values)


def can_show_hours(by: Sequence[UsageBy]) -> bool:
    """Whether rows stand for a time of any length: those of an hour or a day say when already."""
    return not {UsageBy.HOUR, UsageBy.DAY} & set(by)


def _group_of(row: UsageRow) -> Group:
    return (
        *(row.key, row.model, row.target, row.status),
        *(row.team, row.project, row.pool, row.tier, row.region),
        *(row.version, row.experiment, row.variant, row.tag),
    )
