"""The registry of one Forebay: where its contents lie, whom its audit is told of, and who uses a version.

Joins the registry with deployments, which know nothing of each other.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from forebay.app.config import Config
from forebay.app.deployer_state import load_state
from forebay.app.deployment_records import DeploymentRecord
from forebay.app.deployment_repo import find_way_back, list_records
from forebay.app.model_references import find_models_folder, list_references
from forebay.core.clock import Clock
from forebay.engines.deployment import Deployment
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.tenancy import Actor
from forebay.registry.disk import ContentStore, locate_content
from forebay.registry.model import Author, ModelVersion
from forebay.registry.reference import Reference
from forebay.registry.repo import RegistryRepo, Told
from forebay.registry.service import Registry
from forebay.store.database import Database


def open_registry(config: Config, database: Database, clock: Clock) -> Registry:
    """The database must have been migrated."""
    return Registry(
        RegistryRepo(database, clock, append_registry_audit), ContentStore(find_models_folder(config))
    )


def make_author(actor: Actor) -> Author:
    return Author(id=actor.id, name=actor.name, issuer=actor.issuer)


def append_registry_audit(connection: Connection, author: Author, told: Told, now_ns: int) -> None:
    actor = Actor(id=author.id, name=author.name, issuer=author.issuer)
    change = Change(action=told.action, subject=told.subject, before=told.before, after=told.after)
    append_audit(connection, actor, change, now_ns)


def find_users(
    config: Config, connection: Connection, version: ModelVersion, *, held: bool = True
) -> tuple[str, ...]:
    """Which deployments use a version, or would at the next `forebay rollback`, in words.

    Of this machine also those that run it still, though they are asked for no more.

    Args:
        held: whether that is to stay so until the transaction ends.
    """
    found: dict[str, None] = {}
    for name, deployment in config.deployments.items():
        manifest = deployment.model_dump(mode="json", exclude_unset=True)
        if any(_is_meant(each, version) for each in list_references(manifest)):
            found[f"deployment {name} (forebay.yaml)"] = None
    for record in list_records(connection, held=held):
        if _is_in(record, version):
            found[f"deployment {record.name}"] = None
        elif (earlier := find_way_back(connection, record)) and _is_in(earlier, version):
            found[f"the generation {earlier.generation} that deployment {record.name} may go back to"] = None
    content = locate_content(find_models_folder(config), version.digest)
    for running in _list_running(config.run_path):
        speculation = running.spec.speculation
        if content in (running.spec.model, speculation.model if speculation else ""):
            found[f"deployment {running.name}"] = None
    return tuple(found)


def _is_in(record: DeploymentRecord, version: ModelVersion) -> bool:
    return any(_is_meant(each, version) for each in list_references(record.manifest or {}))


def _is_meant(reference: Reference, version: ModelVersion) -> bool:
    number = reference.pin.version if reference.pin else reference.version
    return reference.name == version.name and number == version.version


def _list_running(run: Path) -> Iterator[Deployment]:
    try:
        kept = load_state(run).kept
    except (OSError, msgspec.MsgspecError):
        return  # the deployer tells of it
    for each in kept.values():
        yield from (found for found in (each.track.serving, each.track.candidate) if found is not None)
