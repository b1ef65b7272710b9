"""The nouns of deployments: what is to run, one replica of it, what has become of one, and who can run it.

A `Deployment` is what a manifest asks for; `revision` names what its replicas are, so that replicas of two
revisions can be told apart while one takes the place of the other.  A `Launcher` runs replicas somewhere: on
this machine, on Ray, on Kubernetes.  No I/O happens here, and nothing is decided.
"""

import hashlib
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from forebay.engines.model import EngineSpec

REVISION_DIGITS: Final = 10
_ID: Final = re.compile(
    r"(?P<deployment>[a-z0-9]([-a-z0-9]*[a-z0-9])?)-(?P<revision>[a-z0-9]+)-(?P<index>[0-9]{1,6})"
)


class LauncherKind(StrEnum):
    LOCAL = "local"  #: processes of this machine
    RAY = "ray"
    KUBERNETES = "kubernetes"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica is given."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_mib: int | None = None  #: beyond it the replica is ended as out of memory; None: no limit


class Strategy(StrEnum):
    """How replicas of a new revision take the place of the old ones."""

    CANARY = "canary"  #: their share grows in steps
    BLUE_GREEN = "blue-green"  #: all of them get ready, then they get everything at once


class Unseen(StrEnum):
    """What becomes of a step for which too few requests came."""

    PASS = "pass"  #: after a while it is passed, and that is told
    WAIT = "wait"  #: it lasts until there were enough


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """How a change is made, and what stops it."""

    strategy: Strategy = Strategy.CANARY
    steps: tuple[float, ...] = (0.05, 0.25, 0.5)  #: shares of the new revision before all, rising
    step_s: float = 60.0  #: each step lasts at least so long
    requests_min: int = 20  #: that the new revision must have answered in a step before it is judged
    unseen: Unseen = Unseen.PASS
    error_share_max: float = 0.02  #: of its requests, beyond what the old revision has
    latency_ratio_max: float = 1.5  #: its time to first token against the old revision's, at the median
    ready_timeout_s: float = 900.0  #: for the new revision's replicas to get ready; then it is stopped


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest asks for: a version of a model on an engine, as like replicas in one pool."""

    name: str  #: a DNS label; also the name of its pool
    model: str  #: the public name that callers use
    version: str = ""  #: of the model
    spec: EngineSpec  #: its `name` is the name by which the engine serves the model
    environment: str = ""  #: digest of the engine's environment; empty: Forebay's own
    hardware: str = "cpu"  #: class of hardware, as the version matrix names it
    precision: str = ""
    tier: str = "provisioned"
    region: str = ""
    modalities: tuple[str, ...] = ("text",)
    replicas_min: int = 1
    replicas_max: int = 1
    resources: Resources = Resources()
    launcher: LauncherKind = LauncherKind.LOCAL
    warm_up: tuple[str, ...] = ()  #: prompts that a replica answers before it gets callers' requests
    rollout: Rollout = Rollout()

    @property
    def revision(self) -> str:
        """Names what its replicas are.  The number of replicas and the way of a change are no part of it."""
        parts = (
            *(self.version, self.spec, self.environment, self.hardware, self.precision),
            *(self.modalities, self.resources, self.launcher),
        )
        return hashlib.sha256(msgspec.msgpack.encode(parts, order="sorted")).hexdigest()[:REVISION_DIGITS]


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process that is to run."""

    deployment: str
    revision: str
    index: int  #: unique among the replicas of the revision that run
    spec: EngineSpec
    environment: str = ""
    resources: Resources = Resources()

    @property
    def id(self) -> str:
        """Unique, a DNS label where the deployment's name is one of at most 40 characters."""
        return f"{self.deployment}-{self.revision}-{self.index}"


def split_id(replica_id: str) -> tuple[str, str, int] | None:
    """Deployment, revision and index of a `Replica.id`; None where it is none."""
    found = _ID.fullmatch(replica_id)
    return None if found is None else (found["deployment"], found["revision"], int(found["index"]))


class ReplicaState(StrEnum):
    PENDING = "pending"  #: there is no room for it yet
    STARTING = "starting"
    READY = "ready"  #: its health answers 200
    BACKOFF = "backoff"  #: it ended by itself and is started again after a while
    STOPPING = "stopping"  #: it was asked to end, and answers in flight may leave
    STOPPED = "stopped"  #: it is gone and stays so
    REFUSED = "refused"  #: it can't start before somebody changes something


class ExitReason(StrEnum):
    """Why a replica ended by itself the last time."""

    NONE = ""
    OUT_OF_MEMORY = "out_of_memory"
    REFUSED = "refused"  #: `EXIT_REFUSED`: its arguments, weights or libraries are wrong
    STALLED = "stalled"  #: `EXIT_STALLED`, or not ready in time
    CRASHED = "crashed"  #: any other code, or a signal
    LOST = "lost"  #: the node or the launcher's connection to it is gone


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a replica."""

    id: str
    deployment: str
    revision: str
    index: int
    state: ReplicaState
    url: str = ""  #: base URL with `/v1`; empty while it has none
    node: str = ""  #: machine, Ray node or Kubernetes node
    restarts: int = 0
    failures: int = 0  #: in a row
    since_s: float = 0.0  #: Unix time of the last change of its state
    reason: ExitReason = ExitReason.NONE
    message: str = ""  #: one line for people: its last words, or what it waits for


class ServingReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that callers' requests may be sent to."""

    url: str  #: base URL with `/v1`
    id: str = ""  #: the replica's
    revision: str = ""
    version: str = ""  #: of the model there
    weight: float | None = None  #: its share among those of its deployment; None: by load


class DeploymentPhase(StrEnum):
    """Where a deployment stands on its way to what was asked."""

    PENDING = "pending"  #: nothing of it serves yet
    ROLLING = "rolling"  #: a new revision takes the place of an old one
    READY = "ready"  #: what was asked serves
    DEGRADED = "degraded"  #: it serves with fewer replicas than asked
    STOPPED = "stopped"  #: the new revision was stopped, and the old one serves
    FAILED = "failed"  #: nothing of it can serve before somebody changes something
    ENDING = "ending"  #: it is not asked for any more, and its replicas leave


#: In which nothing more happens before somebody changes something, or a replica ends.
SETTLED: Final = frozenset({DeploymentPhase.READY, DeploymentPhase.STOPPED, DeploymentPhase.FAILED})


class DeploymentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a deployment."""

    name: str
    phase: DeploymentPhase
    message: str = ""  #: one line for people: what is waited for, or why it stopped
    revision: str = ""  #: that was asked for
    serving_revision: str = ""  #: that has most of the requests; empty: none
    share: float = 1.0  #: of the requests, of the revision that was asked for
    replicas: tuple[ReplicaStatus, ...] = ()
    since_s: float = 0.0  #: Unix time of the last change of its phase


class Launcher(Protocol):
    """Runs replicas.  One contract suite holds for all of them.

    All methods raise `LauncherError` with what is wrong and how to mend it, and only that.
    """

    kind: LauncherKind

    async def start(self, replica: Replica) -> None:
        """Has it run from now on, started anew whenever it ends by itself, after a growing pause.

        Returns as soon as that is certain, even if this process ends; a replica that is there already stays.
        """

    async def stop(self, replica_id: str) -> None:
        """Has it end: those in flight leave first.  Returns at once; an unknown id is fine."""

    async def list(self) -> Sequence[ReplicaStatus]:
        """All that it runs, also what was started before this process was."""

    async def logs(self, replica_id: str, lines: int = 100) -> Sequence[str]:
        """The last lines that it wrote, also of a replica that has ended; empty where nothing is known."""

    async def close(self) -> None:
        """Lets go of connections.  What runs goes on."""
