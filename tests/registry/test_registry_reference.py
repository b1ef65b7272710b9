"""How versions are named: what is written is what is read, and everything else is refused in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.registry.model import RegistryInvalid
from forebay.registry.reference import (
    ALIAS_PATTERN,
    NAME_PATTERN,
    Pin,
    Reference,
    check_alias,
    make_label,
    parse_reference,
    parse_source,
)

NAMES = st.from_regex(NAME_PATTERN[:-1] + r"\Z", fullmatch=True)
NUMBERS = st.integers(1, 2**31 - 1)
DIGESTS = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


def is_alias(text: str) -> bool:
    try:
        return bool(check_alias(text))
    except RegistryInvalid:
        return False


ALIASES = st.from_regex(ALIAS_PATTERN[:-1] + r"\Z", fullmatch=True).filter(is_alias)


@given(NAMES, NUMBERS, st.none() | DIGESTS)
def test_a_reference_by_number_is_read_as_it_is_written(name: str, version: int, digest: str | None) -> None:
    pin = None if digest is None else Pin(version=version, digest=digest)
    reference = Reference(name=name, version=version, pin=pin)
    assert parse_source(reference.source) == reference
    assert parse_reference(reference.written) == Reference(name=name, version=version)


@given(NAMES, ALIASES, st.none() | st.tuples(NUMBERS, DIGESTS))
def test_a_reference_by_alias_is_read_as_it_is_written(
    name: str, alias: str, pinned: tuple[int, str] | None
) -> None:
    pin = None if pinned is None else Pin(version=pinned[0], digest=pinned[1])
    reference = Reference(name=name, alias=alias, pin=pin)
    assert parse_source(reference.source) == reference


@given(st.text() | st.from_regex(r"[a-z0-9@#:v.-]{0,20}"))
def test_any_text_is_a_reference_that_reads_the_same_again_or_is_refused_in_words(text: str) -> None:
    try:
        reference = parse_reference(text)
    except RegistryInvalid:
        return
    assert reference.source == f"registry:{text}"
    assert (reference.version is None) == bool(reference.alias)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chat", "names no version"),
        ("chat@", "names no version"),
        ("@1", "name of a registered model"),
        ("a/b@1", "name of a registered model"),
        ("chat@0", "no number of a version"),
        ("chat@01", "no number of a version"),
        ("chat@99999999999999999999", "no number of a version"),
        ("chat@v3", "reads like the number"),
        ("chat@latest", "would move by itself"),
        ("chat@Champion", "neither a version's number nor an alias"),
        ("chat@1@2", "neither a version's number nor an alias"),
        ("chat@1#", "pinned to"),
        ("chat@1#1:abc", "pinned to"),
        (f"chat@1#2:{'0' * 64}", "is pinned to 2"),
        ("x" * 1000, "name of a registered model"),
    ],
)
def test_what_is_no_reference_is_refused(text: str, said: str) -> None:
    with pytest.raises(RegistryInvalid, match=said) as caught:
        parse_reference(text)
    assert len(caught.value.message) < 400


def test_a_path_is_no_reference() -> None:
    assert parse_source("/models/chat@1") is None


@given(NAMES, NUMBERS)
def test_the_label_of_a_version_may_stand_on_records(name: str, version: int) -> None:
    label = make_label(name, version)
    assert len(label) <= 64
    assert label.endswith(f"-v{version}")
