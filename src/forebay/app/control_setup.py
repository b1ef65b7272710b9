"""What the control plane makes at the first start: the admin token, and a key for whoever sits here.

Both lie in the data folder, readable by its owner alone.  Nothing here shows or logs either.
"""

from pathlib import Path
from typing import Final

from forebay.app.atomic_file import write_atomically
from forebay.core.keys import compute_key_digest
from forebay.gateway.repo import KeyRepo
from forebay.gateway.repo_tokens import make_token
from forebay.gateway.tenancy import FOREBAY, NewKey

LOCAL_KEY_NAME: Final = "local"


def load_admin_token(path: Path) -> str:
    """The token, made if there is none.

    Raises:
        OSError: the file can't be read or written.
    """
    token = _read_word(path)
    if not token:
        token = make_token()
        write_atomically(path, f"{token}\n".encode())
    return token


def ensure_local_key(path: Path, keys: KeyRepo) -> None:
    """Sees to it that the file holds a key that the database knows.

    One that was revoked stays revoked: that is for people to mend.

    Raises:
        OSError, StoreError
    """
    word = _read_word(path)
    digest = compute_key_digest(word)
    if word and any(record.entry.digest == digest for record in keys.list()):
        return
    _, plaintext = keys.create(NewKey(name=LOCAL_KEY_NAME), FOREBAY)
    write_atomically(path, f"{plaintext}\n".encode())


def _read_word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
