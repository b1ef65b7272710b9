"""CSV for spreadsheets.  What a caller wrote never becomes a formula there, nor a row of its own."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

#: What a spreadsheet may take for the begin of a formula, as OWASP lists it ("CSV Injection").
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def write_rows(stream: TextIO, names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    plain = csv.DictWriter(stream, list(names), lineterminator="\n")
    quoted = csv.DictWriter(stream, list(names), lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writeheader()
    for row in rows:
        cells = {name: escape_cell(value) for name, value in row.items()}
        # Others end a row there, and Python's writer sees no need for quotes.
        has_return = any(isinstance(value, str) and "\r" in value for value in cells.values())
        (quoted if has_return else plain).writerow(cells)


def escape_cell(value: object) -> object:
    """A text that a spreadsheet would calculate gets an apostrophe in front, and is shown as it is."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value
