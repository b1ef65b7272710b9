"""The configuration for commands that must work while `forebay.yaml` is being edited.

Falls back to what the Forebay that runs here uses, because that one goes on too, and says so.
"""

from pathlib import Path

from forebay.app.config import Config, ConfigInvalid, find_config_file, load_config
from forebay.app.config_running import load_running_config
from forebay.cli.terminal import print_note


def load_usable_config(file: Path | None) -> Config:
    """The file's configuration, or the running one where the file has mistakes.

    Raises:
        ConfigInvalid: the file has mistakes, and nothing that was started with it runs.
    """
    try:
        return load_config(file, secrets_needed=False)
    except ConfigInvalid:
        running = load_running_config(file)
        if running is None:
            raise
    print_note(
        f"{find_config_file(file)} has mistakes (`forebay config check` shows them); "
        f"the configuration of the running Forebay is used",
        "yellow",
    )
    return running
