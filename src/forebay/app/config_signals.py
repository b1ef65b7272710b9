"""Amounts that are expressions over reported load, and the signals that they name, in the section `limits`.

Says which amounts are valid and what they are in whole units; `config_limits` puts them into rules.  Pure.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import (
    Field,
    PlainSerializer,
    SerializationInfo,
    StrictFloat,
    StrictInt,
    WithJsonSchema,
    WrapValidator,
)
from pydantic import ValidatorFunctionWrapHandler as Handler

from forebay.app.config_prices import AMOUNT_MAX as USD_MAX
from forebay.app.config_prices import Amount as Money
from forebay.app.config_values import Section
from forebay.core.expressions import (
    NAME,
    TEXT_MAX,
    ExpressionInvalid,
    parse_combined,
    parse_expression,
)
from forebay.core.limits import NANO_PER_USD, Measure
from forebay.gateway.policy.signals import SignalRule, compute_default
from forebay.gateway.signals import MICRO, TTL_MAX_S, VALUE_MAX

AMOUNT_MAX: Final = 10**12
SIGNALS_MAX: Final = 50
STALE_AFTER_S: Final = 120.0


def _allow_expression(value: Any, handler: Handler) -> Any:
    """A text that is no plain number is an expression, and stays text."""
    if not isinstance(value, str) or is_number(value):
        return handler(value)
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}([T ].*)?", value.strip()):
        raise ValueError("is a date, and no amount")
    try:
        parse_expression(value)
    except ExpressionInvalid as error:
        raise ValueError(f"is neither a number nor an expression: {error}") from None
    return value


def is_number(text: str) -> bool:
    whole, _, rest = text.strip().partition(".")
    return whole.isdecimal() and (rest.isdecimal() or not rest)


def _check_money(amount: Decimal | str, handler: Handler) -> Any:
    found = handler(amount)
    if isinstance(found, Decimal) and found * NANO_PER_USD != int(found * NANO_PER_USD):
        raise ValueError("at most nine decimals: amounts are whole billionths of a USD")
    return found


def _dump_money(amount: Decimal | str, info: SerializationInfo) -> Any:
    return format(amount, "f") if info.mode == "json" and isinstance(amount, Decimal) else amount


_EXPRESSION_SCHEMA: Final = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX}

#: An `int`, or the text of an expression.
Amount = Annotated[
    StrictInt,
    Field(ge=0, le=AMOUNT_MAX),
    WrapValidator(_allow_expression),
    PlainSerializer(lambda amount: amount, return_type=int | str),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0, "maximum": AMOUNT_MAX}, _EXPRESSION_SCHEMA]}),
]
#: A `Decimal`, or the text of an expression.
Usd = Annotated[
    Money,
    WrapValidator(_check_money),
    WrapValidator(_allow_expression),
    PlainSerializer(_dump_money, return_type=Any),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0, "maximum": USD_MAX}, _EXPRESSION_SCHEMA]}),
]
SignalName = Annotated[str, Field(pattern=f"^{NAME}$")]


class SignalConfig(Section):
    """Load that applications report, such as their concurrent users."""

    default: Annotated[StrictFloat, Field(ge=0, le=VALUE_MAX, allow_inf_nan=False)] = Field(
        default=0.0, description="Its value where nothing was reported, or nothing lately."
    )
    stale_after_s: Annotated[StrictFloat, Field(ge=1, le=TTL_MAX_S, allow_inf_nan=False)] = Field(
        default=STALE_AFTER_S, description="For so long a report holds, unless it says otherwise itself."
    )


def compile_signals(signals: Mapping[str, SignalConfig]) -> dict[str, SignalRule]:
    return {
        name: SignalRule(
            default_micro=int((Decimal(repr(signal.default)) * MICRO).to_integral_value()),
            stale_after_ns=int(signal.stale_after_s * 10**9),
        )
        for name, signal in signals.items()
    }


def find_unit(measure: Measure) -> tuple[int, int]:
    """How many units of a measure the number 1 of an expression is, and the most that an amount may be."""
    if measure is Measure.COST:
        return NANO_PER_USD, USD_MAX * NANO_PER_USD
    return 1, AMOUNT_MAX


def compute_amount(text: str, measure: Measure, signals: Mapping[str, SignalRule]) -> int:
    """What an expression comes to where nothing has been reported, in the units of the measure."""
    unit, maximum = find_unit(measure)
    return compute_default(parse_combined(text), signals, unit, maximum)
