"""Usage in the admin API: pages of the ledger's groups, with a cursor that stays right while records arrive.

A cursor names the last group of a page, and the next page begins behind it.  Only reads.
"""

import base64
import binascii
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

import msgspec
from fastapi import Depends, Query
from pydantic import Field, StringConstraints

from forebay.app.control_schemas import View
from forebay.core.errors import CallerError, InvalidValue
from forebay.core.events import Kind
from forebay.ledger.rollup import UsageTotals
from forebay.ledger.usage import UsageBy, UsageQuery, UsageRow, load_usage
from forebay.store.database import Database

PAGE_MAX: Final = 1000
LATEST_S: Final = 4_102_444_800  #: the year 2100

UnixSeconds = Annotated[int, Field(ge=0, le=LATEST_S)]
KeyFilter = Annotated[str, StringConstraints(pattern=r"^(key_[0-9a-f]{16})?$")]
ModelFilter = Annotated[str, StringConstraints(pattern=r"^[!-~]{0,200}$")]
Cursor = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_=-]{1,2000}$")]
LabelFilter = Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00]*$")]
TagName = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,64}$")]
Place = tuple[int, str, str, str, int, str, str, str, str, str, str, str, str, str, str]


def filters(
    key: Annotated[KeyFilter | None, Query(description="Only this key's id.")] = None,
    model: Annotated[ModelFilter | None, Query(description="Only this public name.")] = None,
    version: Annotated[LabelFilter | None, Query(description="Only this version of models.")] = None,
    experiment: Annotated[LabelFilter | None, Query(description="Only this experiment.")] = None,
    variant: Annotated[LabelFilter | None, Query(description="Only this variant.")] = None,
    tag_value: Annotated[LabelFilter | None, Query(description="Only where the tag has this value.")] = None,
    kind: Annotated[
        Kind | None,
        Query(
            description="Requests of callers, lines of their batches, or the copies that mirrors had; "
            "without it: the first two, or all where they are told apart by kind."
        ),
    ] = None,
) -> dict[str, Any]:
    """What is counted, by the names that UsageQuery has for it."""
    return {
        "key": key,
        "model": model,
        "version": version,
        "experiment": experiment,
        "variant": variant,
        "tag_value": tag_value,
        "kind": kind,
    }


Filters = Annotated[Mapping[str, Any], Depends(filters)]


class GroupBy(StrEnum):
    KEY = "key"
    MODEL = "model"
    TARGET = "target"
    STATUS = "status"
    TEAM = "team"
    PROJECT = "project"
    POOL = "pool"
    TIER = "tier"
    REGION = "region"
    KIND = "kind"
    VERSION = "version"
    EXPERIMENT = "experiment"
    VARIANT = "variant"


class Interval(StrEnum):
    HOUR = "hour"
    DAY = "day"


class CursorUnknown(CallerError):
    status: ClassVar[int] = 404
    code: ClassVar[str] = "cursor_unknown"


class TokensView(View):
    """Disjoint classes; null where no target ever said."""

    input: int | None
    input_cached: int | None
    input_audio: int | None
    output: int | None
    output_reasoning: int | None
    output_audio: int | None
    input_cache_write: int | None


class UsageRowView(View):
    """One group.  What the query does not group by is null."""

    start_s: int | None = Field(description="Unix time at which the hour or day begins, UTC.")
    key: str | None = Field(description="A key's id; empty for callers that were not recognised.")
    model: str | None
    target: str | None
    status: int | None
    team: str | None
    project: str | None
    pool: str | None
    tier: str | None
    region: str | None
    kind: str | None
    version: str | None
    experiment: str | None
    variant: str | None
    tag: str | None = Field(description="The tag's value; empty where a request has none.")
    requests: int
    failed: int
    abandoned: int = Field(description="The caller left before the end.")
    estimated: int = Field(description="Requests whose tokens were counted by us.")
    tokens: TokensView
    duration_mean_s: float | None
    first_token_mean_s: float | None = Field(description="Over streams.")
    overhead_mean_s: float | None = Field(description="The gateway's own part.")


class UsagePage(View):
    data: list[UsageRowView] = Field(description="In the order of the fields by which it is told apart.")
    next_cursor: str | None = Field(description="Null on the last page.")


def load_usage_page(database: Database, query: UsageQuery, *, limit: int, cursor: str | None) -> UsagePage:
    """The groups behind the cursor.  Raises CursorUnknown, UsageQueryInvalid, StoreError."""
    after = None if cursor is None else _decode_cursor(cursor)
    rows = sorted(load_usage(database, query), key=_find_place)  # whatever order the database's texts have
    rows = [row for row in rows if after is None or _find_place(row) > after]
    page = rows[:limit]
    more = len(rows) > limit
    return UsagePage(
        data=[_show_row(row) for row in page],
        next_cursor=_encode_cursor(_find_place(page[-1])) if more else None,
    )


def check_period(since_s: int | None, until_s: int | None) -> None:
    """Raises InvalidValue for a time that ends before it begins."""
    if since_s is not None and until_s is not None and since_s > until_s:
        raise InvalidValue(
            f"the time ends at {until_s}, before it begins at {since_s}: exchange since_s and until_s",
            param="until_s",
        )


def make_query(
    *,
    by: list[GroupBy],
    interval: Interval | None,
    since_s: int | None,
    until_s: int | None,
    tag: str | None,
    where: Mapping[str, Any],
) -> UsageQuery:
    """Raises InvalidValue."""
    check_period(since_s, until_s)
    groups = [UsageBy(each.value) for each in dict.fromkeys(by)]
    if interval is not None:
        groups.append(UsageBy(interval.value))
    if tag is not None:
        groups.append(UsageBy.TAG)
    return UsageQuery(
        by=tuple(groups),
        since_ns=None if since_s is None else since_s * 10**9,
        until_ns=None if until_s is None else until_s * 10**9,
        tag=tag,
        **where,
    )


def _find_place(row: UsageRow) -> Place:
    return (
        row.start_s or 0,
        row.key or "",
        row.model or "",
        row.target or "",
        row.status or 0,
        row.team or "",
        row.project or "",
        row.pool or "",
        row.tier or "",
        row.region or "",
        row.kind or "",
        row.version or "",
        row.experiment or "",
        row.variant or "",
        row.tag or "",
    )


def _encode_cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _decode_cursor(cursor: str) -> Place:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=Place)
    except (binascii.Error, ValueError):
        raise CursorUnknown("not a cursor of this API: begin without one", param="cursor") from None


def _show_row(row: UsageRow) -> UsageRowView:
    totals = row.totals
    return UsageRowView(
        start_s=row.start_s,
        key=row.key,
        model=row.model,
        target=row.target,
        status=row.status,
        team=row.team,
        project=row.project,
        pool=row.pool,
        tier=row.tier,
        region=row.region,
        kind=row.kind,
        version=row.version,
        experiment=row.experiment,
        variant=row.variant,
        tag=row.tag,
        requests=totals.requests,
        failed=totals.failed,
        abandoned=totals.abandoned,
        estimated=totals.estimated,
        tokens=show_tokens(totals),
        duration_mean_s=_compute_mean_s(totals.duration_ns_sum, totals.duration_count),
        first_token_mean_s=_compute_mean_s(totals.first_token_ns_sum, totals.first_token_count),
        overhead_mean_s=_compute_mean_s(totals.overhead_ns_sum, totals.overhead_count),
    )


def show_tokens(totals: UsageTotals) -> TokensView:
    return TokensView(
        input=totals.tokens_input,
        input_cached=totals.tokens_input_cached,
        input_audio=totals.tokens_input_audio,
        output=totals.tokens_output,
        output_reasoning=totals.tokens_output_reasoning,
        output_audio=totals.tokens_output_audio,
        input_cache_write=totals.tokens_input_cache_write,
    )


def _compute_mean_s(sum_ns: int, count: int) -> float | None:
    return sum_ns / count / 1e9 if count else None
