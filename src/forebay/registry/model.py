"""The nouns of this room, and the ways in which it refuses.  No I/O happens here.

A **version** is an immutable content: a file such as a GGUF, or a folder as Hugging Face has them.  Its
digest is that of its manifest, which lists its files with theirs; so the same content has the same digest,
wherever it came from.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from forebay.core.errors import CallerError, Fault, ForebayError

TAGS_MAX: Final = 64  #: of one version
TAG_KEY_MAX: Final = 64  #: characters
TAG_VALUE_MAX: Final = 500
DESCRIPTION_MAX: Final = 4000
ENTRY: Final = "model"  #: what a file is called in its version, whatever it was called before


class RegistryInvalid(CallerError):
    """A name, an alias, a reference or a tag can't be that."""

    code: ClassVar[str] = "registry_invalid"


class ModelVersionNotFound(CallerError):
    """There is no such model, version or alias."""

    status: ClassVar[int] = 404
    type: ClassVar[str] = "not_found_error"
    code: ClassVar[str] = "model_version_not_found"


class RegistryConflict(CallerError):
    """What is there does not allow it."""

    status: ClassVar[int] = 409
    type: ClassVar[str] = "conflict_error"
    code: ClassVar[str] = "registry_conflict"


class ContentRefused(CallerError):
    """What lies at a path can't become a version."""

    code: ClassVar[str] = "content_refused"


class ContentMissing(CallerError):
    """A version is known, and this machine does not have its content."""

    status: ClassVar[int] = 409
    code: ClassVar[str] = "content_missing"


class DiskRefuses(ForebayError):
    """The disk takes or gives nothing more.  Nothing was registered."""

    fault: ClassVar[Fault] = Fault.US
    status: ClassVar[int] = 503
    code: ClassVar[str] = "disk_refuses"


class ContentKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    path: str  #: below the folder, with `/`; of a content that is a file `ENTRY`
    size_bytes: int
    sha256: str


class ContentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a content is made of.  `files` are in the order of their paths, as bytes."""

    kind: ContentKind
    files: tuple[FileEntry, ...]

    def encode(self) -> bytes:
        """What the digest is of, and what lies beside the content: one way to write it, so fields may never
        change their order."""
        return msgspec.json.encode(self)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """Who has changed something."""

    id: str
    name: str
    issuer: str | None = None


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version at rest.  Its content never changes; what is said of it may."""

    name: str  #: of the model
    version: int
    digest: str
    kind: ContentKind
    files: int
    size_bytes: int
    origin: str  #: the path that it was registered from
    description: str
    tags: Mapping[str, str]
    at_ns: int
    author: Author

    @property
    def written(self) -> str:
        return f"{self.name}@{self.version}"


class AliasMove(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an alias; the newest holds."""

    name: str
    alias: str
    version: int | None  #: None: it was removed
    at_ns: int
    author: Author
    note: str = ""  #: such as `rollback`


class RegisteredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A name with its versions, the newest first, and its aliases."""

    name: str
    versions: tuple[ModelVersion, ...]
    aliases: Mapping[str, int]

    def list_aliases(self, version: int) -> tuple[str, ...]:
        return tuple(sorted(alias for alias, number in self.aliases.items() if number == version))


class NewVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be registered, once its content is there."""

    name: str
    digest: str
    kind: ContentKind
    files: int
    size_bytes: int
    origin: str
    description: str | None = None  #: None: nothing is said
    tags: Mapping[str, str] = {}
    alias: str = ""  #: that is to mean it from now on


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    version: ModelVersion
    is_new: bool  #: False: the content was a version of that name already


def check_tags(tags: Mapping[str, str]) -> None:
    """Raises RegistryInvalid."""
    if len(tags) > TAGS_MAX:
        raise RegistryInvalid(f"{len(tags)} tags, and {TAGS_MAX} is the most", param="tags")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_MAX or not key.isprintable() or "=" in key:
            raise RegistryInvalid(
                f"{key[:100]!r} can't be the name of a tag: 1 to {TAG_KEY_MAX} characters without `=`",
                param="tags",
            )
        if len(value) > TAG_VALUE_MAX or not is_storable(value):
            raise RegistryInvalid(
                f"the tag {key!r} can't have that value: at most {TAG_VALUE_MAX} characters of text",
                param="tags",
            )


def check_description(text: str) -> None:
    """Raises RegistryInvalid."""
    if len(text) > DESCRIPTION_MAX or not is_storable(text):
        raise RegistryInvalid(f"a description has at most {DESCRIPTION_MAX} characters", param="description")


def is_storable(text: str) -> bool:
    """Whether any database takes it: PostgreSQL takes no NUL, and nobody half of a character."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
