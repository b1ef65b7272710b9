"""How far back the ledger still has what it once had: a mark for records, for hourly and for daily totals.

What lies before its mark may be gone, wholly or in part, so nobody may answer from it.  Marks only go up, and
only `retention` moves them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, select

from forebay.core.errors import CallerError
from forebay.ledger.tables import removals


class Kept(StrEnum):
    """What is kept for a time of its own.  Each can be made from the one before it."""

    RECORDS = "records"
    HOURLY = "hourly"
    DAILY = "daily"


class NoLongerKept(CallerError):
    """The answer would need what was removed."""

    status = 409
    code = "no_longer_kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What has become of one kind.  `removed` counts rows since the ledger began."""

    gone_before_ns: int = 0
    removed: int = 0
    removed_at_ns: int | None = None  #: when the last of them went


_NO_MARK: Final = Mark()


def load_marks(connection: Connection) -> dict[Kept, Mark]:
    """Of all kinds; where nothing was removed yet, all of it is there."""
    marks = dict.fromkeys(Kept, _NO_MARK)
    for row in connection.execute(select(removals)).mappings():
        marks[Kept(row["kind"])] = Mark(
            gone_before_ns=row["gone_before_ns"], removed=row["removed"], removed_at_ns=row["removed_at_ns"]
        )
    return marks


def check_kept(marks: Mapping[Kept, Mark], kind: Kept, since_ns: int | None, hint: str) -> None:
    """Raises NoLongerKept when something from `since_ns` on may be gone; None is the beginning of all."""
    gone_before_ns = marks[kind].gone_before_ns
    if max(since_ns or 0, 0) < gone_before_ns:
        what = "records" if kind is Kept.RECORDS else f"{kind.value} totals"
        raise NoLongerKept(
            f"the {what} before {format_day(gone_before_ns)} were removed (ledger.retention): {hint}, or ask "
            f"from {format_day(gone_before_ns)} on",
            param="since",
        )


def format_day(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, tz=UTC).strftime("%Y-%m-%d")
