"""Tables: drawn by Rich in a terminal, aligned plain columns elsewhere.

Plain tables are never wrapped or cut: another program may read them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forebay.cli.terminal import is_plain, print_line

NAME_WIDTH_MIN: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    align: Literal["left", "right"] = "left"
    is_whole: bool = False  #: never wrapped in a narrow terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Text with a style for the terminal."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    footer: Sequence[str] = field(default=())


def print_table(table: Table) -> None:
    if is_plain():
        for line in format_plain(table):
            print_line(line)
        return
    drawn = RichTable(
        box=SIMPLE_HEAD,
        header_style="bold",
        show_footer=bool(table.footer),
        footer_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    footer = [*table.footer, *[""] * (len(table.columns) - len(table.footer))]
    for column, foot in zip(table.columns, footer, strict=True):
        drawn.add_column(
            column.title,
            justify=column.align,
            footer=Text(foot),
            overflow="fold",
            no_wrap=column.is_whole,
            min_width=None if column.is_whole else NAME_WIDTH_MIN,
        )
    for row in table.rows:
        drawn.add_row(*[Text(_cell(cell).text, style=_cell(cell).style) for cell in row])
    Console().print(drawn)


def format_plain(table: Table) -> list[str]:
    """Lines of columns with two blanks between them."""
    texts = [[column.title for column in table.columns]]
    texts += [[" ".join(_cell(cell).text.split()) for cell in row] for row in table.rows]
    if table.footer:
        texts.append([*table.footer, *[""] * (len(table.columns) - len(table.footer))])
    widths = [max(len(row[index]) for row in texts) for index in range(len(table.columns))]
    return ["  ".join(_pad(row, widths, table.columns)).rstrip() for row in texts]


def _pad(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> list[str]:
    return [
        text.rjust(width) if column.align == "right" else text.ljust(width)
        for text, width, column in zip(row, widths, columns, strict=True)
    ]


def _cell(cell: str | Cell) -> Cell:
    return Cell(text=cell) if isinstance(cell, str) else cell
