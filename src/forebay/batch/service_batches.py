"""`/v1/batches` as callers ask for it, with OpenAI's documents.  Running them is `runner`'s."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from forebay.batch.disk import Disk
from forebay.batch.model import ENDPOINTS, WINDOWS_S, BatchRecord, Status
from forebay.batch.repo_batches import BatchRepo
from forebay.batch.repo_files import Page
from forebay.batch.runner import Runner
from forebay.batch.service_files import make_owner, read_limit, read_query, show_list
from forebay.batch.settings import BatchSettings
from forebay.core.batch_calls import CallHead
from forebay.core.clock import Clock
from forebay.core.errors import BodyTooLarge, InvalidJSON, InvalidValue

BODY_MAX_BYTES: Final = 64 * 1024
METADATA_MAX: Final = (16, 64, 512)  #: pairs, characters of a name and of a value, as OpenAI has it
LIST_MAX: Final = 100
LIST_DEFAULT: Final = 20


class NewBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller wants."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class Batches:
    """See the module."""

    def __init__(
        self, repo: BatchRepo, runner: Runner, disk: Disk, settings: BatchSettings, clock: Clock
    ) -> None:
        self._repo = repo
        self._runner = runner
        self._disk = disk
        self._settings = settings
        self._clock = clock

    async def create(self, head: CallHead, pieces: AsyncIterator[bytes]) -> dict[str, Any]:
        """Raises CallerError, FileElsewhere, StoreError."""
        wanted = _check(await _read_json(pieces))
        now_ns = self._clock.wall_ns()
        record = BatchRecord(
            id=f"batch_{secrets.token_hex(16)}",
            owner=make_owner(head),
            key=head.key,
            store=self._disk.store,
            endpoint=wanted.endpoint,
            input_file=wanted.input_file_id,
            window=wanted.completion_window,
            metadata=wanted.metadata,
            status=Status.VALIDATING,
            created_ns=now_ns,
            expires_ns=now_ns + WINDOWS_S[wanted.completion_window] * 10**9,
            output_file=f"file-{secrets.token_hex(12)}",
            error_file=f"file-{secrets.token_hex(12)}",
        )
        await asyncio.to_thread(self._repo.add, record, self._settings.project_batches_max)
        self._runner.wake()
        return self._show(record)

    async def get(self, head: CallHead, batch_id: str) -> dict[str, Any]:
        return self._show(await asyncio.to_thread(self._repo.get, make_owner(head), batch_id))

    async def list(self, head: CallHead) -> dict[str, Any]:
        query = read_query(head.query, {"after", "limit"})
        page = Page(limit=read_limit(query, LIST_DEFAULT, LIST_MAX), after=query.get("after"))
        records, has_more = await asyncio.to_thread(self._repo.load_page, make_owner(head), page)
        return show_list([self._show(record) for record in records], has_more)

    async def cancel(self, head: CallHead, batch_id: str) -> dict[str, Any]:
        record = await asyncio.to_thread(self._repo.cancel, make_owner(head), batch_id, head.key)
        self._runner.wake()
        return self._show(record)

    def _show(self, record: BatchRecord) -> dict[str, Any]:
        return show_batch(record, self._runner)


def show_batch(record: BatchRecord, runner: Runner) -> dict[str, Any]:
    times = {f"{status.value}_at": _seconds(record.times.get(status)) for status in Status}
    del times["validating_at"]
    counts = runner.find_counts(record)
    data = [
        {"code": each.code, "line": each.line, "message": each.message, "param": each.param}
        for each in record.errors
    ]
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "errors": {"object": "list", "data": data} if data else None,
        "input_file_id": record.input_file,
        "completion_window": record.window,
        "status": record.status.value,
        "output_file_id": record.output_file if record.has_output else None,
        "error_file_id": record.error_file if record.has_errors else None,
        "created_at": _seconds(record.created_ns),
        "expires_at": _seconds(record.expires_ns),
        **times,
        "request_counts": {
            "total": counts.total,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "metadata": record.metadata,
    }


def _seconds(at_ns: int | None) -> int | None:
    return None if at_ns is None else at_ns // 10**9


async def _read_json(pieces: AsyncIterator[bytes]) -> NewBatch:
    body = b""
    async for piece in pieces:
        body += piece
        if len(body) > BODY_MAX_BYTES:
            raise BodyTooLarge(f"the request body is larger than {BODY_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=NewBatch)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"this is no batch: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJSON(f"the request body is not valid JSON: {error}") from error


def _check(wanted: NewBatch) -> NewBatch:
    """Raises InvalidValue."""
    if wanted.endpoint not in ENDPOINTS:
        raise InvalidValue(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    if wanted.completion_window not in WINDOWS_S:
        raise InvalidValue(
            f"completion_window must be one of {', '.join(WINDOWS_S)}", param="completion_window"
        )
    _check_metadata(wanted.metadata or {})
    return wanted


def _check_metadata(metadata: Mapping[str, str]) -> None:
    pairs, name, value = METADATA_MAX
    if len(metadata) > pairs or any(len(k) > name or len(v) > value for k, v in metadata.items()):
        raise InvalidValue(
            f"metadata may have {pairs} texts of at most {value} characters, names of at most {name}",
            param="metadata",
        )
