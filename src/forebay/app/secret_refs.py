"""Resolves a reference to a secret: `env:NAME` or `file:PATH`.

The value goes to the caller, and to the sink of all logging so that it is in no line; nowhere else.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from forebay.app.redaction import redactor

SECRET_MAX_BYTES = 16 * 1024


def read_secret(reference: str) -> str:
    """The secret that a reference names.

    Raises:
        LookupError: it is not there, or cannot be a header's value; the reason holds no secret.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name, "")
        if not value:
            raise LookupError(f"the environment variable {name} is not set")
    elif kind == "file":
        try:
            with Path(name).open("rb") as file:
                value = file.read(SECRET_MAX_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LookupError(f"the file {name} can't be read: {error}") from None
        if not value:
            raise LookupError(f"the file {name} is empty")
    else:
        raise LookupError("a secret is given as `env:NAME` or `file:PATH`")
    if not value.isascii() or any(ord(character) < 0x20 or ord(character) == 0x7F for character in value):
        raise LookupError(f"{reference} holds characters that an HTTP header can't carry")
    redactor.learn(value)
    return value


def keep_from_logs(references: Iterable[str | None]) -> None:
    """Sees to it that no log line of this process holds what the references name, where it is there."""
    for reference in references:
        with suppress(LookupError):
            if reference is not None:
                read_secret(reference)
