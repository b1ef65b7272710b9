"""Brings a database to the state of an older version."""

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from forebay.store.database import MIGRATIONS


def migrate_to(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("version_locations", str(MIGRATIONS / "versions"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
