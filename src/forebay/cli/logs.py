"""`forebay logs`: what replicas of deployments have written, the living and the dead.

Asks the Forebay that runs here; where none does, what its last run left on this machine is shown.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.config import Config
from forebay.app.config_running import load_live_state
from forebay.app.launcher_local import read_replica_log
from forebay.app.replica_files import LOGS_FOLDER
from forebay.cli.admin_client import fetch_admin
from forebay.cli.terminal import Failure, Outcome, print_line
from forebay.cli.usable_config import load_usable_config

FOLLOW_S: Final = 0.5
FOLLOWED_LINES: Final = 1000  #: of each replica, looked at anew each time


class _Replica(msgspec.Struct, kw_only=True):
    id: str
    deployment: str
    state: str


class _Replicas(msgspec.Struct, kw_only=True):
    data: list[_Replica]


class _Log(msgspec.Struct, kw_only=True):
    lines: list[str]


def show_logs(file: Path | None, name: str | None, *, lines: int, is_followed: bool) -> Outcome:
    """Prints the last lines of a replica, or of all replicas of a deployment; without a name, what there is.

    Raises:
        Failure: there is nothing of that name.
    """
    config = load_usable_config(file)
    replicas = list_known(config)
    if name is None:
        for replica, state in replicas.items():
            print_line(f"{replica}  {state}")
        return Outcome.OK
    chosen = [id for id in replicas if name == id or id.rpartition("-")[0].rpartition("-")[0] == name]
    if not chosen:
        raise Failure(f"nothing is known of {name}", hint="`forebay logs` alone lists all that have a log")
    shown: dict[str, Sequence[str]] = {}
    for id in chosen:
        shown[id] = read_log(config, id, lines)
        _print(id, shown[id], is_alone=len(chosen) == 1)
    while is_followed:
        sys.stdout.flush()
        time.sleep(FOLLOW_S)
        for id in chosen:
            now = read_log(config, id, FOLLOWED_LINES)
            _print(id, find_new(shown[id], now), is_alone=len(chosen) == 1)
            shown[id] = now
    return Outcome.OK


def list_known(config: Config) -> dict[str, str]:
    """Replicas that run, and those that have left a log here, with their state."""
    folder = config.logs_path / LOGS_FOLDER
    known = {path.stem: "ended" for path in sorted(folder.glob("*.log"), key=lambda path: path.stem)}
    if load_live_state(config.state_path) is not None:
        answer = msgspec.json.decode(fetch_admin(config, "/replicas"), type=_Replicas)
        known |= {each.id: each.state for each in answer.data}
    return known


def read_log(config: Config, id: str, lines: int) -> Sequence[str]:
    """From the file where it is on this machine, else by whoever runs it."""
    path = config.logs_path / LOGS_FOLDER / f"{id}.log"
    if path.exists() or load_live_state(config.state_path) is None:
        return read_replica_log(path, lines)
    return msgspec.json.decode(fetch_admin(config, f"/replicas/{id}/logs?lines={lines}"), type=_Log).lines


def find_new(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """What of `now` comes after all of `before`: both are the last lines of one log."""
    for size in range(min(len(before), len(now)), 0, -1):
        if list(before[-size:]) == list(now[:size]):
            return now[size:]
    for start in range(len(now) - len(before), 0, -1):
        if before and list(now[start : start + len(before)]) == list(before):
            return now[start + len(before) :]
    return now


def _print(id: str, lines: Sequence[str], *, is_alone: bool) -> None:
    for line in lines:
        print_line(line if is_alone else f"{id}: {line}")
