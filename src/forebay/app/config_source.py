"""From the bytes of `forebay.yaml` to plain values, with the line of every key.

Knows YAML and nothing of the settings.  Whatever the bytes, the only error that leaves it is `ConfigInvalid`.
Keys are always text, and a key that stands twice is a mistake.
Size, depth and the number of values (after aliases) are bounded.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from forebay.app.config_problems import ConfigInvalid, ConfigProblem, format_key

FILE_MAX_BYTES: Final = 1024 * 1024
VALUES_MAX: Final = 50_000
DEPTH_MAX: Final = 50

_TYPE_TAG: Final = "tag:yaml.org,2002:"
KeyPath = tuple[str | int, ...]

#: The scanner's words for what people get wrong most, in plain words.  Nothing from the file is quoted.
_PLAIN_WORDS: Final = (
    (r"found character '\\t'", "a tab where YAML takes only spaces", "indent with spaces"),
    (r"cannot start any token", "a value can't start with this character", "put the value in quotes"),
    (
        r"mapping values are not allowed",
        "a `:` where none can stand",
        "check the indent, or put the value in quotes",
    ),
    (r"could not find expected ':'", "a key without `:`", "write `key: value`"),
    (
        r"undefined alias",
        "an alias (`*name`) without an anchor (`&name`)",
        "put the value in quotes if it is text",
    ),
    (r"duplicate anchor", "the same anchor (`&name`) twice", ""),
    (r"expected a single document", "more than one document", "remove the line `---` in the middle"),
    (r"unexpected end of stream|found unexpected document", "a quote or bracket that is never closed", ""),
    (r"expected ',' or '[\]}]'", "a list or mapping in brackets that is not closed, or lacks a comma", ""),
    (
        r"expected <block end>",
        "a line that does not fit the indent of the lines above",
        "line up keys of one section",
    ),
    (
        r"special characters are not allowed",
        "a character that YAML does not allow",
        "remove the control character",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The values of a file, the line of each, and the mistakes that did not stop the reading."""

    file: Path | None
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: tuple[ConfigProblem, ...] = ()

    @classmethod
    def empty(cls) -> "Source":
        return cls(file=None, data={})

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest one around it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1 if self.file else None


def read_source_bytes(file: Path) -> bytes:
    """Raises ConfigInvalid where there is nothing to read."""
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        raise _invalid(file, None, "no such file", "name another with --config or FOREBAY_CONFIG") from None
    except IsADirectoryError:
        raise _invalid(
            file, None, "is a folder, not a file", f"did you mean {file / 'forebay.yaml'}?"
        ) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a usable path"
        raise _invalid(file, None, f"can't be read: {reason}", "check path and permissions") from None
    if len(data) > FILE_MAX_BYTES:
        raise _invalid(file, None, f"is larger than {FILE_MAX_BYTES} bytes", "is this the right file?")
    return data


def parse_source(data: bytes, file: Path | None) -> Source:
    """Raises ConfigInvalid on what is no YAML or no mapping; an empty file is an empty mapping."""
    text = _decode(data, file)
    places = _Places(text)
    with _told_in_plain_words(text, file, places):
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    return _read_root(root, file, places)


def parse_documents(data: bytes, file: Path | None) -> list[Source]:
    """As `parse_source`, of a file that may hold several documents; those without a word are left out."""
    text = _decode(data, file)
    places = _Places(text)
    with _told_in_plain_words(text, file, places):
        roots = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    sources = [_read_root(root, file, places) for root in roots]
    return [source for source in sources if source.data or source.problems]


def _decode(data: bytes, file: Path | None) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _invalid(file, line, "not UTF-8 text", "save the file as UTF-8") from None


@contextmanager
def _told_in_plain_words(text: str, file: Path | None, places: "_Places") -> Iterator[None]:
    """Whatever the scanner says becomes a ConfigInvalid."""
    try:
        yield
    except yaml.reader.ReaderError as error:
        raise _invalid(file, places.line(error.position), *_say(error.reason)) from None
    except yaml.MarkedYAMLError as error:
        raise _invalid(file, *_explain_mark(error, text, places)) from None
    except RecursionError:
        raise _invalid(file, None, "is nested too deeply", f"at most {DEPTH_MAX} levels") from None
    except (yaml.YAMLError, ValueError, OverflowError, AttributeError, IndexError, KeyError, TypeError):
        # The scanner lets some of these escape, on `%YAML` lines and escapes with impossible numbers.
        raise _invalid(file, None, "is not YAML", "check escapes and lines that start with %") from None


def _read_root(root: yaml.Node | None, file: Path | None, places: "_Places") -> Source:
    if root is None:
        return Source(file=file, data={})
    reader = _Reader(file, places)
    values = reader.read(root, ())
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise _invalid(
            file,
            places.line(root.start_mark.index),
            "must be a mapping (`key: value`)",
            "start with `version: 1`",
        )
    return Source(file=file, data=values, lines=reader.lines, problems=tuple(reader.problems))


class _Places:
    """Lines as editors count them.  YAML's own marks also count U+0085, U+2028 and U+2029."""

    def __init__(self, text: str) -> None:
        self._ends = [found.end() for found in re.finditer(r"\r\n|\r|\n", text)]

    def line(self, index: int) -> int:
        return bisect_right(self._ends, index) + 1


class _Reader:
    """Turns nodes into values, and remembers lines and mistakes by the way."""

    def __init__(self, file: Path | None, places: _Places, *, depth: int = 0, values: int = 0) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[ConfigProblem] = []
        self._file = file
        self._places = places
        self._depth = depth
        self._values = values
        self._scalars = yaml.constructor.SafeConstructor()

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        line = self._line(node)
        self.lines.setdefault(path, line)
        self._values += 1
        if self._values > VALUES_MAX:
            raise _invalid(
                self._file, line, f"holds more than {VALUES_MAX} values", "aliases count each time"
            )
        if self._depth + len(path) > DEPTH_MAX:
            raise _invalid(self._file, line, "is nested too deeply", f"at most {DEPTH_MAX} levels")
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._read_scalar(node, path)

    def _read_mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = self._line(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._add(line, path, "a key must be plain text", "put it in quotes")
                continue
            if key_node.tag == f"{_TYPE_TAG}merge":
                for key, value in self._read_merged(value_node, path).items():
                    merged.setdefault(key, value)
                continue
            key = key_node.value
            if _has_half_character(key):
                self._add(line, path, _HALF_CHARACTER, "write the character itself")
                continue
            if key in own:
                first = self.lines[(*path, key)]
                self._add(line, (*path, key), f"stands twice, first in line {first}", "remove one of the two")
                continue
            self.lines[(*path, key)] = line
            own[key] = self.read(value_node, (*path, key))
        return {**merged, **own}

    def _read_merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._add(self._line(node), path, "`<<` takes a mapping or a list of mappings", "")
                continue
            for key, value in self._read_once_more(source, path).items():
                merged.setdefault(key, value)
        return merged

    def _read_once_more(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """A mapping that is merged into another: its keys keep the lines where they stand."""
        reader = _Reader(self._file, self._places, depth=self._depth + len(path) + 1, values=self._values)
        merged = reader.read(node, ())
        self._values = reader._values
        for inner, line in reader.lines.items():
            self.lines.setdefault((*path, *inner), line)
        known = {(problem.line, problem.message) for problem in self.problems}
        self.problems += [each for each in reader.problems if (each.line, each.message) not in known]
        return merged if isinstance(merged, dict) else {}

    def _read_scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        tag = node.tag.removeprefix(_TYPE_TAG)
        text = str(node.value)
        if tag in ("null", "bool", "int", "float"):
            constructors = {
                "null": self._scalars.construct_yaml_null,
                "bool": self._scalars.construct_yaml_bool,
                "int": self._scalars.construct_yaml_int,
                "float": self._scalars.construct_yaml_float,
            }
            try:
                return constructors[tag](node)
            except (ValueError, OverflowError, KeyError, IndexError, yaml.YAMLError):
                self._add(self._line(node), path, "is not a number that can be read", "put text in quotes")
                return None
        if _has_half_character(text):
            self._add(self._line(node), path, _HALF_CHARACTER, "write the character itself")
            return None
        if node.tag.startswith(_TYPE_TAG) and tag != "binary":
            return text  # dates and the like: no setting is one, so what is written is what is meant
        self._add(self._line(node), path, "tags (`!name`) are not supported", "put text in quotes")
        return None

    def _line(self, node: yaml.Node) -> int:
        return self._places.line(node.start_mark.index)

    def _add(self, line: int, path: KeyPath, message: str, hint: str) -> None:
        self.problems.append(
            ConfigProblem(file=self._file, line=line, key=format_key(path), message=message, hint=hint)
        )


_HALF_CHARACTER: Final = "holds half of a character (`\\ud800` to `\\udfff`)"


def _has_half_character(text: str) -> bool:
    """Whether it can't be written in UTF-8: an escape may make what no file can hold."""
    return re.search("[\ud800-\udfff]", text) is not None


def _explain_mark(error: yaml.MarkedYAMLError, text: str, places: _Places) -> tuple[int | None, str, str]:
    """Line, message and hint.  What is never closed is shown where it is opened, not where the file ends."""
    context, problem = str(error.context), str(error.problem)
    mark = error.problem_mark or error.context_mark
    if "expected ':'" in problem:
        mark = error.context_mark  # the key, which may stand lines above
    if mark is None:
        return None, *_say(f"{context} {problem}")
    line, opened = places.line(min(mark.index, len(text.rstrip()))), _find_opening(error, text)
    if opened is None:
        return line, *_say(f"{context} {problem}")
    first = places.line(opened)
    if re.search(r"unexpected (end of stream|document)", problem):
        return first, "not YAML: a quote that is opened here is never closed", "close it"
    closing = "]" if text[opened] == "[" else "}"
    what = f"not YAML: a bracket `{text[opened]}` that is opened here is"
    if re.search(r"<(stream|document) \w+>", problem):
        return first, f"{what} never closed", f"write `{closing}` where it ends"
    if first == line:
        return line, *_say(f"{context} {problem}")
    hint = f"write `{closing}` where it ends, or the comma"
    return first, f"{what} not closed, or a comma is missing, before line {line}", hint


def _find_opening(error: yaml.MarkedYAMLError, text: str) -> int | None:
    """Where the bracket or quote is opened within which the reading has ended."""
    if error.context_mark is not None and re.search(r"flow (sequence|mapping)|a quoted", str(error.context)):
        return int(error.context_mark.index)
    if "<stream end>" not in str(error.problem):
        return None
    opened: list[int] = []
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
            opened.append(token.start_mark.index)
        elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken) and opened:
            opened.pop()
    return opened[-1] if opened else None


def _say(reason: str) -> tuple[str, str]:
    for pattern, message, hint in _PLAIN_WORDS:
        if re.search(pattern, reason):
            return f"not YAML: {message}", hint
    return "not YAML: a character or line that does not fit", "compare with the lines above"


def _invalid(file: Path | None, line: int | None, message: str, hint: str) -> ConfigInvalid:
    return ConfigInvalid([ConfigProblem(file=file, line=line, key="", message=message, hint=hint)])
