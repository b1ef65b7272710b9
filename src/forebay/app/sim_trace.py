"""Reads a recorded load for the simulator from a file: CSV with a head, or JSON lines."""

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, Final

from forebay.core.keys import PRIORITIES
from forebay.sim.load import REQUESTS_MAX, Ask

FILE_MAX_BYTES: Final = 1 << 30
#: Columns, and other names that exports have for them.
NAMES: Final = {
    "at_s": ("at_s", "timestamp", "TIMESTAMP", "at", "time"),
    "input_tokens": ("input_tokens", "ContextTokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "GeneratedTokens", "completion_tokens"),
    "model": ("model",),
    "priority": ("priority",),
    "session": ("session",),
    "tenant": ("project", "tenant"),
}


def load_trace(path: Path, default_priority: str = "standard") -> list[Ask]:
    """By time, the first at 0.

    Raises:
        OSError: the file can't be read.
        ValueError: something in it is no request; says where.
    """
    if path.stat().st_size > FILE_MAX_BYTES:
        raise ValueError(f"{path} is longer than {FILE_MAX_BYTES >> 30} GiB")
    asks = []
    for number, row in _read_rows(path):
        try:
            asks.append(_read_ask(row, default_priority))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        if len(asks) > REQUESTS_MAX:
            raise ValueError(f"{path} has more than {REQUESTS_MAX:,} requests")
    if not asks:
        raise ValueError(f"{path} has no requests")
    asks.sort(key=lambda each: each.at_s)
    return _begin_at_zero(asks)


def _begin_at_zero(asks: list[Ask]) -> list[Ask]:
    first = asks[0].at_s
    return [_move(each, first) for each in asks]


def _move(ask: Ask, first: float) -> Ask:
    return Ask(
        at_s=ask.at_s - first,
        input_tokens=ask.input_tokens,
        output_tokens=ask.output_tokens,
        model=ask.model,
        priority=ask.priority,
        session=ask.session,
        tenant=ask.tenant,
    )


def _read_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".csv":
                for number, row in enumerate(csv.DictReader(file), 2):
                    yield number, row
                return
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    found = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{path}:{number} is no JSON: {error}") from None
                if not isinstance(found, dict):
                    raise ValueError(f"{path}:{number} is no JSON object")
                yield number, found
    except (UnicodeError, csv.Error) as error:
        raise ValueError(f"{path} is no text that can be read: {error}") from None


def _read_ask(row: Mapping[str, Any], default_priority: str) -> Ask:
    priority = _find(row, "priority") or default_priority
    if priority not in PRIORITIES:
        raise ValueError(f"the priority {priority!r} is none of {', '.join(PRIORITIES)}")
    return Ask(
        at_s=_read_time(_find(row, "at_s")),
        input_tokens=_read_count(row, "input_tokens"),
        output_tokens=_read_count(row, "output_tokens"),
        model=str(_find(row, "model") or ""),
        priority=str(priority),
        session=str(_find(row, "session") or ""),
        tenant=str(_find(row, "tenant") or ""),
    )


def _find(row: Mapping[str, Any], name: str) -> Any:
    return next((row[each] for each in NAMES[name] if row.get(each) not in (None, "")), None)


def _read_time(value: Any) -> float:
    """Seconds from any zero, or a moment as ISO 8601 writes it."""
    try:
        at = float(value)
    except (TypeError, ValueError):
        try:
            at = datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            raise ValueError(f"at_s is {value!r}: neither seconds nor a moment") from None
    if not isfinite(at):
        raise ValueError(f"at_s is {value!r}")
    return at


def _read_count(row: Mapping[str, Any], name: str) -> int:
    value = _find(row, name)
    try:
        count = int(float(value))
    except (TypeError, ValueError, OverflowError):
        count = 0
    if not 1 <= count <= 10_000_000:
        raise ValueError(f"{name} is {value!r}: a whole number from 1 on is needed")
    return count
