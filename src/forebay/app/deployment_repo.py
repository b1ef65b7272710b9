"""Applied manifests at rest, with their history.  Append-only: each change adds a generation of its name.

A change, or many at once, is one transaction with its events in the audit: all of it holds, or none.  What a
manifest means is not known here, but that the versions of models that it names are there.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from sqlalchemy import Connection, RowMapping, Select, delete, func, insert, select, text

from forebay.app.deployment_records import (
    Applied,
    DeploymentNotFound,
    DeploymentRecord,
    DeploymentsRefused,
    GenerationConflict,
    Manifest,
    Outcome,
    WantedManifest,
)
from forebay.app.deployment_tables import manifests
from forebay.app.model_references import check_references
from forebay.core.clock import Clock
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.tenancy import Actor
from forebay.registry.model import ModelVersionNotFound, RegistryConflict
from forebay.registry.queries import resolve
from forebay.registry.reference import Pin, Reference
from forebay.store.database import Database

HISTORY_MAX: Final = 100
DEPLOYMENTS_MAX: Final = 500
MANIFEST_MAX_BYTES: Final = 64 * 1024
DELETED_MAX: Final = 1000  #: names that are gone and whose history is kept; the oldest goes first
DAMAGED: Final = "(damaged)"  #: the key of what can't be read: no manifest has it


class DeploymentRepo:
    """See the module.

    Args:
        history_max: generations of a name that are kept.
        deployments_max: how many there may be.
        deleted_max: names that are gone and whose history is kept.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        history_max: int = HISTORY_MAX,
        deployments_max: int = DEPLOYMENTS_MAX,
        deleted_max: int = DELETED_MAX,
    ) -> None:
        self._deleted_max = deleted_max
        self._database = database
        self._clock = clock
        self._history_max = history_max
        self._deployments_max = deployments_max

    def list_current(self) -> tuple[DeploymentRecord, ...]:
        """Those that are to run, in the order of their names."""
        with self._database.read() as connection:
            return _list_current(connection)

    def get(self, name: str) -> DeploymentRecord:
        """As it is to run.  Raises DeploymentNotFound."""
        with self._database.read() as connection:
            return _require(_find_last(connection, name), name)

    def load_history(self, name: str) -> tuple[DeploymentRecord, ...]:
        """All generations that are kept, the newest first.  Raises DeploymentNotFound."""
        with self._database.read() as connection:
            found = _load_history(connection, name)
        if not found:
            raise _explain_absence(name)
        return found

    def pin(self, reference: Reference) -> Reference:
        """A reference to the registry, with what it means now.

        Raises ModelVersionNotFound, RegistryConflict.
        """
        with self._database.read() as connection:
            found = resolve(connection, reference)
        return msgspec.structs.replace(reference, pin=Pin(version=found.version, digest=found.digest))

    def find_last_change(self) -> int:
        """Grows with every change."""
        with self._database.read() as connection:
            return connection.execute(select(func.max(manifests.c.id))).scalar_one() or 0

    def apply(self, wanted: Sequence[WantedManifest], actor: Actor) -> tuple[Applied, ...]:
        """All of these are to run as they are given from now on, or none where one is refused.

        What is as it was gets no new generation.

        Raises GenerationConflict, DeploymentsRefused.
        """
        with self._database.begin() as connection:
            _lock(connection)
            current = {record.name: record for record in _list_current(connection)}
            applied = []
            for each in wanted:
                last = _find_last(connection, each.name)
                _check_expected(each.name, each.expected, last)
                if last is not None and last.manifest == each.manifest:
                    applied.append(Applied(record=last, outcome=Outcome.UNCHANGED))
                    continue
                applied.append(self._append(connection, last, each.name, each.manifest, actor))
                current[each.name] = applied[-1].record
            self._check_count(len(current))
        return tuple(applied)

    def delete(self, name: str, actor: Actor, *, expected: int | None = None) -> DeploymentRecord:
        """It is not to run any more.  Raises DeploymentNotFound, GenerationConflict."""
        with self._database.begin() as connection:
            _lock(connection)
            last = _require(_find_last(connection, name), name)
            _check_expected(name, expected, last)
            record = self._insert(connection, name, last.generation, None, actor, "")
            change = Change(action="deployment.delete", subject=name, before=_describe(last))
            append_audit(connection, actor, change, record.at_ns)
            _drop_histories(connection, self._deleted_max)
        return record

    def roll_back(
        self, name: str, actor: Actor, *, to: int | None = None, expected: int | None = None
    ) -> Applied:
        """It is to run as an earlier generation did.

        Args:
            to: which; None: the last one before that was another than the present one.

        Raises DeploymentNotFound, GenerationConflict, DeploymentsRefused.
        """
        with self._database.begin() as connection:
            _lock(connection)
            history = _load_history(connection, name)
            if not history:
                raise _explain_absence(name)
            last = history[0]
            _check_expected(name, expected, None if last.manifest is None else last)
            if last.manifest is None:
                self._check_count(len(_list_current(connection)) + 1)
            source = _find_source(history, to)
            if source.manifest == last.manifest:
                return Applied(record=last, outcome=Outcome.UNCHANGED)
            note = f"rollback to {source.generation}"
            assert source.manifest is not None
            record = self._insert(connection, name, last.generation, source.manifest, actor, note)
            change = Change(
                action="deployment.rollback", subject=name, before=_describe(last), after=_describe(record)
            )
            append_audit(connection, actor, change, record.at_ns)
        return Applied(record=record, outcome=Outcome.CREATED if last.manifest is None else Outcome.CHANGED)

    def _check_count(self, count: int) -> None:
        if count > self._deployments_max:
            raise DeploymentsRefused(
                f"that would make {count} deployments, and {self._deployments_max} is the most: "
                "delete those that are not needed"
            )

    def _append(
        self,
        connection: Connection,
        last: DeploymentRecord | None,
        name: str,
        manifest: Manifest,
        actor: Actor,
    ) -> Applied:
        generation = _find_generation(connection, name)
        record = self._insert(connection, name, generation, manifest, actor, "")
        if last is None:
            change = Change(action="deployment.create", subject=name, after=_describe(record))
        else:
            change = Change(
                action="deployment.change", subject=name, before=_describe(last), after=_describe(record)
            )
        append_audit(connection, actor, change, record.at_ns)
        return Applied(record=record, outcome=Outcome.CREATED if last is None else Outcome.CHANGED)

    def _insert(
        self,
        connection: Connection,
        name: str,
        before: int,
        manifest: Manifest | None,
        actor: Actor,
        note: str,
    ) -> DeploymentRecord:
        _check_references(connection, name, manifest or {})
        encoded = None if manifest is None else msgspec.json.encode(manifest)
        if encoded is not None and len(encoded) > MANIFEST_MAX_BYTES:
            raise DeploymentsRefused(
                f"the manifest of {name} has {len(encoded)} bytes, and {MANIFEST_MAX_BYTES} is the most: "
                "give it fewer or shorter warm-up prompts"
            )
        record = DeploymentRecord(
            name=name,
            generation=before + 1,
            manifest=manifest,
            at_ns=self._clock.wall_ns(),
            actor=actor,
            note=note,
        )
        connection.execute(
            insert(manifests).values(
                name=name,
                generation=record.generation,
                manifest=None if encoded is None else encoded.decode(),
                at_ns=record.at_ns,
                actor_id=actor.id[:300],
                actor_name=actor.name[:200],
                actor_issuer=None if actor.issuer is None else actor.issuer[:500],
                note=note,
            )
        )
        too_old = record.generation - self._history_max
        connection.execute(
            delete(manifests).where((manifests.c.name == name) & (manifests.c.generation <= too_old))
        )
        return record


def _check_references(connection: Connection, name: str, manifest: Manifest) -> None:
    """Whoever deletes a version looks at manifests under the same lock: so it stays there."""
    try:
        check_references(connection, manifest)
    except (ModelVersionNotFound, RegistryConflict) as error:
        raise DeploymentsRefused(f"{name}: {error.message}") from None


def list_records(connection: Connection, *, held: bool) -> tuple[DeploymentRecord, ...]:
    """Those that are to run, as a transaction of somebody else sees them.

    Args:
        held: whether they are to stay as they are until it ends.
    """
    if held:
        _lock(connection)
    return _list_current(connection)


def find_way_back(connection: Connection, record: DeploymentRecord) -> DeploymentRecord | None:
    """The generation that a rollback without a number goes to."""
    return next(_list_earlier(_load_history(connection, record.name)), None)


def _lock(connection: Connection) -> None:
    """One writer at a time, as SQLite has anyway: so that ids go up in the order of commits."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE deploy_manifests IN SHARE ROW EXCLUSIVE MODE"))


def _select_last() -> Select[tuple[object, ...]]:
    newest = select(func.max(manifests.c.id)).group_by(manifests.c.name)
    return select(manifests).where(manifests.c.id.in_(newest))


def _list_current(connection: Connection) -> tuple[DeploymentRecord, ...]:
    query = _select_last().where(manifests.c.manifest.is_not(None)).order_by(manifests.c.name)
    found = map(_make_record, connection.execute(query).mappings())
    return tuple(sorted(found, key=lambda record: record.name))  # databases sort by rules of their own


def _drop_histories(connection: Connection, deleted_max: int) -> None:
    """Of the names that were deleted first: names that come and go must not add up."""
    gone = _select_last().where(manifests.c.manifest.is_(None)).order_by(manifests.c.id.desc())
    names = [row["name"] for row in connection.execute(gone.offset(deleted_max)).mappings()]
    if names:
        connection.execute(delete(manifests).where(manifests.c.name.in_(names)))


def _find_last(connection: Connection, name: str) -> DeploymentRecord | None:
    """None where there is none, or it was deleted."""
    query = select(manifests).where(manifests.c.name == name).order_by(manifests.c.generation.desc()).limit(1)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None or row["manifest"] is None else _make_record(row)


def _find_generation(connection: Connection, name: str) -> int:
    query = select(func.max(manifests.c.generation)).where(manifests.c.name == name)
    return connection.execute(query).scalar_one() or 0


def _load_history(connection: Connection, name: str) -> tuple[DeploymentRecord, ...]:
    query = select(manifests).where(manifests.c.name == name).order_by(manifests.c.generation.desc())
    return tuple(map(_make_record, connection.execute(query).mappings()))


def _list_earlier(history: Sequence[DeploymentRecord]) -> Iterator[DeploymentRecord]:
    """Generations that were another, the newest first."""
    for record in history[1:]:
        if record.manifest is not None and record.manifest != history[0].manifest:
            yield record


def _find_source(history: Sequence[DeploymentRecord], to: int | None) -> DeploymentRecord:
    """The generation to go back to; the newest stands first."""
    last = history[0]
    if to is None:
        if earlier := next(_list_earlier(history), None):
            return earlier
        raise DeploymentsRefused(f"{last.name} has no earlier generation to go back to")
    for record in history:
        if record.generation == to and record.manifest is not None:
            return record
    known = ", ".join(str(record.generation) for record in history if record.manifest is not None)
    raise DeploymentsRefused(f"{last.name} has no generation {to} to go back to; there is {known}")


def _check_expected(name: str, expected: int | None, last: DeploymentRecord | None) -> None:
    has = 0 if last is None else last.generation
    if expected is None or expected == has:
        return
    if last is None:
        raise GenerationConflict(f"{name} is not there any more: look at the difference again")
    raise GenerationConflict(
        f"{name} was changed meanwhile, by {last.actor.name}: it has generation {has}, not {expected}. Look "
        "at the difference again"
    )


def _require(record: DeploymentRecord | None, name: str) -> DeploymentRecord:
    if record is None:
        raise _explain_absence(name)
    return record


def _explain_absence(name: str) -> DeploymentNotFound:
    return DeploymentNotFound(
        f"no deployment {name[:100]!r} was applied: `forebay deployments` lists all", param="name"
    )


def _decode(manifest: str) -> Manifest:
    """What is no JSON any more says nothing, and is told as such by whoever reads it."""
    try:
        return msgspec.json.decode(manifest, type=dict[str, object])
    except msgspec.MsgspecError as error:
        return {DAMAGED: str(error)}


def _describe(record: DeploymentRecord) -> dict[str, object]:
    """For the audit."""
    return {"generation": record.generation, "manifest": record.manifest}


def _make_record(row: RowMapping) -> DeploymentRecord:
    manifest = row["manifest"]
    return DeploymentRecord(
        name=row["name"],
        generation=row["generation"],
        manifest=None if manifest is None else _decode(manifest),
        at_ns=row["at_ns"],
        actor=Actor(id=row["actor_id"], name=row["actor_name"], issuer=row["actor_issuer"]),
        note=row["note"],
    )
