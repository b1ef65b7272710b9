"""How comparisons of mirrors are shown to programs: the admin API's answer, and what the command line prints.

Times are seconds; costs are decimals in text, exact to a billionth of a USD; what is unknown is null.
"""

from decimal import Decimal

from pydantic import Field

from forebay.app.control_schemas import View
from forebay.ledger.mirror_pairs import Comparison, Comparisons, Side, Spread


class SpreadView(View):
    """Seconds that so many percent of the pairs did not exceed."""

    p50_s: float
    p90_s: float
    p99_s: float


class ErrorCount(View):
    code: str
    count: int


class SideView(View):
    """Requests, or their copies. Times, tokens and costs are over pairs of which both went well, and of which
    both sides are known."""

    failed: int = Field(description="Of all pairs; those whose caller left are among them.")
    failed_alone: int = Field(description="While the other side went well.")
    errors: list[ErrorCount] = Field(description="The five that came most often.")
    first_token: SpreadView | None = Field(description="Over streams.")
    duration: SpreadView | None
    tokens_input: int | None
    tokens_output: int | None
    cost_usd: str | None


class ComparisonView(View):
    model: str = Field(description="That answered the requests; empty for copies without their requests.")
    mirror: str = Field(description="The model that got the copies.")
    pairs: int = Field(description="Copies whose requests are on record.")
    good: int = Field(description="Pairs of which both went well.")
    lonely: int = Field(description="Copies whose requests are not on record, or not yet.")
    dropped: int = Field(description="Copies that were not sent, as far as a later one tells of them.")
    same_results: int = Field(description="Pairs whose results were compared, and are the same.")
    different_results: int = Field(description="Likewise, and are not.")
    requests: SideView
    copies: SideView


class ComparisonList(View):
    data: list[ComparisonView]
    is_cut: bool = Field(description="There were more than the 100,000 newest copies, which are compared.")


def show_comparisons(found: Comparisons) -> ComparisonList:
    return ComparisonList(data=[_show(each) for each in found.data], is_cut=found.is_cut)


def _show(found: Comparison) -> ComparisonView:
    return ComparisonView(
        model=found.model,
        mirror=found.mirror,
        pairs=found.pairs,
        good=found.good,
        lonely=found.lonely,
        dropped=found.dropped,
        same_results=found.same,
        different_results=found.different,
        requests=_show_side(found.request),
        copies=_show_side(found.copy),
    )


def _show_side(side: Side) -> SideView:
    cost = side.cost_nano_usd
    return SideView(
        failed=side.failed,
        failed_alone=side.failed_alone,
        errors=[ErrorCount(code=code, count=count) for code, count in side.errors],
        first_token=_show_spread(side.first_token_ns),
        duration=_show_spread(side.duration_ns),
        tokens_input=side.tokens_input,
        tokens_output=side.tokens_output,
        cost_usd=None if cost is None else format(Decimal(cost).scaleb(-9), "f"),
    )


def _show_spread(spread: Spread | None) -> SpreadView | None:
    if spread is None:
        return None
    return SpreadView(p50_s=spread.p50 / 1e9, p90_s=spread.p90 / 1e9, p99_s=spread.p99 / 1e9)
