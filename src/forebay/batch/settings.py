"""How many files and batches there may be, and how lines are asked: `batch` of `forebay.yaml`, as values."""

from dataclasses import dataclass

from forebay.batch.repo_files import FileQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """See `app.config_batch` for what each means."""

    requests_max: int = 32
    requests_max_per_batch: int = 16
    attempts_max: int = 5
    in_flight_max_bytes: int = 256 * 1024 * 1024
    grace_s: float = 60.0
    file_max_bytes: int = 200 * 1024 * 1024
    lines_max: int = 50_000
    line_max_bytes: int = 32 * 1024 * 1024
    project_files_max: int = 10_000
    project_max_bytes: int = 20 * 1024 * 1024 * 1024
    project_batches_max: int = 100
    keep_files_s: float = 30 * 86_400.0
    keep_batches_s: float = 90 * 86_400.0

    @property
    def file_quota(self) -> FileQuota:
        return FileQuota(files_max=self.project_files_max, bytes_max=self.project_max_bytes)
