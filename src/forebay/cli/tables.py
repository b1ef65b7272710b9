"""Tables: drawn by Rich in a terminal, aligned plain columns elsewhere.

Plain tables are never wrapped or cut: another program may read them.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forebay.cli.tables_fit import Kind, Wish, fit_columns
from forebay.cli.terminal import is_plain, print_line, print_note

WIDE_COLUMNS: Final = 100  #: a terminal with room for two columns of prose
_EMPTY_RANK: Final = 100  #: a column without a word goes before all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    align: Literal["left", "right"] = "left"
    kind: Kind = "name"  #: how it gives way in a narrow terminal, see `tables_fit`
    rank: int = 0  #: how early it is left out there; 0 is never


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Text with a style for the terminal, and more of it on a line of its own."""

    text: str
    style: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    footer: Sequence[str] = field(default=())


def terminal_columns() -> int:
    return shutil.get_terminal_size().columns


def print_table(table: Table) -> None:
    columns = terminal_columns()
    widths = None if is_plain() else fit_columns(_wishes(table), columns)
    if widths is None:
        for line in format_plain(table):
            print_line(line)
        return
    Console(width=columns).print(_draw(table, sorted(widths.items())))
    lost = [index for index in range(len(table.columns)) if index not in widths and _has_text(table, index)]
    if lost:
        print_note(f"left out for want of room: {', '.join(table.columns[index].title for index in lost)}")


def _has_text(table: Table, index: int) -> bool:
    return any(_cell(row[index]).text for row in table.rows)


def _draw(table: Table, widths: Sequence[tuple[int, int]]) -> RichTable:
    drawn = RichTable(
        box=SIMPLE_HEAD,
        show_edge=False,
        header_style="bold",
        show_footer=bool(table.footer),
        footer_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    footer = _whole_footer(table)
    for index, width in widths:
        column = table.columns[index]
        drawn.add_column(
            column.title,
            justify=column.align,
            footer=Text(footer[index]),
            overflow="fold" if column.kind == "prose" else "ellipsis",
            no_wrap=column.kind != "prose",
            width=width,
        )
    for row in table.rows:
        drawn.add_row(*[_show(_cell(row[index])) for index, _ in widths])
    return drawn


def _show(cell: Cell) -> Text:
    text = Text(cell.text, style=cell.style)
    return Text.assemble(text, "\n", (cell.note, "dim")) if cell.note else text


def _wishes(table: Table) -> list[Wish]:
    footer = _whole_footer(table)
    wishes = []
    for index, column in enumerate(table.columns):
        cells = [_cell(row[index]) for row in table.rows]
        texts = [column.title, footer[index], *(part for cell in cells for part in (cell.text, cell.note))]
        rank = _EMPTY_RANK if column.rank and not _has_text(table, index) else column.rank
        natural = max(cell_len(line) for text in texts for line in (text.splitlines() or [""]))
        wishes.append(Wish(natural=natural, kind=column.kind, rank=rank))
    return wishes


def _whole_footer(table: Table) -> Sequence[str]:
    return [*table.footer, *[""] * (len(table.columns) - len(table.footer))]


def format_plain(table: Table) -> list[str]:
    """Lines of columns with two blanks between them."""
    texts = [[column.title for column in table.columns]]
    texts += [[" ".join(_cell(cell).text.split()) for cell in row] for row in table.rows]
    if table.footer:
        texts.append([*_whole_footer(table)])
    widths = [max(len(row[index]) for row in texts) for index in range(len(table.columns))]
    return ["  ".join(_pad(row, widths, table.columns)).rstrip() for row in texts]


def _pad(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> list[str]:
    return [
        text.rjust(width) if column.align == "right" else text.ljust(width)
        for text, width, column in zip(row, widths, columns, strict=True)
    ]


def _cell(cell: str | Cell) -> Cell:
    return Cell(text=cell) if isinstance(cell, str) else cell
