"""What the deployer must not forget: how far each change is, and what serves.  One small file.

It has a twin, which is read where the file is lost or damaged.  Where both are, what runs is found again:
replicas go on serving until those that are asked for are ready.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.atomic_file import create_private_folder, write_atomically
from forebay.engines.deployment import (
    LauncherKind,
    ReplicaState,
    ReplicaStatus,
    ServingReplica,
    split_id,
)
from forebay.engines.rollout_state import Decision, Told, Track
from forebay.engines.scaling import Scale

STATE_FILE: Final = "deployer.json"
TWIN_FILE: Final = "deployer.json.twin"
UNTOLD_MAX: Final = 1000  #: moves that wait for the database; the oldest goes first

logger = logging.getLogger("forebay.deployer")

Attempts = tuple[int, int]  #: that went well, and that failed


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Of one deployment."""

    track: Track
    scale: Scale
    serving: tuple[ServingReplica, ...] = ()  #: as was published last
    counted: Mapping[str, Attempts] = {}  #: of each replica, when the present phase began
    launchers: tuple[LauncherKind, ...] = ()  #: that run something of it, or may


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One move of a change, which the audit is to hold."""

    name: str  #: of the deployment
    told: Told
    at_s: float  #: Unix time


class DeployerState(msgspec.Struct, frozen=True, kw_only=True):
    """`run/deployer.json`."""

    kept: Mapping[str, Kept] = {}
    untold: tuple[Move, ...] = ()  #: what the audit does not hold yet, the oldest first
    version: int = 1


def load_state(run: Path) -> DeployerState:
    """Nothing where there is no file.

    Raises:
        OSError, msgspec.MsgspecError: there is one that can't be read.
    """
    try:
        return _load(run / STATE_FILE)
    except FileNotFoundError:
        return DeployerState()


def restore_state(run: Path) -> DeployerState:
    """What was saved last, from whichever of the two files can be read."""
    for name in (STATE_FILE, TWIN_FILE):
        try:
            return _load(run / name)
        except FileNotFoundError:
            continue  # the first start, or somebody removed it
        except (OSError, msgspec.MsgspecError) as error:
            logger.error("%s can't be read: %s", run / name, error)
    return DeployerState()


def save_state(run: Path, state: DeployerState) -> None:
    """Raises OSError; the old file stays then."""
    create_private_folder(run)
    data = msgspec.json.format(msgspec.json.encode(state))
    write_atomically(run / STATE_FILE, data)
    write_atomically(run / TWIN_FILE, data)


def _load(path: Path) -> DeployerState:
    return msgspec.json.decode(path.read_bytes(), type=DeployerState)


def recall_replica(name: str, replica: ServingReplica) -> ReplicaStatus:
    """One whose launcher can't be asked, as it was when it could."""
    parts = split_id(replica.id)
    return ReplicaStatus(
        id=replica.id,
        deployment=name,
        revision=replica.revision,
        index=parts[2] if parts else 0,
        state=ReplicaState.READY,
        url=replica.url,
    )


def name_serving(decision: Decision) -> tuple[ServingReplica, ...]:
    """What a decision has serve, as it is remembered and published."""
    track = decision.track
    versions = {each.revision: each.version for each in (track.serving, track.candidate) if each}
    return tuple(
        ServingReplica(
            id=share.replica.id,
            url=share.replica.url,
            revision=share.replica.revision,
            version=versions.get(share.replica.revision, ""),
            weight=share.weight,
        )
        for share in decision.serving or ()
        if share.replica.url
    )
