"""Which configuration the Forebay that runs here uses, while `forebay.yaml` itself can't be used.

A file with a mistake says no longer for sure where its data folder is.  So every folder that it seems to name
is looked at, and one counts only if a supervisor that was started with this very file lives in it.  Changes
nothing, and asks nobody: all of it stands in the data folder.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from forebay.app.config import Config, find_config_file
from forebay.app.config_model import DataConfig
from forebay.app.config_problems import ConfigInvalid
from forebay.app.config_source import read_source_bytes
from forebay.app.control_watch import load_saved_config
from forebay.app.supervisor_state import RunState, load_run_state

SAVED_CONFIG: Final = "config.json"  #: in the run folder: the configuration in force
STARTED_CONFIG: Final = "started.json"  #: there too: the one that everything was started with
GUESSES_MAX: Final = 10
_DATA_DIR: Final = re.compile(r"""(?:^|[\s{,'"])dir['"]?\s*:\s*['"]?([^'"#,}\n\r]+)""", re.MULTILINE)


def load_live_state(path: Path) -> RunState | None:
    """The state of a run, if its supervisor still lives."""
    state = load_run_state(path)
    if state is None:
        return None
    with suppress(ProcessLookupError):
        with suppress(PermissionError):  # it lives, and belongs to somebody else
            os.kill(state.pid, 0)
        return state
    return None


def load_running_config(path: Path | None) -> Config | None:
    """The last valid configuration of the Forebay that was started with a file, if it runs.

    Args:
        path: the file as given; None looks where `find_config_file` says.
    """
    file = find_config_file(path)
    if file is None:
        return None
    file = file.absolute()
    for folder in _guess_data_folders(file):
        run = folder / "run"
        state = load_live_state(run / "state.json")
        if state is None or not _is_started_with(state, file):
            continue
        config = load_saved_config(run / SAVED_CONFIG, file) or load_saved_config(run / STARTED_CONFIG, file)
        if config is not None:
            # An edit of `data.dir` waits for a restart: what runs has its data here.
            return config.model_copy(update={"data": config.data.model_copy(update={"dir": folder})})
    return None


def _guess_data_folders(file: Path) -> Iterator[Path]:
    text = ""
    with suppress(ConfigInvalid):
        text = read_source_bytes(file).decode(errors="replace")
    names = [found.strip() for found in _DATA_DIR.findall(text)[:GUESSES_MAX]]
    for name in dict.fromkeys([*names, str(DataConfig().dir)]):
        with suppress(RuntimeError, ValueError):  # the home of an unknown user, or no path at all
            yield file.parent / Path(name).expanduser()


def _is_started_with(state: RunState, file: Path) -> bool:
    """One that was started without a file counts for the file that has been written beside it since."""
    if state.config_file is None:
        return file.exists()
    return Path(state.config_file).resolve() == file.resolve()
