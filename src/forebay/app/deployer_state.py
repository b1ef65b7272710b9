"""What the deployer must not forget: how far each change is, and what serves.  One small file.

Lost, it costs no request of what runs as it was asked for: replicas of that revision are taken up again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.atomic_file import create_private_folder, write_atomically
from forebay.engines.deployment import LauncherKind, ServingReplica
from forebay.engines.rollout_state import Decision, Track
from forebay.engines.scaling import Scale

STATE_FILE: Final = "deployer.json"

Attempts = tuple[int, int]  #: that went well, and that failed


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Of one deployment."""

    track: Track
    scale: Scale
    serving: tuple[ServingReplica, ...] = ()  #: as was published last
    counted: Mapping[str, Attempts] = {}  #: of each replica, when the present phase began
    launchers: tuple[LauncherKind, ...] = ()  #: that run something of it, or may


class DeployerState(msgspec.Struct, frozen=True, kw_only=True):
    """`run/deployer.json`."""

    kept: Mapping[str, Kept] = {}
    version: int = 1


def load_state(run: Path) -> DeployerState:
    """Nothing where there is no file.

    Raises:
        OSError, msgspec.MsgspecError: there is one that can't be read.
    """
    try:
        data = (run / STATE_FILE).read_bytes()
    except FileNotFoundError:
        return DeployerState()
    return msgspec.json.decode(data, type=DeployerState)


def save_state(run: Path, state: DeployerState) -> None:
    """Raises OSError; the old file stays then."""
    create_private_folder(run)
    write_atomically(run / STATE_FILE, msgspec.json.format(msgspec.json.encode(state)))


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
