"""Reads calls of tools out of text that follows `forced_schema`, while it comes.  Pure.

It hands on a call as soon as its name is known, and its arguments as they flow, byte for byte.  Text that is
no such call stays text: nothing is invented where an engine did not do as it was told.
"""

import re
from typing import Final

import msgspec

from forebay.providers.json_edit import UNREADABLE

#: Characters before the arguments of a call, at most; what follows more than that is no call.
HEADER_MAX: Final = 4_096
_HEADER: Final = re.compile(
    r'[\s\[\]},]{0,64}\{\s{0,64}"name"\s{0,64}:\s{0,64}("(?:[^"\\]|\\.){0,1024}")\s{0,64},\s{0,64}'
    r'"arguments"\s{0,64}:\s{0,64}(?=\{)',
    re.DOTALL,
)
_MARK: Final = re.compile(r'["\\{}\[\]]')
_decode_name = msgspec.json.Decoder(str).decode


class Piece(msgspec.Struct):
    """What came of one call.

    Attributes:
        index: of the call in its answer.
        name: where it begins.
        arguments: the next of them; may be empty.
    """

    index: int
    name: str | None = None
    arguments: str = ""


class CallReader:
    """Of one answer.  Any split of its text gives the same calls."""

    __slots__ = ("_depth", "_held", "_in_arguments", "_is_escaped", "_is_text", "_quoted", "calls")

    def __init__(self) -> None:
        self.calls = 0  #: that have begun
        self._held = ""  # from which no call can be told yet
        self._in_arguments = False
        self._is_text = False
        self._depth = 0  # of the arguments
        self._quoted = False
        self._is_escaped = False  # the next character belongs to a backslash

    def feed(self, text: str) -> tuple[list[Piece], str]:
        """What came of calls, and what is text."""
        pieces: list[Piece] = []
        if self._is_text:
            return pieces, text
        while text:
            if self._in_arguments:
                end = self._find_end(text)
                if not pieces or pieces[-1].index != self.calls - 1:
                    pieces.append(Piece(self.calls - 1))
                pieces[-1].arguments += text[:end]
                text = text[end:]
                continue
            self._held += text
            name, text = self._read_header()
            if name is None:
                break
            pieces.append(Piece(self.calls, name))
            self.calls += 1
            self._in_arguments = True
        return pieces, self._give_up() if self._is_no_call else ""

    @property
    def is_cut(self) -> bool:
        """The arguments of the last call have no end."""
        return self._in_arguments

    def finish(self) -> str:
        """The text that was held: what became no call."""
        held = "" if self.calls else self._held
        self._held = ""
        return held

    @property
    def _is_no_call(self) -> bool:
        if self.calls or self._in_arguments:
            return False
        begun = self._held.lstrip()[:1]
        return len(self._held) > HEADER_MAX or begun not in ("", "{", "[")

    def _give_up(self) -> str:
        self._is_text = True
        held, self._held = self._held, ""
        return held

    def _read_header(self) -> tuple[str | None, str]:
        """The name of the next call, and what follows its header; None while it is not known."""
        header = _HEADER.match(self._held)
        if header is None:
            if self.calls and len(self._held) > HEADER_MAX:  # behind the last call comes nothing but another
                self._held = self._held[: HEADER_MAX + 1]
            return None, ""
        try:
            name = _decode_name(header[1].encode())
        except UNREADABLE:
            return None, ""
        rest, self._held = self._held[header.end() :], ""
        return name, rest

    def _find_end(self, text: str) -> int:
        """Up to where text belongs to the arguments."""
        skip = 1 if self._is_escaped else 0
        self._is_escaped = False
        for mark in _MARK.finditer(text):
            at = mark.start()
            if at < skip:
                continue
            char = mark[0]
            if self._quoted:
                if char == "\\":
                    skip = at + 2
                elif char == '"':
                    self._quoted = False
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._in_arguments = False
                    return at + 1
        self._is_escaped = skip > len(text)
        return len(text)
