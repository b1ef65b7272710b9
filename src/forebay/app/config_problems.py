"""A mistake in `forebay.yaml`, and the error that carries all of them at once.

A problem says where (file, line, key), what is wrong and how to mend it.  It never holds a value that may be
a secret: whoever makes one passes words, not what stood in the file.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forebay.core import errors


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One mistake.  `line` counts from 1 and is None where no line is to blame; `key` may be empty."""

    file: Path | None
    line: int | None
    key: str
    message: str
    hint: str = ""
    severity: Severity = Severity.ERROR
    secret: bool = False  #: a warning that a secret is not there yet: a mistake for whoever needs it

    def render(self) -> str:
        """`file:line: key: message (hint)`, in the form that editors make a link of."""
        place = "" if self.file is None else f"{self.file}:{'' if self.line is None else f'{self.line}:'} "
        key = f"{self.key}: " if self.key else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{key}{self.message}{hint}"


class ConfigInvalid(errors.ConfigInvalid):
    """The file can't be used.  `problems` holds every mistake, in the order of the lines."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.render() for problem in self.problems))


def format_key(path: Iterable[str | int]) -> str:
    """`models.gpt-x.targets[0].url`; a name with a dot or an odd character is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            is_plain = part.isprintable() and part and "." not in part
            word = part if is_plain else json.dumps(part, ensure_ascii=not part.isprintable())
            text += f".{word}" if text else word
    return text
