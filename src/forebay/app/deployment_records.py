"""The nouns of applied manifests, and how a change of them is refused.  No I/O happens here."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from forebay.core.errors import CallerError
from forebay.gateway.tenancy import Actor

Manifest = Mapping[str, Any]  #: what a file says of one deployment: plain values, paths from the root


class DeploymentNotFound(CallerError):
    status: ClassVar[int] = 404
    type: ClassVar[str] = "not_found_error"
    code: ClassVar[str] = "deployment_not_found"


class GenerationConflict(CallerError):
    """Somebody else has changed it meanwhile."""

    status: ClassVar[int] = 409
    type: ClassVar[str] = "conflict_error"
    code: ClassVar[str] = "generation_conflict"


class DeploymentsRefused(CallerError):
    """What is there does not allow it."""

    status: ClassVar[int] = 409
    type: ClassVar[str] = "conflict_error"
    code: ClassVar[str] = "deployment_refused"


class Outcome(StrEnum):
    """What a change has done."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedManifest:
    """One deployment as it is to be from now on.

    Attributes:
        expected: the generation that it has, 0 for none, so that nobody undoes what another has done
            meanwhile; None: whichever it has.
    """

    name: str
    manifest: Manifest
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRecord:
    """One generation of a deployment.  Generations of a name go up, also past its deletion."""

    name: str
    generation: int
    manifest: Manifest | None  #: None: it was deleted
    at_ns: int
    actor: Actor
    note: str = ""  #: why, such as a rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What has become of one."""

    record: DeploymentRecord
    outcome: Outcome
