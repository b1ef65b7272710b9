"""How a version of a registered model is named: `registry:NAME@3`, `registry:NAME@champion`.  Pure.

`NAME@WHICH` is what people write, with a number or an alias behind the `@`; a manifest says `registry:` in
front.  What an alias meant when it was applied is written behind it, `registry:chat@champion#2:DIGEST`: such
a reference is pinned, and means that version and no other, wherever the alias has moved since.
"""

import re
from typing import Final

import msgspec

from forebay.registry.model import RegistryInvalid

PREFIX: Final = "registry:"
NAME_MAX: Final = 48
ALIAS_MAX: Final = 48
VERSION_MAX: Final = 2**31 - 1
NAME_PATTERN: Final = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_MAX - 1}}}$"
ALIAS_PATTERN: Final = rf"^[a-z][a-z0-9_-]{{0,{ALIAS_MAX - 1}}}$"
DIGEST_PATTERN: Final = r"^[0-9a-f]{64}$"
RESERVED: Final = frozenset({"latest"})  #: would move by itself, and what runs must not
_LOOKS_LIKE_VERSION: Final = re.compile(r"v?[0-9]+")
_SHAPE: Final = "write NAME@VERSION or NAME@ALIAS, such as `chat@3` or `chat@champion`"


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What a reference means for good."""

    version: int
    digest: str  #: of the content


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model: by its number, or by an alias."""

    name: str
    version: int | None = None
    alias: str = ""
    pin: Pin | None = None

    @property
    def written(self) -> str:
        """As people write it, without what it was pinned to."""
        return f"{self.name}@{self.alias or self.version}"

    @property
    def source(self) -> str:
        """As a manifest says it."""
        pinned = f"#{self.pin.version}:{self.pin.digest}" if self.pin else ""
        return f"{PREFIX}{self.written}{pinned}"


def parse_reference(text: str) -> Reference:
    """`NAME@WHICH`, maybe with what it is pinned to.  Raises RegistryInvalid."""
    written, hash_sign, pinned = text.partition("#")
    name, at_sign, which = written.partition("@")
    check_name(name)
    if not at_sign or not which:
        raise RegistryInvalid(f"{_cut(text)!r} names no version: {_SHAPE}")
    pin = _parse_pin(pinned) if hash_sign else None
    if not re.fullmatch(r"[0-9]+", which, re.ASCII):
        check_alias(which)
        return Reference(name=name, alias=which, pin=pin)
    version = _parse_version(which)
    if pin is not None and pin.version != version:
        raise RegistryInvalid(f"{_cut(text)!r} says version {version} and is pinned to {pin.version}")
    return Reference(name=name, version=version, pin=pin)


def parse_source(source: str) -> Reference | None:
    """Of what a manifest says; None where it is no reference to the registry.  Raises RegistryInvalid."""
    return parse_reference(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else None


def check_name(name: str) -> str:
    """Of a model.  Raises RegistryInvalid."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise RegistryInvalid(
            f"{_cut(name)!r} can't be the name of a registered model: 1 to {NAME_MAX} letters, digits and "
            ". _ -, the first a letter or a digit",
            param="name",
        )
    return name


def check_alias(alias: str) -> str:
    """Raises RegistryInvalid."""
    if alias in RESERVED or _LOOKS_LIKE_VERSION.fullmatch(alias):
        why = "would move by itself" if alias in RESERVED else "reads like the number of a version"
        raise RegistryInvalid(
            f"{_cut(alias)!r} can't be an alias, since it {why}: take a word such as `champion`",
            param="alias",
        )
    if not re.fullmatch(ALIAS_PATTERN, alias):
        raise RegistryInvalid(
            f"{_cut(alias)!r} is neither a version's number nor an alias: 1 to {ALIAS_MAX} lower-case "
            "letters, digits, _ and -, the first a letter",
            param="alias",
        )
    return alias


def make_label(name: str, version: int) -> str:
    """How a version stands on records, bills and in the version matrix."""
    return f"{name}-v{version}"


def label_reference(reference: Reference) -> str:
    """Likewise; empty for an alias that is not pinned."""
    version = reference.pin.version if reference.pin else reference.version
    return make_label(reference.name, version) if version else ""


def _parse_version(text: str) -> int:
    version = int(text) if len(text) <= 10 else 0
    if not 1 <= version <= VERSION_MAX or text != str(version):
        raise RegistryInvalid(f"{_cut(text)!r} is no number of a version: they are 1, 2, 3 and so on")
    return version


def _parse_pin(text: str) -> Pin:
    version, _, digest = text.partition(":")
    if not re.fullmatch(r"[0-9]+", version, re.ASCII) or not re.fullmatch(DIGEST_PATTERN, digest):
        raise RegistryInvalid(
            f"{_cut(text)!r} is not what a reference can be pinned to: VERSION:DIGEST, as `forebay "
            "deployments NAME --json` shows it, or leave out the # and what follows"
        )
    return Pin(version=_parse_version(version), digest=digest)


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"
