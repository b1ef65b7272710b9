"""The nouns of who may do what: actors, roles, teams, projects, keys and tokens as records, and their rules.

Pure: it validates and describes, and knows neither the database nor the time.  What `describe_*` gives goes
into the audit, so it must never hold a secret or the digest of one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from forebay.core.errors import CallerError, InvalidValue
from forebay.core.keys import PRIORITIES, TIERS, KeyEntry, Rights
from forebay.core.routes import Endpoint

PATTERNS_MAX: Final = 1000
REGIONS_MAX: Final = 100
TOKENS_MAX: Final = 10**12
DEFAULT: Final = "default"  #: the team, and its project, that are there from the start
_OWNER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_REGION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyNotFound(CallerError):
    status = 404
    code = "key_not_found"


class TeamNotFound(CallerError):
    status = 404
    code = "team_not_found"


class ProjectNotFound(CallerError):
    status = 404
    code = "project_not_found"


class TokenNotFound(CallerError):
    status = 404
    code = "token_not_found"


class KeyEnded(CallerError):
    """The key is revoked, expired or rotated already, so it can't be rotated, or not be changed."""

    status = 409
    code = "key_ended"


class Role(StrEnum):
    """What a token of the admin API may do; see `includes`."""

    REPORTER = "reporter"  #: reports signals, and nothing else: what lies in an application lets nobody in
    VIEWER = "viewer"  #: reads
    OPERATOR = "operator"  #: keys, teams, projects
    OWNER = "owner"  #: tokens as well

    def includes(self, other: "Role") -> bool:
        """Whether it may do what another may: each includes those before it, but a viewer reports nothing."""
        order = list(Role)
        if self is Role.VIEWER:
            return other is Role.VIEWER
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who changes something, for the audit."""

    id: str
    name: str
    issuer: str | None = None  #: of an identity provider's token: whose subject `id` is


#: The control plane itself, at its first start.
FOREBAY: Final = Actor(id="forebay", name="forebay")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """What a key is to be."""

    name: str
    project: str = DEFAULT
    team: str = DEFAULT
    rights: Rights = field(default_factory=Rights)
    priority: str = "standard"
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as its owner sees it.  Times are nanoseconds since the epoch."""

    entry: KeyEntry  #: as the workers see it, within the rights of its project
    rights: Rights  #: its own
    created_ns: int
    revoked_ns: int | None = None
    rotated_from: str | None = None  #: id of the key whose place it takes

    def is_live(self, now_ns: int) -> bool:
        expires_ns = self.entry.expires_ns
        return self.revoked_ns is None and (expires_ns is None or now_ns < expires_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTerms:
    """What of a key can be changed.  Its text, its team and its project can't."""

    name: str
    rights: Rights  #: its own
    priority: str
    expires_ns: int | None

    @classmethod
    def of(cls, record: KeyRecord) -> "KeyTerms":
        entry = record.entry
        return cls(
            name=entry.name, rights=record.rights, priority=entry.priority, expires_ns=entry.expires_ns
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRecord:
    name: str
    created_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRecord:
    team: str
    name: str
    rights: Rights  #: which no key of it exceeds
    created_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token of the admin API."""

    id: str
    name: str
    prefix: str
    role: Role
    created_ns: int
    expires_ns: int | None = None
    revoked_ns: int | None = None

    def is_live(self, now_ns: int) -> bool:
        return self.revoked_ns is None and (self.expires_ns is None or now_ns < self.expires_ns)


# --- for the audit ------------------------------------------------------------------------------------------

Described = Mapping[str, object]


def describe_key(record: KeyRecord) -> Described:
    entry = record.entry
    return {
        "id": entry.id,
        "name": entry.name,
        "prefix": entry.prefix,
        "team": entry.team,
        "project": entry.project,
        **msgspec.structs.asdict(record.rights),
        "priority": entry.priority,
        "expires_ns": entry.expires_ns,
        "revoked_ns": record.revoked_ns,
        "rotated_from": record.rotated_from,
    }


def describe_project(record: ProjectRecord) -> Described:
    return {"team": record.team, "name": record.name, **msgspec.structs.asdict(record.rights)}


def describe_token(record: TokenRecord) -> Described:
    return {
        "id": record.id,
        "name": record.name,
        "prefix": record.prefix,
        "role": record.role.value,
        "expires_ns": record.expires_ns,
        "revoked_ns": record.revoked_ns,
    }


# --- what is usable -----------------------------------------------------------------------------------------


def check_name(what: str, name: str) -> None:
    """Raises InvalidValue."""
    if not 0 < len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise InvalidValue(
            f"a {what}'s name is 1 to 100 printable characters, without blanks at its ends", param="name"
        )


def check_owner(param: str, value: str) -> None:
    """For the name of a team or a project.  Raises InvalidValue."""
    if not _OWNER.fullmatch(value):
        raise InvalidValue(
            f"{param} {value[:100]!r}: use up to 100 letters, digits, '_', '.', '-'; a letter or digit first",
            param=param,
        )


def check_rights(rights: Rights) -> None:
    """Raises InvalidValue, which names the field."""
    _check_patterns(rights.models)
    for endpoint in rights.endpoints:
        if endpoint not in list(Endpoint):
            known = ", ".join(Endpoint)
            raise InvalidValue(f"endpoint {endpoint[:100]!r}: use some of {known}", param="endpoints")
    if len(rights.regions) > REGIONS_MAX:
        raise InvalidValue(f"at most {REGIONS_MAX} regions can be named", param="regions")
    for region in rights.regions:
        if not _REGION.fullmatch(region):
            raise InvalidValue(
                f"region {region[:100]!r}: use up to 64 letters, digits, '_', '.', '-'; no sign first",
                param="regions",
            )
    if rights.tier_max is not None and rights.tier_max not in TIERS:
        raise InvalidValue(f"tier {rights.tier_max[:100]!r}: use one of {', '.join(TIERS)}", param="tier_max")
    for param in ("context_max_tokens", "output_max_tokens"):
        tokens = getattr(rights, param)
        if tokens is not None and not 1 <= tokens <= TOKENS_MAX:
            raise InvalidValue(f"{param} must be 1 to {TOKENS_MAX}", param=param)


def check_priority(priority: str) -> None:
    """Raises InvalidValue."""
    if priority not in PRIORITIES:
        raise InvalidValue(
            f"priority {priority[:100]!r}: use one of {', '.join(PRIORITIES)}", param="priority"
        )


def _check_patterns(patterns: tuple[str, ...]) -> None:
    if not 0 < len(patterns) <= PATTERNS_MAX:
        raise InvalidValue(
            f"1 to {PATTERNS_MAX} model patterns are needed; '*' is all models", param="models"
        )
    for pattern in patterns:
        if not 0 < len(pattern) <= 200 or not pattern.isprintable():
            raise InvalidValue(
                f"model pattern {pattern[:200]!r}: use 1 to 200 printable characters", param="models"
            )
