"""The nouns of batches: files, batches, their owners and states, and what is refused.

Pure: it knows neither the database nor the time.  A batch belongs to a project, and names the key that it was
created with, on whose behalf every line of it is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forebay.core.errors import CallerError, ForebayError, Overloaded

PURPOSE_BATCH: Final = "batch"
PURPOSE_OUTPUT: Final = "batch_output"
#: What the lines of a batch may be asked of, as their `url`.
ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
WINDOWS_S: Final[Mapping[str, int]] = {"24h": 86_400}  #: by `completion_window`


class FileNotThere(CallerError):
    status = 404
    code = "file_not_found"


class BatchNotThere(CallerError):
    status = 404
    code = "batch_not_found"


class FileInUse(CallerError):
    status = 409
    code = "file_in_use"


class BatchEnded(CallerError):
    """It is finished, or being so: there is nothing to cancel."""

    status = 409
    code = "batch_ended"


class FileTooLarge(CallerError):
    status = 413
    code = "file_too_large"


class QuotaReached(CallerError):
    """A project has as many files, bytes or unfinished batches as it may."""

    status = 429
    type = "rate_limit_error"
    code = "batch_quota_reached"


class DiskRefuses(Overloaded):
    code = "disk_refuses"


class FileElsewhere(ForebayError):
    """The database is shared by several machines, and each keeps the contents that it was sent."""

    status = 503
    type = "overloaded_error"
    code = "file_elsewhere"


class Status(StrEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose files and batches they are: nobody else sees them."""

    team: str
    project: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """Times are nanoseconds since the epoch."""

    id: str
    owner: Owner
    key: str  #: id of the key that it came with
    filename: str
    purpose: str
    size: int
    sha256: str
    store: str  #: which machine's folder has the content
    created_ns: int
    expires_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Lines; `completed` and `failed` are those that are written."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class LineError:
    """Why an input file is refused, as OpenAI tells it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Times are nanoseconds since the epoch; `times` has that at which each state began."""

    id: str
    owner: Owner
    key: str
    store: str
    endpoint: str
    input_file: str
    window: str
    metadata: Mapping[str, str] | None
    status: Status
    created_ns: int
    expires_ns: int
    times: Mapping[Status, int] = field(default_factory=dict)
    counts: Counts = Counts()
    output_file: str  #: its id, also before there is one
    error_file: str
    has_output: bool = False
    has_errors: bool = False
    errors: tuple[LineError, ...] = ()
