"""Where workers and the process of files and batches meet: a socket, and the secret by which it is known.

Both lie in the run folder, which this user alone can enter.  A new secret is made at each start of all.
"""

import secrets
import socket
from pathlib import Path
from typing import Final

from forebay.app.atomic_file import PRIVATE_FILE, write_atomically
from forebay.app.redaction import redactor
from forebay.core.batch_calls import INNER_PREFIX
from forebay.gateway.frames import short_path

BATCH_SOCKET: Final = "batch.sock"
BACKLOG: Final = 256
_SECRET: Final = "batch.secret"


def make_batch_secret(run_dir: Path) -> None:
    """Raises OSError."""
    write_atomically(run_dir / _SECRET, INNER_PREFIX + secrets.token_hex(32).encode(), durable=False)


def read_batch_secret(run_dir: Path) -> bytes:
    """Empty where none was made: then no line of a batch is let in."""
    try:
        secret = (run_dir / _SECRET).read_bytes().strip()
    except OSError:
        return b""
    redactor.learn(secret.decode("latin-1"))
    return secret


def open_batch_listener(run_dir: Path) -> socket.socket:
    """The socket, listening; it outlives the process that serves it, so whoever asks meanwhile waits.

    Raises:
        OSError
    """
    path = run_dir / BATCH_SOCKET
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(path) as short:
            listener.bind(short)
        path.chmod(PRIVATE_FILE)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
