"""`forebay batch`: batches at the gateway that runs here or another, over the API that everybody has.

Files are sent and taken piece by piece, whatever their size.
"""

import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forebay.cli.gateway_client import Broken, GatewayClient
from forebay.cli.gateway_door import open_gateway
from forebay.cli.tables import Column, Table, print_table
from forebay.cli.tenancy import format_moment, print_json
from forebay.cli.terminal import Failure, Outcome, print_error, print_line, print_note

LOOK_S: Final = 1.0
READ_BYTES: Final = 1024 * 1024
_ENDED: Final = ("completed", "failed", "expired", "cancelled")
_COLUMNS: Final = (
    Column(title="Batch", kind="whole"),
    Column(title="State", kind="whole"),
    Column(title="Lines", align="right", kind="whole"),
    Column(title="Answered", align="right", kind="whole"),
    Column(title="Failed", align="right", kind="whole"),
    Column(title="Endpoint", rank=2),
    Column(title="Created", kind="whole", rank=1),
)


class _Counts(msgspec.Struct, kw_only=True):
    total: int
    completed: int
    failed: int


class _Problem(msgspec.Struct, kw_only=True):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class _Problems(msgspec.Struct, kw_only=True):
    data: list[_Problem]


class _Batch(msgspec.Struct, kw_only=True):
    id: str
    status: str
    endpoint: str
    created_at: int
    expires_at: int
    input_file_id: str
    request_counts: _Counts
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Problems | None = None


class _Page(msgspec.Struct, kw_only=True):
    data: list[_Batch]


class _File(msgspec.Struct, kw_only=True):
    id: str


def open_batches(
    file: Path | None, url: str | None, key: str | None, *, as_json: bool = False
) -> "BatchCommands":
    """Raises Failure, ConfigInvalid."""
    return BatchCommands(open_gateway(file, url, key), as_json=as_json)


class BatchCommands:
    """What the commands do.  Each raises Failure, and OSError for a file of the caller's."""

    def __init__(self, client: GatewayClient, *, as_json: bool) -> None:
        self._client = client
        self._as_json = as_json

    def submit(self, path: Path, endpoint: str, *, wait: bool) -> Outcome:
        uploaded = _decode(self._upload(path), _File)
        wanted = {"input_file_id": uploaded.id, "endpoint": endpoint, "completion_window": "24h"}
        body = self._client.call("POST", "/batches", msgspec.json.encode(wanted))
        batch = _decode(body, _Batch)
        if wait:
            return self._follow(batch.id)
        if self._as_json:
            print_json(msgspec.json.decode(body))
        else:
            print_line(batch.id)
            print_note(f"forebay batch show {batch.id} --wait")
        return Outcome.OK

    def list_newest(self, limit: int) -> Outcome:
        body = self._client.call("GET", f"/batches?limit={limit}")
        batches = _decode(body, _Page).data
        if self._as_json:
            print_json(msgspec.json.decode(body))
        elif not batches:
            print_line("no batches yet; `forebay batch submit` begins one")
        else:
            print_table(Table(columns=_COLUMNS, rows=[_make_row(batch) for batch in batches]))
        return Outcome.OK

    def show(self, batch_id: str, *, wait: bool) -> Outcome:
        return self._follow(batch_id) if wait else self._print(self._fetch(batch_id))

    def cancel(self, batch_id: str) -> Outcome:
        return self._print(self._client.call("POST", f"/batches/{quote(batch_id, safe='')}/cancel", b""))

    def results(self, batch_id: str, *, errors: bool) -> Outcome:
        batch = _decode(self._fetch(batch_id), _Batch)
        file_id = batch.error_file_id if errors else batch.output_file_id
        if file_id is None:
            if batch.status in _ENDED:
                print_note(f"no line of {batch_id} has {'failed' if errors else 'an answer'}")
                return Outcome.OK
            raise Failure(
                f"the batch {batch_id} is {batch.status}", hint=f"forebay batch show {batch_id} --wait"
            )
        for piece in self._client.stream(f"/files/{file_id}/content"):
            sys.stdout.buffer.write(piece)
        return Outcome.OK

    # --- inside ---------------------------------------------------------------------------------------------

    def _fetch(self, batch_id: str) -> bytes:
        return self._client.call("GET", f"/batches/{quote(batch_id, safe='')}")

    def _upload(self, path: Path) -> bytes:
        boundary = secrets.token_hex(16)
        name = path.name.replace('"', "_").replace("\\", "_")
        head = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        size = path.stat().st_size

        def read() -> Iterator[bytes]:
            yield head
            left = size
            with path.open("rb") as file:
                while left and (data := file.read(min(READ_BYTES, left))):
                    left -= len(data)
                    yield data
            if left:
                raise Failure(f"{path} became shorter while it was read", hint="is it being written still?")
            yield tail

        return self._client.send_form("/files", read(), len(head) + size + len(tail), boundary)

    def _follow(self, batch_id: str) -> Outcome:
        """Until it has ended."""
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=None)
            while True:
                body = self._fetch(batch_id)
                batch = _decode(body, _Batch)
                counts = batch.request_counts
                done = counts.completed + counts.failed
                bar.update(task, description=batch.status, total=counts.total or None, completed=done)
                if batch.status in _ENDED:
                    break
                time.sleep(LOOK_S)
        return self._print(body)

    def _print(self, body: bytes) -> Outcome:
        batch = _decode(body, _Batch)
        if self._as_json:
            print_json(msgspec.json.decode(body))
        else:
            _print_batch(batch)
        return Outcome.PROBLEM if batch.status in ("failed", "expired") else Outcome.OK


def _print_batch(batch: _Batch) -> None:
    print_table(Table(columns=_COLUMNS, rows=[_make_row(batch)]))
    for name, file_id in (("answers", batch.output_file_id), ("errors", batch.error_file_id)):
        if file_id is not None:
            flag = " --errors" if name == "errors" else ""
            print_note(f"{name}: forebay batch results {batch.id}{flag}")
    for problem in batch.errors.data if batch.errors else ():
        where = "" if problem.line is None else f"line {problem.line}: "
        print_error(f"{where}{problem.message}")


def _make_row(batch: _Batch) -> list[str]:
    counts = batch.request_counts
    return [
        *(batch.id, batch.status, f"{counts.total:,}", f"{counts.completed:,}", f"{counts.failed:,}"),
        *(batch.endpoint, format_moment(batch.created_at * 10**9)),
    ]


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        raise Broken(
            "the gateway does not answer as OpenAI's API has it", hint="is the address right?"
        ) from None
