"""What the admin API takes and gives, as types: the OpenAPI document is made from them.

No secret has a field here but as a reference such as `env:NAME`.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

#: Letters of Latin, Greek, Cyrillic, Japanese, Chinese and Korean, digits, signs; blanks only inside.
_SIGNS = r"!-~\u00a1-\u00ac\u00ae-\u0377\u0400-\u052f\u3041-\u3096\u30a1-\u30ff\u4e00-\u9fff\uac00-\ud7a3"
KEY_NAME_PATTERN = rf"^[{_SIGNS}]([ {_SIGNS}]{{0,98}}[{_SIGNS}])?$"

KeyId = Annotated[str, StringConstraints(pattern=r"^key_[0-9a-f]{16}$")]


class View(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorDetail(View):
    message: str = Field(description="What was wrong, and how to mend it.")
    type: str
    param: str | None = Field(description="The field or parameter at fault.")
    code: str = Field(description="A stable name for programs.")


class ErrorEnvelope(View):
    """Every error of this API."""

    error: ErrorDetail


class Health(View):
    status: Literal["ok"] = "ok"


# --- status -------------------------------------------------------------------------------------------------


class ProcessView(View):
    name: str
    state: str
    pid: int | None
    since_s: float = Field(description="Unix time of the last change of state.")
    restarts: int
    last_exit: str = Field(description="How its last process ended; empty if none has.")


class WorkerView(View):
    name: str
    current: bool = Field(description="Whether it runs the snapshot that was written last.")
    snapshot_hash: str | None = Field(description="Of the one that it runs; null where it has not said yet.")
    refused: str | None = Field(description="Why the newest snapshot is of no use to it.")
    problems: list[str] = Field(description="Targets that it can't send to, and why.")


class SnapshotView(View):
    hash: str = Field(description="Names the snapshot: routes, keys and limits.")
    route_hash: str = Field(description="Names the route table; stands on every record made with it.")
    written_at_s: float | None = Field(description="Unix time; null while none could be written.")
    models: int
    keys: int
    error: str | None = Field(description="Why the newest snapshot could not be written.")


class ConfigStateView(View):
    file: str | None = Field(description="Null when there is no file and the defaults apply.")
    valid: bool = Field(description="Whether the file's present content is in force.")
    problems: list[str] = Field(description="What is wrong with it.")
    restart_needed: list[str] = Field(description="Settings that were edited and wait for a restart.")
    engines_missing: list[str] = Field(description="Engines that models name and that do not run yet.")


class IngestView(View):
    last_success_s: float | None = Field(description="Unix time of the last complete reading.")
    lag_s: float | None = Field(description="Seconds since then.")
    lag_bytes: int = Field(description="Bytes of segments that are not in the database yet.")
    records: int = Field(description="Taken into the database since this process started.")
    set_aside: int = Field(description="Damaged or unreadable records that were kept apart since then.")
    error: str | None = Field(description="Why the last reading failed.")
    problems: list[str] = Field(description="Segments that could not be read to their end.")


class RemovedView(View):
    kind: str = Field(description="`records`, `hourly` or `daily`: the totals of hours and days.")
    gone_before_s: float = Field(description="Unix time; what is older may be gone.")
    rows: int = Field(description="Removed since the ledger began.")
    last_s: float | None = Field(description="Unix time of the last removal.")


class RetentionView(View):
    """What became of `ledger.retention`."""

    looked_at_s: float | None = Field(description="Unix time of the last look for what is too old.")
    removed: list[RemovedView] = Field(description="Kinds of which something was removed.")
    error: str | None = Field(description="Why the last removal failed; it is tried again.")


class StatusView(View):
    version: str
    started_at_s: float
    gateway_url: str | None
    control_url: str | None
    processes: list[ProcessView]
    workers: list[WorkerView]
    snapshot: SnapshotView
    config: ConfigStateView
    ingest: IngestView
    retention: RetentionView


# --- configuration and models -------------------------------------------------------------------------------


class ConfigView(View):
    state: ConfigStateView
    effective: dict[str, Any] = Field(
        description="The whole configuration in force, defaults included, in the shape of forebay.yaml."
    )


class TargetView(View):
    id: str
    pool: str
    tier: str
    region: str | None = Field(description="As `forebay.yaml` says; null when it says nothing.")
    version: str | None = Field(description="Of the model there; likewise.")
    url: str
    model: str = Field(description="The model's name there.")
    api_key: str | None = Field(description="A reference, never the key.")


class ModelView(View):
    name: str
    endpoints: list[str]
    targets: list[TargetView] = Field(description="In the order in which they are tried.")


class ModelList(View):
    data: list[ModelView]
