"""The nouns of engine environments: a recipe, what it is built on, and the digest that names what comes of
it.

Pure.  An environment is a folder with a Python and the pinned packages of one engine.  Its name is the
digest of all that decides what is in it, so that one with the same name has the same content, and is built
once.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

import msgspec

from forebay.core.errors import Fault, ForebayError

DIGEST_DIGITS: Final = 16
PREFIX_MIN: Final = 4  #: digits of a digest by which it may be called
_REQUIREMENT: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")


class EnvironmentInvalid(ForebayError):
    """A recipe or an environment is not what was asked for, or not usable."""

    fault: ClassVar[Fault] = Fault.CALLER
    code: ClassVar[str] = "environment_invalid"


class EnvironmentFailed(ForebayError):
    """An environment could not be built.  The message names the log and how to mend it."""

    code: ClassVar[str] = "environment_failed"


class SmokeFailed(EnvironmentFailed):
    """One was built, and its engine did not answer.  It is kept aside and never used."""

    code: ClassVar[str] = "environment_smoke_failed"


class Uninstall(msgspec.Struct, frozen=True, kw_only=True, tag="uninstall", tag_field="kind"):
    """Packages that come as dependencies and break the engine."""

    packages: tuple[str, ...]
    why: str = ""


class WriteMetadata(msgspec.Struct, frozen=True, kw_only=True, tag="metadata", tag_field="kind"):
    """A distribution's metadata that the engine looks up and that no package brings."""

    name: str
    version: str
    why: str = ""


class ReplaceFile(msgspec.Struct, frozen=True, kw_only=True, tag="replace", tag_field="kind"):
    """A file of a package that fails where the environment is for, and what stands there instead."""

    path: str  #: below the folder of packages
    text: str
    why: str = ""


Repair = Uninstall | WriteMetadata | ReplaceFile


class Container(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a Dockerfile of a recipe needs to know beside the recipe."""

    base: str  #: image
    packages: tuple[str, ...] = ()  #: of Debian
    needs_forebay: bool = False  #: whether the engine is started by a module of Forebay
    port: int = 8000
    command: tuple[str, ...]
    health_path: str = "/health"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an environment is made.  All that decides its content is part of the digest."""

    name: str
    requirements: str  #: text of the pinned file
    engine: str  #: kind of engine, as `plan_engine` knows it
    version: str
    revision: int  #: of the recipe itself
    hardware: str  #: family of hardware: `cpu` or `cuda`
    python: str  #: such as `3.11`
    size_mib: int  #: of the built environment, about
    repairs: tuple[Repair, ...] = ()
    env: Mapping[str, str] = {}  #: of every process that is started from it
    container: Container
    summary: str = ""
    untried: str = ""  #: what was never seen of it; empty where it was built and run


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment is built on."""

    python: str  #: whole version, such as `3.11.2`
    system: str  #: such as `linux-x86_64-glibc2.36`


def compute_digest(recipe: Recipe, platform: Platform) -> str:
    """Names an environment: two recipes or machines that would give different content differ in it."""
    parts = (
        *(recipe.engine, recipe.version, recipe.revision, recipe.hardware, recipe.python),
        *(recipe.repairs, recipe.env, read_pins(recipe.requirements), platform),
    )
    return hashlib.sha256(msgspec.msgpack.encode(parts, order="sorted")).hexdigest()[:DIGEST_DIGITS]


def read_pins(text: str) -> tuple[str, ...]:
    """Requirements with their hashes, one string each, as they follow from the text whatever its layout.

    Raises:
        EnvironmentInvalid: a requirement is not pinned, has no hash, or an option names a place.
    """
    pins = []
    for line in text.replace("\\\n", " ").splitlines():
        line = line.partition(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("-"):
            raise EnvironmentInvalid(f"the pinned file holds {line!r}: it may hold requirements alone")
        if not _REQUIREMENT.match(line) or "://" in line:
            raise EnvironmentInvalid(f"{line.split(' ')[0]!r} is not pinned: give NAME==VERSION")
        if "--hash=sha256:" not in line:
            raise EnvironmentInvalid(f"{line!r} has no hash: pin the file anew with hashes")
        pins.append(" ".join(line.split()))
    return tuple(pins)


def list_packages(text: str) -> dict[str, str]:
    """Versions by names of a pinned file."""
    found = (_REQUIREMENT.match(pin) for pin in read_pins(text))
    return {match[1]: match[2] for match in found if match}


class BuiltEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What is written inside an environment when it has been built and seen to work."""

    FILE: ClassVar[str] = "forebay-environment.json"

    digest: str
    recipe: str
    engine: str
    version: str
    revision: int
    hardware: str
    platform: Platform
    built_at_s: float  #: Unix time
    build_s: float  #: wall clock, without the smoke inference
    smoke_s: float | None  #: from the start of the engine to its first answer; None where it was not asked
    smoke_tokens: int = 0
    size_bytes: int
    packages: Mapping[str, str]  #: versions by names, as they are installed
    env: Mapping[str, str] = {}  #: of every process that is started from it


class EnvironmentUse(msgspec.Struct, frozen=True, kw_only=True):
    """One process that uses an environment."""

    pid: int
    started: int  #: clock ticks since the machine's start, so that another process with the pid is told apart
    user: str  #: such as the id of a replica


class EnvironmentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One environment of the data folder."""

    built: BuiltEnvironment
    used_at_s: float  #: Unix time of its last use
    users: tuple[EnvironmentUse, ...]


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What is to go, and why."""

    path: str  #: name in the folder of environments
    why: str
    size_bytes: int


def choose_removals(
    entries: Iterable[EnvironmentEntry], *, wanted: Mapping[str, str]
) -> tuple[list[EnvironmentEntry], dict[str, str]]:
    """Entries that nobody uses, and for each digest that stays why it does.

    Args:
        entries: what is there.
        wanted: digests that deployments name, or how those begin, and a word on who does.
    """
    gone, kept = [], {}
    for entry in entries:
        digest = entry.built.digest
        if entry.users:
            kept[digest] = f"in use by {', '.join(sorted({use.user for use in entry.users}))}"
        elif names := [who for start, who in wanted.items() if digest.startswith(start)]:
            kept[digest] = f"wanted by {', '.join(names)}"
        else:
            gone.append(entry)
    return gone, kept


def find_digest(prefix: str, digests: Iterable[str]) -> str:
    """The one digest that begins so.

    Raises:
        EnvironmentInvalid: there is none, or several.
    """
    known = sorted(digests)
    found = [digest for digest in known if digest.startswith(prefix)]
    if len(prefix) < PREFIX_MIN or not found:
        raise EnvironmentInvalid(
            f"there is no environment {prefix!r}: `forebay env list` shows those that are there; a digest "
            "may "
            f"be shortened to {PREFIX_MIN} digits"
        )
    if len(found) > 1:
        raise EnvironmentInvalid(f"{prefix!r} begins several environments: {', '.join(found)}")
    return found[0]
