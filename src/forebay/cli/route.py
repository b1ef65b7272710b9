"""`forebay route explain`: where a request would go, as the control plane says, for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec

from forebay.cli.admin_client import fetch_admin
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import Failure, Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config

_COLUMNS: Final = (
    Column(title="Try", align="right", kind="whole"),
    Column(title="Target"),
    Column(title="Pool", rank=2),
    Column(title="Tier", kind="whole", rank=1),
    Column(title="Region", rank=3),
    Column(title="In flight", align="right", rank=4),
    Column(title="Used", align="right", rank=5),
    Column(title="Engine", rank=6),
    Column(title="Why not", kind="prose"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    model: str
    key: str | None
    priority: str | None
    endpoint: str
    tokens: int
    needs: tuple[str, ...]
    draw: float

    @property
    def query(self) -> str:
        given = {
            "model": self.model,
            "key": self.key,
            "priority": self.priority,
            "endpoint": self.endpoint,
            "tokens": self.tokens,
            "needs": self.needs,
            "draw": self.draw,
        }
        return urlencode({name: value for name, value in given.items() if value is not None}, doseq=True)


class _Engine(msgspec.Struct, kw_only=True):
    state: str
    running: int | None
    waiting: int | None
    kv_cache_used: float | None


class _Candidate(msgspec.Struct, kw_only=True):
    target: str
    pool: str
    tier: str
    region: str | None
    rank: int | None
    rejected: str | None
    why: str
    requests: int | None
    used: float | None
    engine: _Engine | None
    quota_used: float | None


class _Explained(msgspec.Struct, kw_only=True):
    """Of `GET /admin/v1/routes/explain`."""

    chosen_by: str
    fallbacks: list[str]
    candidates: list[_Candidate]


def explain_route(file: Path | None, question: Question, *, as_json: bool) -> Outcome:
    body = fetch_admin(load_usable_config(file), f"/routes/explain?{question.query}")
    try:
        explained = msgspec.json.decode(body, type=_Explained)
    except msgspec.DecodeError:
        raise Failure(
            "the control plane does not answer like this version of Forebay",
            hint="restart `forebay up` after an update",
        ) from None
    tried = [each for each in explained.candidates if each.rank is not None]
    if as_json:
        print_line(msgspec.json.format(body, indent=2).decode())
    else:
        print_table(Table(columns=_COLUMNS, rows=[_make_row(each) for each in explained.candidates]))
        if explained.chosen_by == "listed":
            print_note("targets are tried in the order of forebay.yaml")
        if explained.fallbacks:
            print_note(f"where none of them answers: {', '.join(explained.fallbacks)}")
        if any(each.engine is not None and each.engine.state == "unknown" for each in tried):
            print_note(
                "an engine that is `unknown` can't be asked: if it fails requests too, the workers "
                "leave it out; `x-forebay-debug: route` shows that (docs/routing.md)"
            )
        if tried and all(each.used is not None and each.used >= 1 for each in tried):
            print_note(
                "all places are full: requests wait, or are refused with Retry-After (docs/routing.md)"
            )
        if not tried:
            print_note("no target can answer such a request")
    return Outcome.OK if tried else Outcome.PROBLEM


def _make_row(candidate: _Candidate) -> Sequence[str | Cell]:
    rank = "" if candidate.rank is None else str(candidate.rank + 1)
    why = candidate.why or candidate.rejected or ("" if rank else "beyond gateway.attempts_max")
    style = "red" if candidate.rejected else ""
    return (
        rank,
        candidate.target,
        candidate.pool,
        candidate.tier,
        candidate.region or "",
        "" if candidate.requests is None else str(candidate.requests),
        "" if candidate.used is None else f"{candidate.used:.0%}",
        _describe_engine(candidate),
        Cell(text=why, style=style),
    )


def _describe_engine(candidate: _Candidate) -> str:
    """What engine or provider said; empty where neither did."""
    engine = candidate.engine
    if engine is None:
        return "" if candidate.quota_used is None else f"{candidate.quota_used:.0%} of its quota"
    parts = [engine.state]
    if engine.running is not None:
        parts.append(f"{engine.running} run")
    if engine.waiting is not None:
        parts.append(f"{engine.waiting} wait")
    if engine.kv_cache_used is not None:
        parts.append(f"KV {engine.kv_cache_used:.0%}")
    return ", ".join(parts)
