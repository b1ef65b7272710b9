"""What a request cost: a pure function of its usage, its time and a dated price.

Money is integer nano-USD (1e-9 USD).  Rates are exact rationals, and a cost is rounded once, at its end, to
the nearest nano-USD, a half upwards.  So the same usage under the same book gives the same figure whenever it
is computed.  What has no price costs an unknown amount, which is `None` and never 0.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Final

from forebay.core.events import Event, Tokens, UsageSource

NANO_PER_USD: Final = 10**9
TOKENS_PER_MTOK: Final = 10**6
NS_PER_S: Final = 10**9
#: More than any request costs (281,474 USD): what comes out above was not used but misreported, and sums of
#: what is below fit the columns of any database.
COST_NANO_USD_MAX: Final = 2**48
PLACES_KEPT_MAX: Final = 10_000  #: for which a book remembers its answer

#: The class whose rate applies where a class has none of its own.
PART_OF: Final = {
    "input_cached": "input",
    "input_audio": "input",
    "input_cache_write": "input",
    "output_reasoning": "output",
    "output_audio": "output",
}
TOKEN_CLASSES: Final = Tokens.__struct_fields__
Units = tuple[tuple[str, int], ...]  #: as `Finished.units`


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """USD for a million tokens of each class; None is no price for it."""

    input: Decimal | None = None
    input_cached: Decimal | None = None
    input_audio: Decimal | None = None
    output: Decimal | None = None
    output_reasoning: Decimal | None = None
    output_audio: Decimal | None = None
    input_cache_write: Decimal | None = None

    def find(self, token_class: str) -> Decimal | None:
        """The class's own rate, else that of the class which it is a part of."""
        own: Decimal | None = getattr(self, token_class)
        if own is None and token_class in PART_OF:
            return self.find(PART_OF[token_class])
        return own

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, each.name) is None for each in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One entry of a price book.

    It applies to requests that all of `model`, `target`, `pool` and `tier` match (patterns with `*`, `?` and
    `[…]`; None matches any), from `from_ns` on until a newer entry for the same place begins.
    """

    model: str = "*"
    target: str | None = None
    pool: str | None = None
    tier: str | None = None
    from_ns: int = 0
    rates: Rates = Rates()
    usd_per_request: Decimal | None = None
    usd_per_second: Decimal | None = None  #: of a request's duration, for hardware of one's own
    usd_per_unit: tuple[tuple[str, Decimal], ...] = ()  #: for what else targets count, by name
    is_shipped: bool = False  #: came with Forebay; any entry of one's own goes before it

    def matches(self, model: str, target: str, pool: str, tier: str) -> bool:
        pairs = ((self.model, model), (self.target, target), (self.pool, pool), (self.tier, tier))
        return all(pattern is None or fnmatchcase(name, pattern) for pattern, name in pairs)

    @property
    def id(self) -> str:
        """Names the terms: the same ones have the same id in any book, and others have another."""
        return "price_" + hashlib.sha256(self.describe().encode()).hexdigest()[:16]

    def describe(self) -> str:
        """The terms as JSON, in one spelling."""
        terms: dict[str, object] = {
            name: value
            for name in ("model", "target", "pool", "tier", "from_ns")
            if (value := getattr(self, name)) is not None
        }
        amounts = {each.name: getattr(self.rates, each.name) for each in fields(self.rates)}
        terms["usd_per_mtok"] = {name: _spell(rate) for name, rate in amounts.items() if rate is not None}
        for name in ("usd_per_request", "usd_per_second"):
            if (amount := getattr(self, name)) is not None:
                terms[name] = _spell(amount)
        if self.usd_per_unit:
            terms["usd_per_unit"] = {name: _spell(amount) for name, amount in self.usd_per_unit}
        return json.dumps(terms, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _spell(amount: Decimal) -> str:
    """2.5 for 2.50 as well: two spellings of one amount are the same terms."""
    return format(amount.normalize(), "f")


class Charge:
    """What one price asks for, ready to be computed with: whole numbers over one denominator.

    Attributes:
        price: whose charge it is.
        price_id: its id.
    """

    __slots__ = (
        *("price", "price_id"),
        *("_bases", "_denominator", "_has_rates", "_numerators", "_request", "_second", "_units"),
    )

    def __init__(self, price: Price) -> None:
        self.price = price
        self.price_id = price.id
        rates = [price.rates.find(name) for name in TOKEN_CLASSES]
        per_token = [None if rate is None else _nano(rate) / TOKENS_PER_MTOK for rate in rates]
        request = _nano(price.usd_per_request or Decimal(0))
        per_ns = _nano(price.usd_per_second or Decimal(0)) / NS_PER_S
        per_unit = {name: _nano(rate) for name, rate in price.usd_per_unit}
        parts = [*(rate for rate in per_token if rate is not None), *per_unit.values(), request, per_ns]
        self._denominator = denominator = math.lcm(*(part.denominator for part in parts))
        self._numerators = tuple(None if rate is None else int(rate * denominator) for rate in per_token)
        self._request = int(request * denominator)
        self._second = int(per_ns * denominator)
        self._units = {name: int(rate * denominator) for name, rate in per_unit.items()}
        self._has_rates = not price.rates.is_empty
        self._bases = tuple(TOKEN_CLASSES.index(name) for name in ("input", "output"))

    def compute_exact(self, tokens: Tokens, duration_ns: int, units: Units = ()) -> Fraction | None:
        """Before the rounding.  Over two usages together it is the sum over each, less one `per request`."""
        numerator = self._add_up(tokens, duration_ns, units)
        return None if numerator is None else Fraction(numerator, self._denominator)

    def compute(self, tokens: Tokens, duration_ns: int, units: Units = ()) -> int | None:
        """Nano-USD, rounded."""
        numerator = self._add_up(tokens, duration_ns, units)
        if numerator is None:
            return None
        cost = (2 * numerator + self._denominator) // (2 * self._denominator)
        return cost if cost <= COST_NANO_USD_MAX else None

    def _add_up(self, tokens: Tokens, duration_ns: int, units: Units) -> int | None:
        total = self._request + max(duration_ns, 0) * self._second
        if units and self._units:
            for name, used in units:
                if used:
                    if name not in self._units:
                        return None
                    total += used * self._units[name]
        if not self._has_rates:
            return total
        numerators = self._numerators
        counts = (
            tokens.input,
            tokens.input_cached,
            tokens.input_audio,
            tokens.output,
            tokens.output_reasoning,
            tokens.output_audio,
            tokens.input_cache_write,
        )
        for count, rate in zip(counts, numerators, strict=True):
            if count:
                if rate is None:
                    return None
                total += count * rate
        # A part that nobody told apart is in the class which it is a part of.  A whole class that nobody
        # counted is unknown, unless it costs nothing.
        for index in self._bases:
            if counts[index] is None and numerators[index] != 0:
                return None
        return total


def _nano(usd: Decimal) -> Fraction:
    return Fraction(usd) * NANO_PER_USD


def compute_cost(tokens: Tokens, duration_ns: int, price: Price, units: Units = ()) -> int | None:
    """What a usage costs under a price, in nano-USD; None where that is not known.

    Tokens of a class without a rate cost what the class costs that they are part of (`PART_OF`); without that
    one either, the cost is unknown.  So it is where input or output was never counted, unless that is free.
    A price that names no class at all charges by request, by second and by unit alone.  One that names units
    charges for those that the target reported, since targets leave out what was not used; where it names
    none for one of these, the cost is unknown.  One that names no unit charges for none.  A cost above
    COST_NANO_USD_MAX is not believed, and unknown.
    """
    return Charge(price).compute(tokens, duration_ns, units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`nano_usd` is None where it is unknown.  `price_id` is empty where no price was needed or found."""

    price_id: str = ""
    nano_usd: int | None = None


NOTHING_SPENT: Final = Cost(nano_usd=0)
UNPRICED: Final = Cost()


Place = tuple[str, str, str, str]  #: model, target, pool, tier


@dataclass(frozen=True, slots=True)
class PriceBook:
    """All prices, in the order of the file.  Equal books are interchangeable."""

    prices: tuple[Price, ...] = ()
    used: dict[str, Price] = field(default_factory=dict, compare=False, repr=False)  #: for some cost, by id
    #: What `_list_candidates` said of a place, ready to be computed with: each record asks.
    _known: dict[Place, tuple[tuple[int, Charge], ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def compute_cost(self, event: Event) -> Cost:
        """What a request cost by the price in force when it began.

        A request that no target worked on (`usage_source` none) costs 0, whatever the book says.
        """
        if event.usage_source is UsageSource.NONE:
            return NOTHING_SPENT
        place = (event.model, event.target, event.pool, event.tier)
        return self.compute_cost_at(place, event.at_ns, event.tokens, event.duration_ns, event.units)

    def compute_cost_at(
        self, place: Place, at_ns: int, tokens: Tokens, duration_ns: int, units: Units = ()
    ) -> Cost:
        """The same by parts, for a request that a target has worked on."""
        dated = self._known.get(place)
        if dated is None:
            candidates = _list_candidates(self.prices, place)
            dated = tuple((price.from_ns, Charge(price)) for price in candidates)
            if len(self._known) < PLACES_KEPT_MAX:
                self._known[place] = dated
        for from_ns, charge in dated:
            if from_ns <= at_ns:
                self.used.setdefault(charge.price_id, charge.price)
                return Cost(price_id=charge.price_id, nano_usd=charge.compute(tokens, duration_ns, units))
        return UNPRICED


NO_PRICES: Final = PriceBook()


@dataclass(frozen=True, slots=True)
class BooksInForce(PriceBook):
    """Prices each record by the book that it names, and by these prices what names none that is known.

    Attributes:
        find: the book of a digest.
    """

    find: Callable[[str], PriceBook | None] = field(default=lambda _: None, compare=False, repr=False)

    def compute_cost(self, event: Event) -> Cost:
        book = self.find(event.prices) if event.prices else None
        if book is None:
            return PriceBook.compute_cost(self, event)
        cost = book.compute_cost(event)
        if cost.price_id:
            self.used.setdefault(cost.price_id, book.used[cost.price_id])
        return cost


def choose_price(book: PriceBook, model: str, target: str, pool: str, tier: str, at_ns: int) -> Price | None:
    """The price for a request: of those that match and had begun, the most specific, and of these the newest.

    Entries of one's own go before shipped ones.  Then one that names a target goes before one that names a
    pool, that before one that names a tier, that before one that names a model alone; a model's full name
    goes before a pattern, and a longer pattern before a shorter.  Of two alike the later one in the book.
    """
    candidates = _list_candidates(book.prices, (model, target, pool, tier))
    return next((price for price in candidates if price.from_ns <= at_ns), None)


def _list_candidates(prices: Iterable[Price], place: Place) -> list[Price]:
    """Those that match, in the order in which they are preferred."""
    found = [
        (_rank(price), price.from_ns, index, price)
        for index, price in enumerate(prices)
        if price.matches(*place)
    ]
    found.sort(key=lambda item: item[:3], reverse=True)
    return [price for *_, price in found]


def _rank(price: Price) -> tuple[bool | int, ...]:
    names = (price.target, price.pool, price.tier)
    return (
        not price.is_shipped,
        *(name is not None for name in names),
        not _is_pattern(price.model),
        sum(len(name) - sum(map(name.count, "*?[]")) for name in (price.model, *names) if name is not None),
    )


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")
