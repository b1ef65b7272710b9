"""Limits: how much of what a team, a project or a key may use, in which time.  Pure.

A limit is compiled by the control plane, metered by the authority that runs there, and spent by the workers
from what the authority lends them.
"""

from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from forebay.core.events import Tokens

NANO_PER_USD = 10**9
WEIGHT_UNIT = 1000  #: weights are in thousandths, so that units stay integers


class Measure(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOTAL_TOKENS = "total_tokens"
    CONCURRENT = "concurrent_requests"
    COST = "cost_usd"  #: by the price book; its units are nano-USD

    __hash__ = str.__hash__


class Period(StrEnum):
    """The time in which the amount may be used."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    __hash__ = str.__hash__


class Kind(StrEnum):
    """How time gives back what was used."""

    BUCKET = "bucket"  #: all the time, evenly, up to the amount
    CALENDAR = "calendar"  #: all of it, when the next period of the calendar begins


class WhenAway(StrEnum):
    """What workers do while the authority does not answer."""

    SHARE = "share"  #: each goes on with its part of every limit
    OPEN = "open"  #: all requests pass, and are counted later
    CLOSED = "closed"  #: requests for which nothing is lent are refused


class Exceeded(StrEnum):
    """What becomes of requests for which a limit has no room."""

    REFUSE = "refuse"
    THROTTLE = "throttle"  #: they pass at the rate of another limit, and are counted
    DOWNGRADE = "downgrade"  #: they go to a cheaper model, and are counted


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """How much a token of each class counts, in thousandths."""

    input: int = WEIGHT_UNIT
    input_cached: int = WEIGHT_UNIT
    input_audio: int = WEIGHT_UNIT
    output: int = WEIGHT_UNIT
    output_reasoning: int = WEIGHT_UNIT
    output_audio: int = WEIGHT_UNIT
    input_cache_write: int = WEIGHT_UNIT


EVEN = Weights()


class QueueRules(msgspec.Struct, frozen=True, kw_only=True):
    """How requests may wait for limits that have no room.  For each worker.

    Attributes:
        wait_max_s: no request waits longer, whatever it asks for; 0 where none waits.
        requests_max: that wait at a time, for whatever limits.
        tenant_requests_max: of these, of one owner in one class and for one limit.
        default_wait_s: how long a request waits that does not say, by its class in the order of
            `core.keys.PRIORITIES`.
    """

    wait_max_s: float = 30.0
    requests_max: int = 1000
    tenant_requests_max: int = 250
    default_wait_s: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of one owner.

    Attributes:
        id: unique, and the same as long as owner, measure, period, kind and models are.
        owner: whose it is, for people: `team growth`, `project growth/search`, `key key_1234`.
        amount: units in each period, or at a time for `concurrent_requests`.
        period: None for `concurrent_requests`.
        models: glob patterns over the public names to which it applies.
        expression: what the amount is computed from, empty where it is fixed.
        exceeded: what follows once it has no room, grace and all.
        throttle: id of the limit that holds as well from then on.
        downgrade_to: public name of the model that answers from then on.
        grace_units: so many more may be used, for `grace_ns` after it was first exceeded in a period.
        alert_at: parts of the amount, in thousandths, at whose use somebody is told.
    """

    id: str
    owner: str
    measure: Measure
    amount: int
    period: Period | None = None
    kind: Kind = Kind.BUCKET
    time_zone: str = "UTC"
    weights: Weights = EVEN
    models: tuple[str, ...] = ("*",)
    expression: str = ""
    exceeded: Exceeded = Exceeded.REFUSE
    throttle: str = ""
    downgrade_to: str = ""
    grace_units: int = 0
    grace_ns: int = 0
    alert_at: tuple[int, ...] = ()

    def applies_to(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def describe(self) -> str:
        """For a person who has met it: `600 requests a minute of team growth`."""
        when = " at a time" if self.period is None else f" a {self.period.value}"
        return f"{self.spell(self.amount)}{when} of {self.owner}"

    def spell(self, units: int) -> str:
        """So many of its units, for a person: `600 requests`, `12.5 USD`."""
        if self.measure is Measure.COST:
            return f"{spell_usd(units)} USD"
        return f"{units} {self.measure.value.replace('_', ' ')}"


def spell_usd(nano: int) -> str:
    """Exactly, without needless zeros: `5000`, `0.0125`."""
    whole, rest = divmod(abs(nano), NANO_PER_USD)
    sign = "-" if nano < 0 else ""
    return f"{sign}{whole}.{rest:09}".rstrip("0").rstrip(".") if rest else f"{sign}{whole}"


def count_units(limit: Limit, tokens: Tokens) -> int:
    """What a request's tokens are under a limit, rounded up; 1 where the limit counts requests.

    Not for limits of cost: a price book knows that.
    """
    weights = limit.weights
    match limit.measure:
        case Measure.INPUT_TOKENS:
            return -(-_weigh_input(weights, tokens) // WEIGHT_UNIT)
        case Measure.OUTPUT_TOKENS:
            return -(-_weigh_output(weights, tokens) // WEIGHT_UNIT)
        case Measure.TOTAL_TOKENS:
            return -(-(_weigh_input(weights, tokens) + _weigh_output(weights, tokens)) // WEIGHT_UNIT)
        case _:
            return 1


def _weigh_input(weights: Weights, tokens: Tokens) -> int:
    return (
        weights.input * (tokens.input or 0)
        + weights.input_cached * (tokens.input_cached or 0)
        + weights.input_audio * (tokens.input_audio or 0)
        + weights.input_cache_write * (tokens.input_cache_write or 0)
    )


def _weigh_output(weights: Weights, tokens: Tokens) -> int:
    return (
        weights.output * (tokens.output or 0)
        + weights.output_reasoning * (tokens.output_reasoning or 0)
        + weights.output_audio * (tokens.output_audio or 0)
    )
