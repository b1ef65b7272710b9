"""Finds in a JSON document the numbers at which usage rules point.  Pure.

Only what lies on the way to a number is looked into; all else is passed over at msgspec's speed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from forebay.core.pointers import read_index
from forebay.core.usage_rules import UsageRule
from forebay.providers.json_edit import UNREADABLE
from forebay.providers.openai_usage import COUNT_MAX

ABSENT: Final = -1  #: nothing stands there, or null
UNUSABLE: Final = -2  #: what stands there is no whole number from 0 to COUNT_MAX

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_count = msgspec.json.Decoder(int).decode


class _Place:
    """A place in a document that rules lead to or through."""

    __slots__ = ("below", "rules")

    def __init__(self) -> None:
        self.below: dict[str, _Place] = {}
        self.rules: list[int] = []  # that end here


class RuleTree:
    """The rules of one target.

    Attributes:
        rules: as they were given.
        keys: bytes of which a document holds at least one if any rule finds something in it.
    """

    __slots__ = ("_root", "keys", "rules")

    def __init__(self, rules: Sequence[UsageRule]) -> None:
        self.rules = tuple(rules)
        self._root = _Place()
        for index, rule in enumerate(self.rules):
            place = self._root
            for step in rule.steps:
                place = place.below.setdefault(step, _Place())
            place.rules.append(index)
        self.keys = tuple(_spell_key(name) for name in self._root.below)

    def look(self, document: bytes, values: list[int]) -> None:
        """Notes what the rules find in a document: a number goes before whatever was noted."""
        _walk(msgspec.Raw(document), self._root, values)

    def start(self) -> list[int]:
        """For `look`: one value for each rule."""
        return [ABSENT] * len(self.rules)


@lru_cache(maxsize=1024)
def plant(rules: tuple[UsageRule, ...]) -> RuleTree:
    """The tree of these rules, made once."""
    return RuleTree(rules)


def _spell_key(name: str) -> bytes:
    """The name as JSON has it; nothing, which every document holds, where it may be spelled in many ways."""
    is_plain = name.isascii() and name.isprintable() and not set(name) & set('"\\/<>&')
    return b'"%b"' % name.encode() if is_plain else b""


def _walk(raw: msgspec.Raw, place: _Place, values: list[int]) -> None:
    for index in place.rules:
        value = _read_value(raw)
        if value >= 0 or values[index] == ABSENT:
            values[index] = value
    if not place.below:
        return
    try:
        fields = _decode_object(raw)
    except UNREADABLE:
        _walk_list(raw, place, values)
        return
    for step, below in place.below.items():
        if step in fields:
            _walk(fields[step], below, values)


def _walk_list(raw: msgspec.Raw, place: _Place, values: list[int]) -> None:
    wanted = [
        (index, below) for step, below in place.below.items() if (index := read_index(step)) is not None
    ]
    if not wanted:
        return
    try:
        items = _decode_list(raw)
    except UNREADABLE:
        return
    for index, below in wanted:
        if index < len(items):
            _walk(items[index], below, values)


def _read_value(raw: msgspec.Raw) -> int:
    if bytes(raw) == b"null":
        return ABSENT
    try:
        count = _decode_count(raw)
    except UNREADABLE:
        return UNUSABLE
    return count if 0 <= count <= COUNT_MAX else UNUSABLE
