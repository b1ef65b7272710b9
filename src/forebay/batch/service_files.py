"""`/v1/files` as callers ask for it: contents go to the disk and come from there piece by piece.

It answers with OpenAI's documents.  What it is asked for lies in its owner's project, or is not there.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from forebay.batch.disk import WRITE_BYTES, Disk, Upload
from forebay.batch.model import (
    PURPOSE_BATCH,
    DiskRefuses,
    FileElsewhere,
    FileRecord,
    FileTooLarge,
    Owner,
)
from forebay.batch.repo_files import FileRepo, Page, check_quota
from forebay.batch.settings import BatchSettings
from forebay.batch.upload import FormReader, PartBegin, PartData, PartEnd, read_boundary
from forebay.core.batch_calls import CallHead
from forebay.core.clock import Clock
from forebay.core.errors import CallerError, InvalidValue, MissingField

FIELD_MAX_BYTES: Final = 1024
FILENAME_MAX_CHARS: Final = 255
EXPIRES_S: Final = (3600, 30 * 86_400)  #: what a caller may ask for, as OpenAI has it
FORM_OVERHEAD_BYTES: Final = 64 * 1024  #: of a form, beside its file
LIST_MAX: Final = 10_000
_FIELDS: Final = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})

Pieces = AsyncIterator[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A file that is to be handed out."""

    path: Path
    filename: str


class Files:
    """See the module."""

    def __init__(self, repo: FileRepo, disk: Disk, settings: BatchSettings, clock: Clock) -> None:
        self._repo = repo
        self._disk = disk
        self._settings = settings
        self._clock = clock

    async def create(self, head: CallHead, pieces: Pieces) -> dict[str, Any]:
        """Raises CallerError, DiskRefuses, StoreError; nothing is left of such an upload."""
        settings, owner = self._settings, make_owner(head)
        reader = FormReader(read_boundary(head.content_type))
        if head.length is not None and head.length > settings.file_max_bytes + FORM_OVERHEAD_BYTES:
            raise _too_large(settings)
        count, size = await asyncio.to_thread(self._repo.measure, owner)
        check_quota(owner, count + 1, size, settings.file_quota)
        receiver = _Receiver(self._disk, f"file-{secrets.token_hex(12)}", settings)
        try:
            await receiver.receive(reader, pieces)
            reader.finish()
            expires_ns = self._find_expiry(receiver.fields)
            upload = receiver.check()
            digest = await asyncio.to_thread(upload.keep)
        except BaseException:
            receiver.drop()
            raise
        record = FileRecord(
            id=receiver.file_id,
            owner=owner,
            key=head.key,
            filename=receiver.filename,
            purpose=PURPOSE_BATCH,
            size=upload.size,
            sha256=digest,
            store=self._disk.store,
            created_ns=self._clock.wall_ns(),
            expires_ns=expires_ns,
        )
        try:
            await asyncio.to_thread(self._repo.add, record, settings.file_quota)
        except BaseException:
            await asyncio.to_thread(self._disk.remove, [record.id])
            raise
        return show_file(record)

    def _find_expiry(self, fields: Mapping[str, str]) -> int:
        wanted = fields.get("expires_after[seconds]")
        anchor = fields.get("expires_after[anchor]", "created_at")
        if anchor != "created_at":
            raise InvalidValue("expires_after.anchor must be created_at", param="expires_after[anchor]")
        keep_s = self._settings.keep_files_s
        if wanted is not None:
            low, high = EXPIRES_S
            if not wanted.isdecimal() or not low <= int(wanted) <= high:
                raise InvalidValue(
                    f"expires_after.seconds must be {low} to {high}", param="expires_after[seconds]"
                )
            keep_s = min(keep_s, float(wanted))
        return self._clock.wall_ns() + round(keep_s * 1e9)

    async def list(self, head: CallHead) -> dict[str, Any]:
        query = read_query(head.query, {"after", "limit", "order", "purpose"})
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidValue("order must be asc or desc", param="order")
        page = Page(
            limit=read_limit(query, LIST_MAX, LIST_MAX),
            after=query.get("after"),
            is_ascending=order == "asc",
        )
        records, has_more = await asyncio.to_thread(
            self._repo.load_page, make_owner(head), page, query.get("purpose")
        )
        return show_list([show_file(record) for record in records], has_more)

    async def get(self, head: CallHead, file_id: str) -> dict[str, Any]:
        return show_file(await asyncio.to_thread(self._repo.get, make_owner(head), file_id))

    async def delete(self, head: CallHead, file_id: str) -> dict[str, Any]:
        record = await asyncio.to_thread(self._repo.delete, make_owner(head), file_id, head.key)
        if record.store == self._disk.store:
            await asyncio.to_thread(self._disk.remove, [file_id])
        return {"id": file_id, "object": "file", "deleted": True}

    async def open_content(self, head: CallHead, file_id: str) -> Content:
        """Raises FileNotThere, FileElsewhere."""
        record = await asyncio.to_thread(self._repo.get, make_owner(head), file_id)
        if record.store != self._disk.store:
            raise FileElsewhere(
                f"the content of {file_id} lies on another machine of this database: ask that one"
            )
        path = self._disk.path(file_id)
        if not path.is_file():
            raise DiskRefuses(f"the content of {file_id} is not on the disk any more; upload it again")
        return Content(path=path, filename=record.filename)


class _Receiver:
    """The parts of one form, on their way to the disk."""

    def __init__(self, disk: Disk, file_id: str, settings: BatchSettings) -> None:
        self._disk = disk
        self._settings = settings
        self._upload: Upload | None = None
        self._field = ""
        self._held = bytearray()
        self.file_id = file_id
        self.filename = ""
        self.fields: dict[str, str] = {}

    async def receive(self, reader: FormReader, pieces: Pieces) -> None:
        async for piece in pieces:
            for event in reader.feed(piece):
                match event:
                    case PartBegin(name, filename):
                        self._begin(name, filename)
                    case PartData(data):
                        await self._take(data)
                    case PartEnd():
                        await self._end()

    def _begin(self, name: str, filename: str | None) -> None:
        self._held.clear()
        self._field = name
        if name == "file":
            if self._upload is not None:
                raise InvalidValue("the form has two files; send one", param="file")
            if filename is None:
                raise InvalidValue("`file` is a plain field; send it as a file", param="file")
            name = filename.replace("\\", "/").rpartition("/")[2]
            self.filename = "".join(c for c in name if c.isprintable())[:FILENAME_MAX_CHARS] or "file"
            self._upload = self._disk.begin(self.file_id)
        elif name not in _FIELDS:
            raise InvalidValue(f"the form has a field {name[:100]!r}, which means nothing here", param=name)
        elif name in self.fields:
            raise InvalidValue(f"`{name}` stands twice in the form; send it once", param=name)

    async def _take(self, data: bytes) -> None:
        self._held += data
        if self._field != "file":
            if len(self._held) > FIELD_MAX_BYTES:
                raise InvalidValue(
                    f"`{self._field}` is longer than {FIELD_MAX_BYTES} bytes", param=self._field
                )
            return
        assert self._upload is not None
        if self._upload.size + len(self._held) > self._settings.file_max_bytes:
            raise _too_large(self._settings)
        if len(self._held) >= WRITE_BYTES:
            await self._write()

    async def _end(self) -> None:
        if self._field == "file":
            await self._write()
        else:
            self.fields[self._field] = self._held.decode("utf-8", "replace")

    async def _write(self) -> None:
        assert self._upload is not None
        data = bytes(self._held)
        self._held.clear()
        if data:
            await asyncio.to_thread(self._upload.write, data)

    def check(self) -> Upload:
        """Raises MissingField, InvalidValue."""
        purpose = self.fields.get("purpose")
        if purpose is None:
            raise MissingField("the form has no `purpose`; it must be batch", param="purpose")
        if purpose != PURPOSE_BATCH:
            raise InvalidValue(f"the purpose {purpose[:100]!r} is not served; use batch", param="purpose")
        if self._upload is None:
            raise MissingField("the form has no `file`", param="file")
        return self._upload

    def drop(self) -> None:
        if self._upload is not None:
            self._upload.drop()


def make_owner(head: CallHead) -> Owner:
    return Owner(team=head.team, project=head.project)


def read_query(query: str, known: set[str]) -> dict[str, str]:
    """Raises InvalidValue for what means nothing here."""
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise InvalidValue("the query of the address can't be read") from None
    for name, values in found.items():
        if name not in known or len(values) > 1:
            what = "stands twice" if name in known else "means nothing here"
            raise InvalidValue(f"{name[:100]!r} {what} in the query", param=name[:100])
    return {name: values[0] for name, values in found.items()}


def read_limit(query: Mapping[str, str], default: int, most: int) -> int:
    text = query.get("limit", str(default))
    if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= most:
        raise InvalidValue(f"limit must be 1 to {most}", param="limit")
    return int(text)


def show_list(data: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def show_file(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size,
        "created_at": record.created_ns // 10**9,
        "expires_at": None if record.expires_ns is None else record.expires_ns // 10**9,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def _too_large(settings: BatchSettings) -> CallerError:
    return FileTooLarge(f"the file is larger than {settings.file_max_bytes} bytes (batch.file_max_bytes)")
