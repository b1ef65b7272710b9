"""Compares mirrors with the requests that they had copies of, from the ledger's records.  Only reads.

A copy and its request are one pair.  Times, tokens and costs are of pairs of which both went well, and only
where both are known, so that like is compared with like.  No text is: none is kept.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import FromClause, Label, RowMapping, and_, literal_column, select

from forebay.core.events import Outcome
from forebay.ledger.marks import Kept, check_kept, load_marks
from forebay.ledger.rollup import add_known
from forebay.ledger.tables import TOKEN_CLASSES, events
from forebay.store.database import Database

PAIRS_MAX: Final = 100_000  #: the newest; older ones of a time are not looked at
ERRORS_MAX: Final = 5  #: of a side, those that came most often


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Nanoseconds that so many percent of the pairs did not exceed."""

    p50: int
    p90: int
    p99: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Requests, or their copies.  What is unknown is None."""

    failed: int
    failed_alone: int  #: where the other side went well
    errors: tuple[tuple[str, int], ...]  #: codes, with how often each came
    first_token_ns: Spread | None
    duration_ns: Spread | None
    tokens_input: int | None
    tokens_output: int | None
    cost_nano_usd: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A model and one of its mirrors."""

    model: str
    mirror: str
    pairs: int
    good: int  #: pairs of which both went well
    lonely: int  #: copies whose requests are not on record
    dropped: int  #: copies that were not sent
    same: int  #: pairs whose results were compared, and are the same
    different: int  #: likewise, and are not
    request: Side
    copy: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    data: Sequence[Comparison]
    is_cut: bool  #: there were more than PAIRS_MAX


def load_comparisons(
    database: Database,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    model: str | None = None,
    pairs_max: int = PAIRS_MAX,
) -> Comparisons:
    """By names; of requests that began from `since_ns` on and before `until_ns`.  `model` is theirs.

    Raises NoLongerKept, StoreBusy, StoreUnavailable.
    """
    copy, request = events.alias("copy"), events.alias("request")
    query = (
        select(
            *(*_list_columns(copy), *_list_columns(request)),
            *(copy.c.mirror_same, copy.c.mirrors_dropped),
        )
        # Both have one moment, so a pair is found in the index of times.
        .outerjoin_from(
            copy, request, and_(request.c.at_ns == copy.c.at_ns, request.c.request_id == copy.c.mirror_of)
        )
        .where(copy.c.mirror_of != literal_column("''"))  # as the index has it
        .order_by(copy.c.at_ns.desc())
        .limit(pairs_max + 1)
    )
    if since_ns is not None:
        query = query.where(copy.c.at_ns >= since_ns)
    if until_ns is not None:
        query = query.where(copy.c.at_ns < until_ns)
    if model is not None:
        query = query.where(request.c.model == model)
    with database.read() as connection:
        check_kept(
            load_marks(connection), Kept.RECORDS, since_ns, "a comparison needs both records of a pair"
        )
        rows = list(connection.execute(query).mappings())
    return Comparisons(data=compare(rows[:pairs_max]), is_cut=len(rows) > pairs_max)


_COLUMNS: Final = (
    *("model", "outcome", "error", "first_token_ns", "duration_ns", "cost_nano_usd"),
    *(f"tokens_{name}" for name in TOKEN_CLASSES),
)


def _list_columns(side: FromClause) -> list[Label[Any]]:
    """By the names of the side."""
    return [side.c[name].label(f"{side.description}_{name}") for name in _COLUMNS]


def compare(rows: Iterable[RowMapping]) -> list[Comparison]:
    """Pure."""
    groups: defaultdict[tuple[str, str], list[RowMapping]] = defaultdict(list)
    for row in rows:
        groups[row["request_model"] or "", row["copy_model"]].append(row)
    found = []
    for (model, mirror), group in sorted(groups.items()):
        pairs = [row for row in group if row["request_outcome"] is not None]
        good = [row for row in pairs if _is_good(row, "request") and _is_good(row, "copy")]
        found.append(
            Comparison(
                model=model,
                mirror=mirror,
                pairs=len(pairs),
                good=len(good),
                lonely=len(group) - len(pairs),
                dropped=sum(int(row["mirrors_dropped"]) for row in group),
                same=sum(row["mirror_same"] is not None and bool(row["mirror_same"]) for row in pairs),
                different=sum(row["mirror_same"] is not None and not row["mirror_same"] for row in pairs),
                request=_fold_side("request", "copy", pairs, good),
                copy=_fold_side("copy", "request", pairs, good),
            )
        )
    return found


def _is_good(row: RowMapping, side: str) -> bool:
    return bool(row[f"{side}_outcome"] == Outcome.OK.value)


def _fold_side(side: str, other: str, pairs: Sequence[RowMapping], good: Sequence[RowMapping]) -> Side:
    failed = [row for row in pairs if not _is_good(row, side)]
    errors = Counter(str(row[f"{side}_error"]) for row in failed)

    def known(name: str) -> list[int]:
        both = ((row[f"{side}_{name}"], row[f"{other}_{name}"]) for row in good)
        return [int(own) for own, others in both if own is not None and others is not None]

    def total(prefix: str) -> int | None:
        names = [name for name in TOKEN_CLASSES if name.startswith(prefix)]
        sums = (
            [add_known(row[f"{each}_tokens_{name}"] for name in names) for each in (side, other)]
            for row in good
        )
        return add_known(own for own, others in sums if others is not None and own is not None)

    return Side(
        failed=len(failed),
        failed_alone=sum(_is_good(row, other) for row in failed),
        errors=tuple(sorted(errors.items(), key=lambda each: (-each[1], each[0]))[:ERRORS_MAX]),
        first_token_ns=compute_spread(known("first_token_ns")),
        duration_ns=compute_spread(known("duration_ns")),
        tokens_input=total("input"),
        tokens_output=total("output"),
        cost_nano_usd=add_known(known("cost_nano_usd")),
    )


def compute_spread(values: Sequence[int]) -> Spread | None:
    """By nearest rank; None of no value."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = (ordered[-(-len(ordered) * percent // 100) - 1] for percent in (50, 90, 99))
    return Spread(**dict(zip(("p50", "p90", "p99"), ranks, strict=True)))
