"""The section `prices` of `forebay.yaml`, and the price book that it and the shipped list prices make.

Amounts are decimals and stay exact: what is written is what is charged.  Reads one data file of the package,
and nothing else.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    TypeAdapter,
    WithJsonSchema,
)

from forebay.app.config_usage import UnitName
from forebay.app.config_values import Section, Tier
from forebay.core.prices import Price, PriceBook, Rates

DEFAULTS_PATH: Final = Path(__file__).with_name("price_defaults.json")
AMOUNT_MAX: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_AMOUNT: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,12})?")
_DIGITS_MAX: Final = 15  #: of a number without quotes: YAML's floats keep no more
_AMOUNT_HELP: Final = f"write an amount of USD like 2.50, from 0 to {AMOUNT_MAX}, with at most 12 decimals"
_MOMENT_HELP: Final = "write a date like 2026-01-31 (UTC) or a moment like 2026-01-31T12:00:00Z"


def _read_amount(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError(f"not an amount; {_AMOUNT_HELP}")
    if isinstance(value, str):
        text = value.strip()
    elif isinstance(value, Decimal):
        text = format(value, "f")
    else:
        text = _spell_number(value)
    if not _AMOUNT.fullmatch(text) or Decimal(text) > AMOUNT_MAX:
        raise ValueError(f"not an amount; {_AMOUNT_HELP}")
    if isinstance(value, float) and len(text.replace(".", "").lstrip("0")) > _DIGITS_MAX:
        raise ValueError(f"more than {_DIGITS_MAX} digits are kept only in quotes")
    return Decimal(text)


def _spell_number(value: int | float) -> str:
    """As it was written, which the shortest spelling that means the same float is."""
    try:
        return format(Decimal(repr(value)), "f")
    except (ArithmeticError, ValueError):  # a number of more digits than Python takes
        return ""


def _read_moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        moment = datetime.fromisoformat(value.strip() if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"not a date; {_MOMENT_HELP}") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not _EPOCH <= moment <= _LATEST:
        raise ValueError("not a date between 1970 and 2200")
    return moment.astimezone(UTC)


Amount = Annotated[
    Decimal,
    BeforeValidator(_read_amount),
    PlainSerializer(lambda amount: format(amount, "f"), return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": AMOUNT_MAX},
                {"type": "string", "pattern": f"^{_AMOUNT.pattern}$"},
            ]
        }
    ),
]
Moment = Annotated[
    datetime,
    BeforeValidator(_read_moment),
    PlainSerializer(datetime.isoformat, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].+)?$"}),
]
Pattern = Annotated[str, Field(min_length=1, max_length=200)]
UNITS_MAX: Final = 32


class RatesConfig(Section):
    """USD for a million tokens."""

    input: Amount | None = Field(
        default=None, description="Prompt tokens; the kinds below that are left out cost the same."
    )
    input_cached: Amount | None = Field(default=None, description="Prompt tokens read from a cache.")
    input_cache_write: Amount | None = Field(default=None, description="Prompt tokens written to a cache.")
    input_audio: Amount | None = Field(default=None, description="Audio tokens of the prompt.")
    output: Amount | None = Field(
        default=None, description="Tokens of the answer; the kinds below that are left out cost the same."
    )
    output_reasoning: Amount | None = Field(default=None, description="Tokens of reasoning.")
    output_audio: Amount | None = Field(default=None, description="Audio tokens of the answer.")


class PriceConfig(Section):
    """What requests cost that match."""

    model_config = ConfigDict(serialize_by_alias=True)

    model: Pattern = Field(default="*", description="Public name, or a pattern such as `gpt-*`.")
    target: Pattern | None = Field(
        default=None, description="Target's id as in records, such as `gpt-x@api.example.com`, or a pattern."
    )
    pool: Pattern | None = Field(default=None, description="Target's pool, or a pattern.")
    tier: Tier | None = Field(default=None, description="Target's tier.")
    from_: Moment | None = Field(
        default=None,
        alias="from",
        description="Date (midnight, UTC) or moment from which it holds, until a newer entry for the same "
        "place does; null is always.",
    )
    usd_per_mtok: RatesConfig = Field(default=RatesConfig(), description="USD for a million tokens.")
    usd_per_request: Amount | None = Field(default=None, description="USD for each request.")
    usd_per_second: Amount | None = Field(
        default=None, description="USD for each second that a request takes, for hardware of your own."
    )
    usd_per_unit: Annotated[Mapping[UnitName, Amount], Field(max_length=UNITS_MAX)] = Field(
        default_factory=dict,
        description="USD for each of what targets count beside tokens, by the names that their `usage` rules "
        "give; default: nothing for any.",
    )

    def compile(self, *, is_shipped: bool = False) -> Price:
        return Price(
            model=self.model,
            target=self.target,
            pool=self.pool,
            tier=self.tier,
            from_ns=0 if self.from_ is None else (self.from_ - _EPOCH) // timedelta(microseconds=1) * 1000,
            rates=Rates(**{name: getattr(self.usd_per_mtok, name) for name in RatesConfig.model_fields}),
            usd_per_request=self.usd_per_request,
            usd_per_second=self.usd_per_second,
            usd_per_unit=tuple(sorted(self.usd_per_unit.items())),
            is_shipped=is_shipped,
        )


class ShippedPrice(PriceConfig):
    """An entry of `price_defaults.json`."""

    source: str  #: where the figures were read
    checked: Moment  #: when they were read there


class PricesConfig(Section):
    """What requests cost: the bill is made of it, nothing is charged anywhere."""

    currency: Literal["USD"] = Field(default="USD", description="Currency of all prices.")
    defaults: StrictBool = Field(
        default=False,
        description="Whether the list prices that come with Forebay apply where the book has none; "
        "`forebay prices` shows them with date and source.",
    )
    book: Annotated[tuple[PriceConfig, ...], Field(max_length=10_000)] = Field(
        default=(),
        description="Prices. Of those that match a request and had begun, the most specific holds: one that "
        "names a target before a pool, a tier, a model; of these the newest.",
    )

    @cached_property
    def price_book(self) -> PriceBook:
        """The book in force.  It remembers what it has looked up, so there is one for each section."""
        shipped = load_shipped_prices() if self.defaults else ()
        return PriceBook(
            (
                *(each.compile() for each in self.book),
                *(each.compile(is_shipped=True) for each in shipped),
            )
        )


@cache
def load_shipped_prices() -> tuple[ShippedPrice, ...]:
    return TypeAdapter(tuple[ShippedPrice, ...]).validate_json(DEFAULTS_PATH.read_bytes())
