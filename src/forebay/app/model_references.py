"""What manifests say of the registry: which versions they name, and what those are pinned to.

A reference by an alias is pinned where a manifest is applied, so that what runs is what was applied, wherever
the alias moves.  Pure but for `check_references`, which looks in a transaction of somebody else.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection

from forebay.app.config import Config
from forebay.app.config_deployments import DeploymentConfig
from forebay.registry.model import RegistryInvalid
from forebay.registry.queries import resolve
from forebay.registry.reference import Reference, label_reference, parse_source

FOLDER: Final = "models"
Pin = Callable[[Reference], Reference]  #: has a reference mean what it means now, for good


def find_models_folder(config: Config) -> Path:
    """Of this machine."""
    return config.data_path.absolute() / FOLDER


def list_references(manifest: Mapping[str, Any]) -> Iterator[Reference]:
    """Those in a manifest, of plain values."""
    speculation = manifest.get("speculation")
    draft = speculation.get("source") if isinstance(speculation, Mapping) else None
    for source in (manifest.get("source"), draft):
        try:
            reference = parse_source(source) if isinstance(source, str) else None
        except RegistryInvalid:
            continue  # of another version of Forebay
        if reference is not None:
            yield reference


def pin_manifest(manifest: DeploymentConfig, pin: Pin) -> DeploymentConfig:
    """With its references pinned.  Raises what `pin` does."""
    changed: dict[str, Any] = {}
    if source := _pin(manifest.source, pin):
        changed["source"] = source
    speculation = manifest.speculation
    if speculation is not None and (source := _pin(speculation.source, pin)):
        changed["speculation"] = speculation.model_copy(update={"source": source})
    return manifest.model_copy(update=changed) if changed else manifest


def _pin(source: str | None, pin: Pin) -> str:
    reference = parse_source(source or "")
    return "" if reference is None else pin(reference).source


def find_version(manifest: Mapping[str, Any]) -> str:
    """Of the model, as it stands on records: what is said, else what the reference means; empty: unknown."""
    said, source = manifest.get("version"), manifest.get("source")
    if said or not isinstance(source, str):
        return str(said or "")
    try:
        reference = parse_source(source)
    except RegistryInvalid:
        return ""
    return "" if reference is None else label_reference(reference)


def check_references(connection: Connection, manifest: Mapping[str, Any]) -> None:
    """Whether all that it names is there.  Raises ModelVersionNotFound, RegistryConflict."""
    for reference in list_references(manifest):
        resolve(connection, reference)
