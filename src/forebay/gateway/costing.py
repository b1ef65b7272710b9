"""What requests cost, as the limits of money count it: a guess before, and the ledger's own figure after.

The figure after is the very function of usage and dated price that prices the record, so a limit and the bill
agree to the nano-USD wherever the target said what was used.
"""

from forebay.core.errors import QuotaUnavailable
from forebay.core.events import Tokens, UsageSource
from forebay.core.prices import NO_PRICES, PriceBook, Units
from forebay.core.routes import Target
from forebay.gateway.lease import Lease
from forebay.gateway.model import Exchange

DURATION_GUESS_NS = 2_000_000_000  #: of a request whose like was not seen yet, where seconds cost money
GUESS_STEP = 0.05  #: how far one request moves the running mean
BOOKS_MAX = 100  #: that are kept for requests in flight
GUESSES_MAX = 100_000  #: pairs of key and model whose mean is kept


class Costing:
    """See the module."""

    def __init__(self) -> None:
        self._books: dict[str, PriceBook] = {}  # by name; those that requests in flight began with too
        self._allow_unpriced = False
        self._durations: dict[tuple[str, str], float] = {}  # nanoseconds, by key and model

    def set_prices(self, book: PriceBook, name: str, *, allow_unpriced: bool) -> None:
        """From now on this book holds for requests that begin; `name` is that of the snapshot's."""
        known = self._books.pop(name, None)
        self._books[name] = known if known == book else book
        while len(self._books) > BOOKS_MAX:
            del self._books[next(iter(self._books))]
        self._allow_unpriced = allow_unpriced

    def estimate(self, exchange: Exchange, lease: Lease, tokens: Tokens) -> int:
        """Nano-USD that a request may cost at its next target.

        A guess of the answer's length reserves no more of the limit than `Lease.guess_max`.

        Raises:
            QuotaUnavailable: it has no price, and such requests are not let through.
        """
        cost = exchange.cost_estimate
        if cost is None:
            cost = exchange.cost_estimate = self._estimate(exchange, tokens)
        if cost > lease.guess_max and not exchange.names_output:
            return lease.bound_guess(cost, self._estimate(exchange, Tokens(input=tokens.input)))
        return cost

    def _estimate(self, exchange: Exchange, tokens: Tokens) -> int:
        target = exchange.target_state.target
        assert exchange.key is not None
        duration_ns = int(self._durations.get((exchange.key.id, exchange.model), DURATION_GUESS_NS))
        counted = Tokens(input=tokens.input or 0, output=tokens.output or 0)
        cost = self._compute(exchange, target, counted, duration_ns, exchange.guessed_units)
        if cost is None and not self._allow_unpriced:
            raise QuotaUnavailable(
                f"the model {exchange.model} has no price for all that it may use, so it can't be counted "
                "against the limits of money that this key has; its operator can add one to `prices.book`, "
                "or set `limits.unpriced: allow`"
            )
        return cost or 0

    def count_used(self, exchange: Exchange, reserved: int) -> int:
        """Nano-USD that a request has cost, as far as is known: what nobody counted is never refunded."""
        if not exchange.sent:
            return 0
        tokens, target = exchange.tokens, exchange.target
        if tokens is None or target is None:
            return reserved if exchange.is_uncertain else 0
        self._learn(exchange)
        cost = self._compute(exchange, target, tokens, exchange.duration_ns, exchange.units)
        if cost is None:
            return reserved
        if exchange.usage_source is UsageSource.REPORTED and not exchange.hedged_tokens:
            return cost
        return max(cost, reserved)

    def _compute(
        self, exchange: Exchange, target: Target, tokens: Tokens, duration_ns: int, units: Units = ()
    ) -> int | None:
        place = exchange.model, target.id, target.pool, target.tier
        book = self._books.get(exchange.state.snapshot.price_book, NO_PRICES)
        return book.compute_cost_at(place, exchange.at_ns, tokens, duration_ns, units).nano_usd

    def _learn(self, exchange: Exchange) -> None:
        assert exchange.key is not None
        place = exchange.key.id, exchange.model
        known = self._durations.get(place)
        if known is not None:
            self._durations[place] = known + GUESS_STEP * (exchange.duration_ns - known)
        elif len(self._durations) < GUESSES_MAX:
            self._durations[place] = float(exchange.duration_ns)
