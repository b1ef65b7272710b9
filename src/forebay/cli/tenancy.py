"""What the commands about keys, teams, tokens and the audit share: the database, who acts, times and rights.

They work straight on the database, so they do whether Forebay runs or not; a running control plane sees the
change and hands it to the gateway's workers.
"""

import getpass
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.database import open_database
from forebay.cli.terminal import BadOption, Failure, is_plain, print_line
from forebay.cli.usable_config import load_usable_config
from forebay.core.errors import InvalidValue
from forebay.core.keys import ALL_MODELS, Rights
from forebay.gateway.repos import Repos
from forebay.gateway.tenancy import Actor
from forebay.store.errors import StoreMissing

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGES: Final = "90m, 24h, 7d, 2w"
_ENDS: Final = f"{_AGES}, or a date like 2027-01-31 (UTC)"
#: What is at fault by its name in the records, by its name here, and what would be right.
_OPTIONS: Final = {
    "models": ("--model", "a pattern such as `gpt-*`; without the option: all models"),
    "endpoints": ("--endpoint", "without the option: all"),
    "regions": ("--region", "a name such as `eu-west`; without the option: all"),
    "tier_max": ("--tier-max", "without the option: any"),
    "context_max_tokens": ("--context-max", "a number of tokens; without the option: no limit"),
    "output_max_tokens": ("--output-max", "a number of tokens; without the option: no limit"),
    "priority": ("--priority", "`standard` is the usual one"),
    "expires": ("--expires", _ENDS),
    "overlap_s": ("--overlap", f"0, {_AGES}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsOptions:
    """Rights as they were named on the command line; None where they were not."""

    models: list[str] | None = None
    endpoints: list[str] | None = None
    regions: list[str] | None = None
    tier_max: str | None = None
    context_max_tokens: int | None = None
    output_max_tokens: int | None = None

    def apply(self, before: Rights) -> Rights:
        """What was named, else as before.  An empty text or 0 lifts a limit."""
        return Rights(
            models=before.models if self.models is None else _without_empty(self.models) or ALL_MODELS,
            endpoints=before.endpoints if self.endpoints is None else _without_empty(self.endpoints),
            regions=before.regions if self.regions is None else _without_empty(self.regions),
            tier_max=before.tier_max if self.tier_max is None else self.tier_max or None,
            context_max_tokens=_apply_count(before.context_max_tokens, self.context_max_tokens),
            output_max_tokens=_apply_count(before.output_max_tokens, self.output_max_tokens),
        )

    def make(self) -> Rights:
        """For something new, of which an empty text is no right."""
        return Rights(
            models=tuple(self.models or ALL_MODELS),
            endpoints=tuple(self.endpoints or ()),
            regions=tuple(self.regions or ()),
            tier_max=self.tier_max,
            context_max_tokens=self.context_max_tokens,
            output_max_tokens=self.output_max_tokens,
        )


@contextmanager
def open_repos(file: Path | None, *, create: bool = False) -> Iterator[Repos]:
    """What is kept in the data folder, as `open_folder`."""
    with open_folder(file, create=create) as (repos, _):
        yield repos


@contextmanager
def open_folder(file: Path | None, *, create: bool = False) -> Iterator[tuple[Repos, Path]]:
    """What is kept in the data folder, and which that is.

    Args:
        create: whether it is made where there is none; only a command that makes something asks for it.

    Raises:
        Failure: there is none.
        BadOption: what was asked for is not usable; it names the option.
    """
    config = load_usable_config(file)
    try:
        database = open_database(config, create=create)
    except StoreMissing:
        raise Failure(
            f"there is no database in the data folder {config.data_path}: nothing was made here yet",
            hint="`forebay up` makes it; `--config FILE` names the forebay.yaml of another one",
        ) from None
    try:
        database.migrate()
        yield Repos.open(database, SystemClock()), config.data_path
    except InvalidValue as error:
        if error.param not in _OPTIONS:
            raise BadOption(error.message) from None
        option, hint = _OPTIONS[error.param]
        raise BadOption(f"{option}: {error.message}", hint=hint) from None
    finally:
        database.close()


def find_actor() -> Actor:
    """Whoever sits here, by the name that the system knows."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "unknown"
    return Actor(id="command-line", name=name)


def parse_age_s(option: str, text: str, *, hint: str = f"0, {_AGES}") -> int:
    """Seconds.  Raises BadOption."""
    word = text.strip().casefold()
    if word == "0":
        return 0
    if found := re.fullmatch(r"(\d{1,6})([smhdw])", word):
        return int(found[1]) * _UNITS_S[found[2]]
    raise BadOption(f"can't understand {option} {text}", hint=hint)


def parse_end(text: str | None, now_ns: int) -> int | None:
    """The nanosecond at which something ends: an age from now on, or a moment.  Raises BadOption."""
    if text is None:
        return None
    if re.fullmatch(r"\s*\d+[smhdwSMHDW]\s*", text):
        return now_ns + parse_age_s("--expires", text, hint=_ENDS) * 10**9
    try:
        moment = datetime.fromisoformat(text.strip())
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * 10**9
    except (ValueError, OverflowError):
        raise BadOption(f"can't understand --expires {text}", hint=_ENDS) from None


def format_moment(time_ns: int | None) -> str:
    if time_ns is None:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_day(time_ns: int | None) -> str:
    """Only the day in a terminal, where room is scarce."""
    moment = format_moment(time_ns)
    return moment if is_plain() else moment[: len("2027-01-31")]


def describe_rights(rights: Rights) -> dict[str, object]:
    """For JSON."""
    return msgspec.structs.asdict(rights)


def format_rights(rights: Rights) -> str:
    """In a few words; empty where nothing is limited."""
    words = []
    if rights.models != ALL_MODELS:
        words.append(f"models {' '.join(rights.models)}")
    if rights.endpoints:
        words.append(f"endpoints {' '.join(rights.endpoints)}")
    if rights.regions:
        words.append(f"regions {' '.join(rights.regions)}")
    if rights.tier_max is not None:
        words.append(f"up to tier {rights.tier_max}")
    if rights.context_max_tokens is not None:
        words.append(f"context {rights.context_max_tokens}")
    if rights.output_max_tokens is not None:
        words.append(f"output {rights.output_max_tokens}")
    return ", ".join(words)


def print_json(value: object) -> None:
    print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _without_empty(texts: list[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if text)


def _apply_count(before: int | None, named: int | None) -> int | None:
    return before if named is None else named or None
