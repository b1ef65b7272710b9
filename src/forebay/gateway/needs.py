"""What a request needs of its limits before it is sent, and what it used once it has ended.

Estimates learn from the answers that came; nothing here is reserved, lent or given back: that is `quota`'s.
"""

from typing import cast

from forebay.core.events import Tokens, UsageSource
from forebay.core.routes import MEDIA, WITHOUT_OUTPUT, WITHOUT_TOKENS
from forebay.gateway.costing import Costing
from forebay.gateway.dialect import MeasuredView
from forebay.gateway.lease import Lease
from forebay.gateway.model import Dialect, Exchange
from forebay.gateway.plan import count_need, count_tokens

BYTES_PER_TOKEN = 4  #: of plain text, as for estimates in the ledger
OUTPUT_GUESS = 256  #: tokens of an answer whose request names no limit, before any was seen
GUESS_STEP = 0.05  #: how far one answer moves the running mean
GUESSES_MAX = 100_000  #: pairs of key and model whose answers are remembered


class Needs:
    """See the module."""

    def __init__(self, dialect: Dialect) -> None:
        self.costing = Costing()
        self._dialect = dialect
        self._guesses: dict[tuple[str, str], float] = {}  # tokens of an answer, by key and model

    def estimate(self, exchange: Exchange) -> Tokens:
        """Tokens that a request will use, before anybody knows."""
        tokens = exchange.estimate
        if tokens is None and exchange.endpoint in WITHOUT_TOKENS:
            tokens = exchange.estimate = Tokens(input=0, output=0)  # counting and tensors are free
        if tokens is None and exchange.endpoint in MEDIA:
            tokens = exchange.estimate = self._estimate_media(exchange)
        if tokens is None:
            output = None
            if exchange.endpoint not in WITHOUT_OUTPUT:
                output = exchange.dialect.read_output_max(exchange.body)
                exchange.names_output = output is not None
                if output is None and exchange.key is not None:
                    output = self._guess_output(exchange)
            weight = exchange.body_bytes + self._dialect.weigh_text(exchange.body)
            tokens = Tokens(input=max(1, weight // BYTES_PER_TOKEN), output=output)
            exchange.estimate = tokens
        return tokens

    def _estimate_media(self, exchange: Exchange) -> Tokens:
        view = cast(MeasuredView, exchange.view)
        exchange.names_output = False
        exchange.guessed_units = view.guessed_units
        return Tokens(input=view.input_tokens, output=self._guess_output(exchange))

    def _guess_output(self, exchange: Exchange) -> int:
        assert exchange.key is not None
        return int(self._guesses.get((exchange.key.id, exchange.model), OUTPUT_GUESS))

    def count(self, exchange: Exchange, lease: Lease) -> int:
        """Units of one limit that a request needs."""
        if lease.is_cost:
            return self.costing.estimate(exchange, lease, self.estimate(exchange))
        return count_need(lease, self.estimate(exchange), named=exchange.names_output)

    def learn(self, exchange: Exchange) -> None:
        """How long its answer was."""
        tokens = exchange.tokens
        if tokens is None or exchange.usage_source is not UsageSource.REPORTED or exchange.key is None:
            return
        if tokens.output:
            place = exchange.key.id, exchange.model
            known = self._guesses.get(place, float(OUTPUT_GUESS))
            if len(self._guesses) < GUESSES_MAX or place in self._guesses:
                self._guesses[place] = known + GUESS_STEP * (tokens.output_total - known)

    def count_used(self, exchange: Exchange, lease: Lease, reserved: int) -> int:
        """Units of one limit that stay taken of what was reserved, or more."""
        if lease.is_cost:
            return self.costing.count_used(exchange, reserved)
        tokens = exchange.tokens
        if not exchange.sent:
            return 0  # nobody has worked for it
        if tokens is None:
            return reserved if exchange.is_uncertain else 0
        if lease.is_even:  # a sum will do, as for most
            tokens = Tokens(input=tokens.input_total, output=tokens.output_total)
        used = count_tokens(lease, tokens)
        if exchange.hedged_tokens:
            used += count_tokens(lease, Tokens(input=exchange.hedged_tokens, output=0))
        # What nobody counted is never refunded: it may have been as much as was reserved.
        return used if exchange.usage_source is UsageSource.REPORTED else max(used, reserved)
