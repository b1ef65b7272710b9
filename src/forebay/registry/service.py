"""The registry as its users know it: register, resolve, verify, collect.  Brings disk and rows together.

A version counts from the moment that its row is committed, and that comes last: whatever is killed before it
leaves a content that nobody needs, which is collected.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from forebay.registry.disk import ContentStore, Damage, Garbage
from forebay.registry.files import Report
from forebay.registry.model import (
    Author,
    ContentMissing,
    ModelVersion,
    NewVersion,
    Registered,
    check_description,
    check_tags,
)
from forebay.registry.reference import Pin, Reference, check_alias, check_name
from forebay.registry.repo import RegistryRepo
from forebay.registry.scan import Scan, scan


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to become a version."""

    name: str
    path: Path
    alias: str = ""
    tags: Mapping[str, str] = {}
    description: str | None = None
    link: bool = False  #: whether the files may become the registry's own instead of being copied


class Registry:
    """See the module."""

    def __init__(self, repo: RegistryRepo, store: ContentStore) -> None:
        self.repo = repo
        self.store = store

    def look(self, wanted: Wanted) -> Scan:
        """Checks all that can be checked before anything is read.  Raises RegistryInvalid, ContentRefused."""
        check_name(wanted.name)
        if wanted.alias:
            check_alias(wanted.alias)
        check_tags(wanted.tags)
        check_description(wanted.description or "")
        return scan(wanted.path)

    def register(self, wanted: Wanted, found: Scan, author: Author, report: Report) -> Registered:
        """Makes a version of what was found.

        Raises ContentRefused, DiskRefuses, RegistryInvalid, RegistryConflict, StoreError.
        """
        with self.store.hold():
            manifest = self.store.add(found, report, link=wanted.link)
            return self.repo.register(
                NewVersion(
                    name=wanted.name,
                    digest=manifest.digest,
                    kind=manifest.kind,
                    files=len(manifest.files),
                    size_bytes=manifest.size_bytes,
                    origin=str(wanted.path.absolute()),
                    description=wanted.description,
                    tags=wanted.tags,
                    alias=wanted.alias,
                ),
                author,
            )

    def pin(self, reference: Reference) -> Reference:
        """With what it means now.  Raises ModelVersionNotFound, RegistryConflict, StoreError."""
        found = self.repo.resolve(reference)
        return msgspec.structs.replace(reference, pin=Pin(version=found.version, digest=found.digest))

    def locate(self, version: ModelVersion) -> Path:
        """Where its content lies here.  Raises ContentMissing."""
        if not self.store.has(version.digest):
            raise ContentMissing(
                f"the content of {version.written} is not on this machine, in {self.store.folder}: register "
                f"it here too, which gives the same version (`forebay models register {version.name} PATH`)"
            )
        return self.store.locate(version.digest)

    def verify(self, version: ModelVersion, report: Report) -> Damage:
        """Raises DiskRefuses."""
        return self.store.verify(version.digest, report)

    def collect(self, *, is_meant: bool, also_keep: Iterable[str] = ()) -> tuple[Garbage, ...]:
        """What no version needs, which is removed if that is meant.

        Args:
            also_keep: digests that somebody needs besides.

        Raises RegistryConflict, DiskRefuses, StoreError.
        """
        with self.store.hold(alone=True):
            garbage = self.store.plan_collection(self.repo.list_digests() | frozenset(also_keep))
            if is_meant:
                self.store.remove(garbage)
        return garbage
