"""Where the database is, and how it is opened: a file in the data folder, or what `data.database` names.

An address with a password is only ever a reference, and its password goes into no log.
"""

from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from forebay.app.config import Config
from forebay.app.redaction import redactor
from forebay.app.secret_refs import read_secret
from forebay.store.database import Database
from forebay.store.errors import StoreUnavailable


def open_database(config: Config, *, create: bool = True) -> Database:
    """Raises StoreError, whose words hold no password."""
    return Database.open(find_location(config), create=create)


def find_location(config: Config) -> Path | str:
    """A file or a URL.  Raises StoreUnavailable where a reference leads to none."""
    named = config.data.database
    if named is None:
        return config.database_path
    if not named.startswith(("env:", "file:")):
        return Path(named)
    try:
        url = read_secret(named)
        password = make_url(url).password
    except LookupError as error:
        raise StoreUnavailable(f"the address of the database (data.database) is missing: {error}") from None
    except (ArgumentError, ValueError):
        raise StoreUnavailable(
            f"data.database: {named} holds no address like postgresql://user:password@host/name"
        ) from None
    if password:
        redactor.learn(str(password))
    return url
