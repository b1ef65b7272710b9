"""What the registry's transactions look up: versions, aliases and their moves, as rows of the tables.

Changes nothing, and begins no transaction: each is told which it belongs to.
"""

from typing import Final

import msgspec
from sqlalchemy import Connection, RowMapping, func, select

from forebay.registry.model import (
    AliasMove,
    Author,
    ContentKind,
    ModelVersion,
    ModelVersionNotFound,
    RegistryConflict,
)
from forebay.registry.reference import Reference
from forebay.registry.tables import aliases, versions

PLAIN: Final = ("name", "version", "digest", "files", "size_bytes", "origin", "description", "at_ns")


def resolve(connection: Connection, reference: Reference) -> ModelVersion:
    """The version that a reference means, as the transaction sees it; one that is pinned means its pin.

    Raises ModelVersionNotFound, RegistryConflict.
    """
    if reference.pin is not None:
        found = find_version(connection, reference.name, reference.pin.version)
        if found is not None and found.digest != reference.pin.digest:
            raise RegistryConflict(
                f"{found.written} has the digest {found.digest}, and {reference.pin.digest} was asked for: "
                "it was pinned in another registry"
            )
        number: int | None = reference.pin.version
    elif reference.alias:
        number = find_alias(connection, reference.name, reference.alias)
        found = None if number is None else find_version(connection, reference.name, number)
    else:
        number = reference.version
        found = None if number is None else find_version(connection, reference.name, number)
    if found is None:
        named = Reference(name=reference.name, version=number) if reference.pin else reference
        raise explain_absence(connection, named)
    return found


def find_version(connection: Connection, name: str, version: int) -> ModelVersion | None:
    query = select(versions).where(versions.c.name == name, versions.c.version == version)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else make_version(row)


def find_by_digest(connection: Connection, name: str, digest: str) -> ModelVersion | None:
    query = select(versions).where(versions.c.name == name, versions.c.digest == digest)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else make_version(row)


def load_aliases(connection: Connection, name: str | None) -> dict[str, dict[str, int]]:
    """What the aliases of a name, or of all, mean now."""
    newest = select(func.max(aliases.c.id)).group_by(aliases.c.name, aliases.c.alias)
    query = select(aliases).where(aliases.c.id.in_(newest), aliases.c.version.is_not(None))
    if name is not None:
        query = query.where(aliases.c.name == name)
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["name"], {})[row["alias"]] = row["version"]
    return {name: dict(sorted(known.items())) for name, known in found.items()}


def find_alias(connection: Connection, name: str, alias: str) -> int | None:
    return load_aliases(connection, name).get(name, {}).get(alias)


def load_moves(connection: Connection, name: str, alias: str) -> tuple[AliasMove, ...]:
    query = select(aliases).where(aliases.c.name == name, aliases.c.alias == alias)
    rows = connection.execute(query.order_by(aliases.c.id.desc())).mappings()
    return tuple(
        AliasMove(
            name=row["name"],
            alias=row["alias"],
            version=row["version"],
            at_ns=row["at_ns"],
            author=read_actor(row),
            note=row["note"],
        )
        for row in rows
    )


def explain_absence(connection: Connection, reference: Reference) -> ModelVersionNotFound:
    name = reference.name
    of_name = select(versions.c.version).where(versions.c.name == name).order_by(versions.c.version)
    known = connection.execute(of_name).scalars().all()
    if not known:
        return ModelVersionNotFound(
            f"no model {name!r} is registered here: `forebay models list` shows those that are, "
            f"`forebay models register {name} PATH` makes a version of it"
        )
    if reference.alias:
        there = ", ".join(load_aliases(connection, name).get(name, {})) or "none"
        return ModelVersionNotFound(
            f"{name} has no alias {reference.alias!r}; there is {there}. `forebay models alias {name} "
            f"{reference.alias} VERSION` makes it"
        )
    shown = ", ".join(map(str, known[-10:]))
    there = f"the newest are {shown}" if len(known) > 10 else f"there is {shown}"
    return ModelVersionNotFound(f"{name} has no version {reference.version}; {there}")


def make_actor(author: Author) -> dict[str, str | None]:
    return {
        "actor_id": author.id[:300],
        "actor_name": author.name[:200],
        "actor_issuer": None if author.issuer is None else author.issuer[:500],
    }


def read_actor(row: RowMapping) -> Author:
    return Author(id=row["actor_id"], name=row["actor_name"], issuer=row["actor_issuer"])


def make_version(row: RowMapping) -> ModelVersion:
    return ModelVersion(
        **{name: row[name] for name in PLAIN},
        kind=ContentKind(row["kind"]),
        tags=msgspec.json.decode(row["tags"], type=dict[str, str]),
        author=read_actor(row),
    )
