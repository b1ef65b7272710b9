"""The nouns of reported load: what an application says about its project, such as its concurrent users.

Pure: it validates and describes.  `policy.signals` decides what a report is worth, `repo_signals` keeps it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from forebay.core.errors import CallerError, InvalidValue
from forebay.core.expressions import NAME

VALUE_MAX: Final = 10**12
MICRO: Final = 10**6  #: values are kept in millionths, so that they stay integers
TTL_MAX_S: Final = 7 * 86_400
PER_PROJECT_MAX: Final = 50  #: signals


class SignalNotFound(CallerError):
    status = 404
    code = "signal_not_found"


class TooManySignals(CallerError):
    status = 409
    code = "too_many_signals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an application says.

    Attributes:
        value_micro: in millionths.
        ttl_ns: for how long it holds; None for as long as the configuration says.
    """

    value_micro: int
    ttl_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecord:
    """The last report of one signal of one project.

    Attributes:
        reported_ns: when it came, by the clock of the control plane that took it.
        version: goes up with each report.
    """

    team: str
    project: str
    name: str
    value_micro: int
    reported_ns: int
    ttl_ns: int | None = None
    version: int = 1

    @property
    def place(self) -> tuple[str, str, str]:
        return self.team, self.project, self.name

    @property
    def value(self) -> int | float:
        """For people."""
        return spell_micro(self.value_micro)


def spell_micro(value_micro: int) -> int | float:
    """Millionths as a number for people: whole where it is."""
    whole, rest = divmod(value_micro, MICRO)
    return value_micro / MICRO if rest else whole


def make_report(value: float, ttl_s: float | None = None) -> Report:
    """Raises InvalidValue."""
    if not 0 <= value <= VALUE_MAX:  # which NaN is not either
        raise InvalidValue(f"a signal's value is a number from 0 to {VALUE_MAX}", param="value")
    if ttl_s is not None and not 1 <= ttl_s <= TTL_MAX_S:
        raise InvalidValue(f"ttl_s is 1 to {TTL_MAX_S} seconds", param="ttl_s")
    exact = Decimal(repr(value)) * MICRO
    return Report(
        value_micro=int(exact.to_integral_value()),
        ttl_ns=None if ttl_s is None else int(ttl_s * 10**9),
    )


def check_signal_name(name: str) -> None:
    """Raises InvalidValue."""
    if not re.fullmatch(NAME, name):
        raise InvalidValue(
            f"signal {name[:100]!r}: use 1 to 40 of a-z, 0-9 and _, a letter first", param="name"
        )


def describe_signal(record: SignalRecord) -> Mapping[str, object]:
    """For the audit."""
    return {"team": record.team, "project": record.project, "name": record.name, "value": record.value}
