"""Versions and aliases at rest, in SQL.  Each change is one transaction with its event in the audit.

Numbers go up from 1 for each name and are never given twice, also after a deletion.  Whether a content is on
the disk is not known here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, text, update

from forebay.core.clock import Clock
from forebay.registry.model import (
    AliasMove,
    Author,
    ModelVersion,
    NewVersion,
    Registered,
    RegisteredModel,
    RegistryConflict,
    check_description,
    check_tags,
    is_storable,
)
from forebay.registry.queries import (
    PLAIN,
    explain_absence,
    find_alias,
    find_by_digest,
    find_version,
    load_aliases,
    load_moves,
    make_actor,
    make_version,
    resolve,
)
from forebay.registry.reference import Reference, check_alias, check_name
from forebay.registry.tables import aliases, models, versions
from forebay.store.database import Database

VERSIONS_MAX: Final = 10_000  #: of one name
MODELS_MAX: Final = 10_000
ALIASES_MAX: Final = 100  #: of one name
MOVES_MAX: Final = 100  #: of one alias that are kept
ORIGIN_MAX: Final = 4096


class AppendAudit(Protocol):
    """Tells the audit of a change, in the change's own transaction."""

    def __call__(self, connection: Connection, author: Author, told: "Told", now_ns: int) -> None: ...


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit is told."""

    action: str
    subject: str
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


FindUsers = Callable[[Connection, ModelVersion], tuple[str, ...]]  #: who runs a version, in words


class RegistryRepo:
    """See the module.

    Args:
        moves_max: changes of an alias that are kept.
    """

    def __init__(
        self, database: Database, clock: Clock, append_audit: AppendAudit, *, moves_max: int = MOVES_MAX
    ) -> None:
        self._database = database
        self._clock = clock
        self._append_audit = append_audit
        self._moves_max = moves_max

    # --- reading --------------------------------------------------------------------------------------------

    def list_models(self) -> tuple[RegisteredModel, ...]:
        """All that have a version, in the order of their names."""
        with self._database.read() as connection:
            found: dict[str, list[ModelVersion]] = {}
            newest = select(versions).order_by(versions.c.version.desc())
            for row in connection.execute(newest).mappings():
                found.setdefault(row["name"], []).append(make_version(row))
            pointed = load_aliases(connection, None)
        return tuple(
            RegisteredModel(name=name, versions=tuple(found[name]), aliases=pointed.get(name, {}))
            for name in sorted(found)
        )

    def get_model(self, name: str) -> RegisteredModel:
        """Raises ModelVersionNotFound."""
        with self._database.read() as connection:
            query = select(versions).where(versions.c.name == name).order_by(versions.c.version.desc())
            found = tuple(map(make_version, connection.execute(query).mappings()))
            if not found:
                raise explain_absence(connection, Reference(name=name))
            return RegisteredModel(
                name=name, versions=found, aliases=load_aliases(connection, name).get(name, {})
            )

    def resolve(self, reference: Reference) -> ModelVersion:
        """The version that a reference means now.  Raises ModelVersionNotFound, RegistryConflict."""
        with self._database.read() as connection:
            return resolve(connection, reference)

    def load_moves(self, name: str, alias: str) -> tuple[AliasMove, ...]:
        """Of an alias, the newest first; those that are kept.  Raises ModelVersionNotFound."""
        with self._database.read() as connection:
            found = load_moves(connection, name, alias)
            if not found:
                raise explain_absence(connection, Reference(name=name, alias=alias))
        return found

    def list_digests(self) -> frozenset[str]:
        """Of the contents of all versions."""
        with self._database.read() as connection:
            return frozenset(connection.execute(select(versions.c.digest)).scalars())

    # --- changing -------------------------------------------------------------------------------------------

    def register(self, new: NewVersion, author: Author) -> Registered:
        """Gives a content the next number of its name; one that has a number there already keeps it.

        What is said of it besides, and the alias, hold in both cases.

        Raises RegistryInvalid, RegistryConflict.
        """
        check_name(new.name)
        with self._database.begin() as connection:
            _lock(connection)
            found = find_by_digest(connection, new.name, new.digest)
            if found is None:
                version = self._insert(connection, new, author)
            else:
                version = self._edit(connection, found, new.tags, frozenset(), new.description, author)
            if new.alias:
                self._move(connection, version, new.alias, author)
        return Registered(version=version, is_new=found is None)

    def edit(
        self,
        reference: Reference,
        author: Author,
        *,
        tags: Mapping[str, str],
        without: frozenset[str] = frozenset(),
        description: str | None = None,
    ) -> ModelVersion:
        """Says something else of a version.

        Args:
            tags: that it is to have beside those that it has.
            without: tags that it is not to have any more.
            description: None: as it was.

        Raises ModelVersionNotFound, RegistryInvalid.
        """
        with self._database.begin() as connection:
            _lock(connection)
            found = resolve(connection, reference)
            return self._edit(connection, found, tags, without, description, author)

    def move_alias(
        self, name: str, alias: str, version: int, author: Author, *, expected: int | None = None
    ) -> AliasMove:
        """Has an alias mean a version from now on.

        Args:
            expected: the version that it means now, 0 for none; None: whichever.

        Raises ModelVersionNotFound, RegistryInvalid, RegistryConflict.
        """
        with self._database.begin() as connection:
            _lock(connection)
            found = resolve(connection, Reference(name=name, version=version))
            _check_expected(name, alias, expected, find_alias(connection, name, alias))
            return self._move(connection, found, alias, author)

    def roll_back_alias(
        self, name: str, alias: str, author: Author, *, expected: int | None = None
    ) -> AliasMove:
        """Has an alias mean again what it meant before that was another version, and is still there.

        Raises ModelVersionNotFound, RegistryConflict.
        """
        with self._database.begin() as connection:
            _lock(connection)
            moves = load_moves(connection, name, alias)
            if not moves:
                raise explain_absence(connection, Reference(name=name, alias=alias))
            _check_expected(name, alias, expected, moves[0].version)
            for move in moves[1:]:
                if move.version is None or move.version == moves[0].version:
                    continue
                earlier = find_version(connection, name, move.version)
                if earlier is not None:
                    return self._move(connection, earlier, alias, author, note="rollback")
            raise RegistryConflict(
                f"{name}@{alias} has meant no other version before that is still there: `forebay models "
                f"alias {name} {alias}` shows what it meant"
            )

    def remove_alias(
        self, name: str, alias: str, author: Author, *, expected: int | None = None
    ) -> AliasMove:
        """Raises ModelVersionNotFound, RegistryConflict."""
        with self._database.begin() as connection:
            _lock(connection)
            found = resolve(connection, Reference(name=name, alias=alias))
            _check_expected(name, alias, expected, found.version)
            told = Told(action="model.alias_remove", subject=f"{name}@{alias}", before=_tell_alias(found))
            return self._append_move(connection, name, alias, None, author, "", told)

    def delete(self, reference: Reference, author: Author, find_users: FindUsers) -> ModelVersion:
        """Forgets a version.  Its content stays until it is collected.

        Args:
            find_users: looks, in the same transaction, who else uses it.

        Raises ModelVersionNotFound, RegistryConflict.
        """
        with self._database.begin() as connection:
            _lock(connection)
            found = resolve(connection, reference)
            pointing = load_aliases(connection, found.name).get(found.name, {})
            users = [f"the alias {alias}" for alias in sorted(pointing) if pointing[alias] == found.version]
            users += find_users(connection, found)
            if users:
                raise RegistryConflict(f"{found.written} is in use by {', '.join(users)}: end that first")
            connection.execute(
                delete(versions).where(versions.c.name == found.name, versions.c.version == found.version)
            )
            told = Told(action="model.delete", subject=found.written, before=_describe(found))
            self._append_audit(connection, author, told, self._clock.wall_ns())
        return found

    # --- inside a transaction -------------------------------------------------------------------------------

    def _insert(self, connection: Connection, new: NewVersion, author: Author) -> ModelVersion:
        description = new.description or ""
        check_tags(new.tags)
        check_description(description)
        now_ns = self._clock.wall_ns()
        version = ModelVersion(
            name=new.name,
            version=_take_number(connection, new.name, now_ns),
            digest=new.digest,
            kind=new.kind,
            files=new.files,
            size_bytes=new.size_bytes,
            origin=new.origin[:ORIGIN_MAX] if is_storable(new.origin) else "",
            description=description,
            tags=dict(sorted(new.tags.items())),
            at_ns=now_ns,
            author=author,
        )
        values = {name: getattr(version, name) for name in PLAIN}
        connection.execute(
            insert(versions).values(
                **values,
                kind=version.kind.value,
                tags=msgspec.json.encode(version.tags).decode(),
                **make_actor(author),
            )
        )
        told = Told(action="model.register", subject=version.written, after=_describe(version))
        self._append_audit(connection, author, told, now_ns)
        return version

    def _edit(
        self,
        connection: Connection,
        found: ModelVersion,
        tags: Mapping[str, str],
        without: frozenset[str],
        description: str | None,
        author: Author,
    ) -> ModelVersion:
        kept = {key: value for key, value in {**found.tags, **tags}.items() if key not in without}
        check_tags(kept)
        check_description(description or "")
        changed = msgspec.structs.replace(
            found,
            tags=dict(sorted(kept.items())),
            description=found.description if description is None else description,
        )
        if changed == found:
            return found
        connection.execute(
            update(versions)
            .where(versions.c.name == found.name, versions.c.version == found.version)
            .values(tags=msgspec.json.encode(changed.tags).decode(), description=changed.description)
        )
        told = Told(
            action="model.edit", subject=found.written, before=_describe(found), after=_describe(changed)
        )
        self._append_audit(connection, author, told, self._clock.wall_ns())
        return changed

    def _move(
        self, connection: Connection, to: ModelVersion, alias: str, author: Author, *, note: str = ""
    ) -> AliasMove:
        check_alias(alias)
        known = load_aliases(connection, to.name).get(to.name, {})
        moves = load_moves(connection, to.name, alias)
        if known.get(alias) == to.version:
            return moves[0]
        if alias not in known and len(known) >= ALIASES_MAX:
            raise RegistryConflict(f"{to.name} has {len(known)} aliases, which is the most: remove one")
        before = find_version(connection, to.name, known[alias]) if alias in known else None
        told = Told(
            action="model.alias",
            subject=f"{to.name}@{alias}",
            before=None if before is None else _tell_alias(before),
            after=_tell_alias(to),
        )
        return self._append_move(connection, to.name, alias, to.version, author, note, told)

    def _append_move(
        self,
        connection: Connection,
        name: str,
        alias: str,
        version: int | None,
        author: Author,
        note: str,
        told: Told,
    ) -> AliasMove:
        now_ns = self._clock.wall_ns()
        connection.execute(
            insert(aliases).values(
                name=name, alias=alias, version=version, at_ns=now_ns, note=note, **make_actor(author)
            )
        )
        of_alias = (aliases.c.name == name) & (aliases.c.alias == alias)
        newest = select(aliases.c.id).where(of_alias).order_by(aliases.c.id.desc())
        too_old = connection.execute(newest.offset(self._moves_max)).scalars().all()
        if too_old:
            connection.execute(delete(aliases).where(aliases.c.id.in_(too_old)))
        self._append_audit(connection, author, told, now_ns)
        return AliasMove(name=name, alias=alias, version=version, at_ns=now_ns, author=author, note=note)


def _lock(connection: Connection) -> None:
    """One writer at a time, as SQLite has anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE registry_models IN SHARE ROW EXCLUSIVE MODE"))


def _take_number(connection: Connection, name: str, now_ns: int) -> int:
    """The next of a name."""
    made = connection.execute(select(models.c.versions_made).where(models.c.name == name)).scalar()
    if made is None:
        count = connection.execute(select(func.count()).select_from(models)).scalar_one()
        if count >= MODELS_MAX:
            raise RegistryConflict(f"there are {count} registered models, which is the most")
        connection.execute(insert(models).values(name=name, versions_made=1, at_ns=now_ns))
        return 1
    of_name = select(func.count()).select_from(versions).where(versions.c.name == name)
    count = connection.execute(of_name).scalar_one()
    if count >= VERSIONS_MAX:
        raise RegistryConflict(
            f"{name} has {count} versions, which is the most: `forebay models delete {name}@VERSION` "
            "removes one"
        )
    connection.execute(update(models).where(models.c.name == name).values(versions_made=made + 1))
    return int(made) + 1


def _check_expected(name: str, alias: str, expected: int | None, has: int | None) -> None:
    if expected is None or expected == (has or 0):
        return
    now = f"means version {has}" if has else "is not there"
    raise RegistryConflict(f"{name}@{alias} {now}, and {expected} was expected: look at it again")


def _describe(version: ModelVersion) -> dict[str, Any]:
    """For the audit."""
    return {
        "digest": version.digest,
        "size_bytes": version.size_bytes,
        "origin": version.origin,
        "description": version.description,
        "tags": dict(version.tags),
    }


def _tell_alias(version: ModelVersion) -> dict[str, Any]:
    return {"version": version.version, "digest": version.digest}
