"""The name of a folder of segments, by which machines that share a database tell their files apart.

It lies beside the folder, so it outlives the folder's loss, and a copy of the folder alone brings none along.
"""

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

_ID: Final = re.compile(r"[0-9a-f]{32}")


def load_folder_id(folder: Path) -> str:
    """The folder's name, made where there is none; the same for all processes.  Raises OSError."""
    file = folder.with_name(f"{folder.name}.id")
    if (found := _read(file)) is not None:
        return found
    made = folder.with_name(f"{folder.name}.id.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        made.write_text(secrets.token_hex(16) + "\n")
        with suppress(FileExistsError):
            os.link(made, file)  # which takes no place of a name that another process gave meanwhile
        if _read(file) is None:  # what lies there is no name: a disk lost it
            os.replace(made, file)
    finally:
        made.unlink(missing_ok=True)
    found = _read(file)
    if found is None:
        raise OSError(f"{file} holds no name for the folder of the ledger: remove it")
    return found


def _read(file: Path) -> str | None:
    try:
        text = file.read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    return text if _ID.fullmatch(text) else None
