"""`forebay restart`: has the workers of the Forebay that runs here started anew, one after the other.

The supervisor does it; this asks for it, and tells how far it is.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forebay.app.config_running import load_live_state
from forebay.app.supervisor_state import ROLL_DONE, ROLL_RUNS, ROLL_SIGNAL, RunState, catches, find_supervisor
from forebay.app.up_children import is_worker
from forebay.cli.terminal import Failure, Outcome, paint
from forebay.cli.usable_config import load_usable_config

LOOK_S: Final = 0.1
BEGIN_S: Final = 10.0  #: for the supervisor to begin


def restart(file: Path | None) -> Outcome:
    """Returns once all workers are new.

    Raises:
        Failure: Forebay does not run here or is being stopped, or a new worker did not get ready.
    """
    config = load_usable_config(file)
    path = config.state_path
    state = load_live_state(path)
    # By the lock, for a process id in an old file may be anybody's by now.
    if state is None or state.stopping or find_supervisor(config.lock_path) != state.pid:
        raise Failure("no Forebay runs here", hint="start it: forebay up")
    if not catches(state.pid, ROLL_SIGNAL):  # of an earlier version: the signal would end it
        hint = "end it, and start it again with this one: forebay up"
        raise Failure("the Forebay that runs here is of a version that knows no rolling restart", hint=hint)
    before = {child.name: child.pid for child in state.children if is_worker(child.name)}
    console = Console(stderr=True)
    asked_s = time.time()
    try:
        os.kill(state.pid, ROLL_SIGNAL)
    except PermissionError:
        hint = "run the command as the user that started it"
        raise Failure(f"the Forebay that runs here, pid {state.pid}, is another user's", hint=hint) from None
    columns = (TextColumn("starting workers anew"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(before))
        deadline = time.monotonic() + BEGIN_S
        while True:
            now = load_live_state(path)
            if now is None or now.pid != state.pid or now.stopping:
                raise Failure("Forebay ended meanwhile", hint="see supervisor.log")
            result = _find_result(now, state, asked_s)
            if result:
                break
            if now.roll != ROLL_RUNS and time.monotonic() > deadline:
                raise Failure("the Forebay that runs here has not begun", hint="see supervisor.log")
            progress.update(task, completed=_count_new(now, before))
            time.sleep(LOOK_S)
    if result != ROLL_DONE:
        hint = "the workers that run go on; see the log of the one that is named"
        raise Failure(f"the rolling restart was given up: {result}", hint=hint)
    with suppress(BrokenPipeError):
        print(paint(f"{_count_new(now, before)} workers were started anew", "green"))
    return Outcome.OK


def _find_result(now: RunState, before: RunState, asked_s: float) -> str:
    """What became of a restart that began after it was asked for; nothing while none has ended.

    One that was under way then is somebody else's: its first workers may have been started before what this
    one is for.
    """
    if now.roll_began_s is None:  # a version that does not say
        return now.roll if now.rolls > before.rolls and now.roll != ROLL_RUNS else ""
    return now.roll_ended if now.roll_began_s >= asked_s else ""


def _count_new(state: RunState, before: dict[str, int | None]) -> int:
    return sum(child.pid != before[child.name] for child in state.children if child.name in before)
