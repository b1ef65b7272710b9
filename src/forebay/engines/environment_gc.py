"""Removes environments that nobody uses, and what builders left that were killed.

Looks first and says what would go; removes each under its lock, after it has looked once more.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from forebay.engines.environment import EnvironmentEntry, Removal, choose_removals
from forebay.engines.environment_store import (
    EnvironmentBusy,
    EnvironmentStore,
    measure_size,
    read_digest,
)

LOCK_WAIT_S: Final = 0.0  #: what somebody else works on is no rubbish


def plan_collection(
    store: EnvironmentStore, wanted: Mapping[str, str]
) -> tuple[Sequence[Removal], Mapping[str, str]]:
    """What would go, and for each environment that stays why it does.

    Args:
        wanted: digests that deployments name, and a word on who does.
    """
    gone, kept = choose_removals(store.list_entries(), wanted=wanted)
    removals = [_describe(entry) for entry in gone]
    for path in store.list_leftovers():
        if store.is_locked(read_digest(path.name)):
            continue  # it is under way
        removals.append(
            Removal(path=path.name, why="left by one that was killed", size_bytes=measure_size(path))
        )
    for path in store.list_failed():
        removals.append(
            Removal(path=path.name, why="its smoke inference failed", size_bytes=measure_size(path))
        )
    return removals, kept


def collect(
    store: EnvironmentStore, wanted: Mapping[str, str], report: Callable[[Removal], None]
) -> Sequence[tuple[Removal, str]]:
    """Removes it, and tells each removal.  Returns what stayed after all, and why.

    Raises OSError.
    """
    removals, _ = plan_collection(store, wanted)
    stayed = []
    for removal in removals:
        digest = read_digest(removal.path)
        try:
            with store.lock(digest, timeout_s=LOCK_WAIT_S):
                if removal.path.startswith("."):
                    shutil.rmtree(store.root / removal.path, ignore_errors=True)
                elif store.list_users(digest):
                    stayed.append((removal, "it came into use meanwhile"))
                    continue
                else:
                    store.forget_ended(digest)
                    store.remove(digest)
        except EnvironmentBusy:
            stayed.append((removal, "it is being built or taken right now"))
            continue
        except FileNotFoundError:  # somebody else removed it
            continue
        report(removal)
    return stayed


def _describe(entry: EnvironmentEntry) -> Removal:
    built = entry.built
    return Removal(
        path=built.digest,
        why=f"{built.recipe} {built.version}, used by nobody",
        size_bytes=built.size_bytes,
    )
