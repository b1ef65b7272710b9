"""The section `ledger` of `forebay.yaml`: files of records, and how long what is kept.

Pure; `config_model` puts the section in its place.
"""

from typing import Annotated

from pydantic import AfterValidator, Field, StrictInt, ValidationInfo, field_validator

from forebay.app.config_values import Bytes, Seconds, SecondsOrZero, Section
from forebay.ledger.rollup import Rollups

Days = Annotated[StrictInt, Field(ge=1, le=36_500)]


class RetentionConfig(Section):
    """How long the database keeps what, in whole days (UTC). Each kind at least as long as the one above."""

    records_days: Days | None = Field(
        default=None,
        description="Days that single records are kept; null keeps them for ever. Totals of hours and days "
        "go on without them.",
    )
    hourly_days: Days | None = Field(
        default=None, description="Days that the totals of hours are kept; null keeps them for ever."
    )
    daily_days: Days | None = Field(
        default=None,
        description="Days that the totals of days, of which bills are made, are kept; null: for ever.",
    )

    @field_validator("hourly_days", "daily_days")
    @classmethod
    def _check_order(cls, days: int | None, info: ValidationInfo) -> int | None:
        """Each kind is what the next is made of: one that is kept for longer would disagree with it."""
        name = "records_days" if info.field_name == "hourly_days" else "hourly_days"
        shorter = info.data.get(name, 0)  # not there when it is wrong itself
        if days is not None and (shorter is None or shorter > days):
            raise ValueError(
                f"must be at least {name}, which is {'null: for ever' if shorter is None else shorter}"
            )
        return days


def _check_tag(name: str) -> str:
    if "\0" in name:
        raise ValueError("no tag has a NUL in its name")
    return name


TagName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_tag)]


class LedgerConfig(Section):
    """The append-only record of what was done."""

    segment_max_bytes: Bytes = Field(
        default=67_108_864, description="Size at which a worker starts a new segment file."
    )
    ingest_interval_s: Seconds = Field(
        default=0.5, description="Seconds between two readings of the segments."
    )
    keep_segments_s: SecondsOrZero = Field(
        default=86_400.0, description="Seconds that a segment stays on disk after the database has all of it."
    )
    retention: RetentionConfig = Field(
        default=RetentionConfig(), description="How long the database keeps what."
    )
    rollup_tags: Annotated[tuple[TagName, ...], Field(max_length=16)] = Field(
        default=(),
        description="Names in requests' `metadata` that get totals of their own, so that bills by them are "
        "quick and outlive the records. For those with few values, such as `customer`.",
    )
    rollup_values_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = Field(
        default=500,
        description="Values of each of them that a day has totals for. Where there are more, a bill by that "
        "tag reads the records.",
    )

    @property
    def rollups(self) -> Rollups:
        return Rollups(tags=tuple(dict.fromkeys(self.rollup_tags)), values_max=self.rollup_values_max)
