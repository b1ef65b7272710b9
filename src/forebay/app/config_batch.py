"""The section `batch` of `forebay.yaml`: files, and requests that wait for idle capacity.  Pure."""

from typing import Annotated

from pydantic import Field, StrictBool, StrictInt

from forebay.app.config_values import Bytes, Count, Seconds, Section
from forebay.batch.settings import BatchSettings

DEFAULTS = BatchSettings()
Requests = Annotated[StrictInt, Field(ge=1, le=10_000)]


class BatchConfig(Section):
    """OpenAI's files and batches."""

    enabled: StrictBool = Field(
        default=True, description="Serves `/v1/files` and `/v1/batches`, and runs batches on this machine."
    )
    requests_max: Requests = Field(
        default=DEFAULTS.requests_max, description="Lines of all batches that are asked at the same time."
    )
    requests_max_per_batch: Requests = Field(
        default=DEFAULTS.requests_max_per_batch,
        description="Lines of one batch that are asked at the same time. It begins with 2 and comes to this "
        "while answers are good; each 429 and 503 halves it.",
    )
    attempts_max: Annotated[StrictInt, Field(ge=1, le=100)] = Field(
        default=DEFAULTS.attempts_max,
        description="Times that a line is asked whose answer is an error such as 500, 502 or 504, or breaks "
        "off. Where a limit or a full model says when to come again, a line waits as long as its batch may.",
    )
    in_flight_max_bytes: Bytes = Field(
        default=DEFAULTS.in_flight_max_bytes,
        description="Lines that are being asked, all together; beyond it no other is begun.",
    )
    grace_s: Seconds = Field(
        default=DEFAULTS.grace_s,
        description="Seconds that lines in flight get to finish when their batch is cancelled or expires.",
    )
    file_max_bytes: Bytes = Field(
        default=DEFAULTS.file_max_bytes, description="Largest file; a larger one is answered 413."
    )
    lines_max: Count = Field(default=DEFAULTS.lines_max, description="Requests in one input file.")
    line_max_bytes: Bytes = Field(
        default=DEFAULTS.line_max_bytes,
        description="Longest line of an input file; a body is bounded by `gateway.body_max_bytes` as well.",
    )
    project_files_max: Count = Field(
        default=DEFAULTS.project_files_max,
        description="Files of a project, those that batches made included.",
    )
    project_max_bytes: Bytes = Field(
        default=DEFAULTS.project_max_bytes,
        description="Bytes of a project's files together, beyond which it can upload no more.",
    )
    project_batches_max: Count = Field(
        default=DEFAULTS.project_batches_max, description="Unfinished batches of a project."
    )
    keep_files_s: Seconds = Field(
        default=DEFAULTS.keep_files_s,
        description="Seconds that a file is kept, unless its caller asks for less with `expires_after`.",
    )
    keep_batches_s: Seconds = Field(
        default=DEFAULTS.keep_batches_s,
        description="Seconds after its end that a batch can still be asked for.",
    )

    def compile(self) -> BatchSettings:
        return BatchSettings(**self.model_dump(exclude={"enabled"}))
