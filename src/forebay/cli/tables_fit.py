"""How wide each column of a table is in a terminal, and which are left out for want of room.  Pure.

A narrow terminal first loses the columns that matter least; then names end in an ellipsis.  Prose wraps at
words, and numbers stay whole or go.  Nothing is broken in mid-word to keep a column that could go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

GAP: Final = 2  #: blanks between two columns
NAME_MIN: Final = 8
PROSE_MIN: Final = 24
_NAMES_PER_LINE: Final = 5  #: a name that has a fifth of the line is readable, so no column has to go for it

Kind = Literal["whole", "name", "prose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a column would like.

    Attributes:
        natural: the width of its longest cell or its title.
        rank: how early it may be left out, the highest first; 0 is never.
    """

    natural: int
    kind: Kind
    rank: int = 0


def fit_columns(wishes: Sequence[Wish], width: int) -> Mapping[int, int] | None:
    """The widths of the columns that stay, by index; None where not even those that must stay have room."""
    floors = [_floor(wish, max(NAME_MIN, width // _NAMES_PER_LINE)) for wish in wishes]
    kept = list(range(len(wishes)))
    while _need(kept, floors) > width:
        optional = [index for index in kept if wishes[index].rank]
        if not optional:
            break
        kept.remove(max(optional, key=lambda index: (wishes[index].rank, index)))
    if _need(kept, floors) > width:
        floors = [_floor(wish, NAME_MIN) for wish in wishes]
    spare = width - _need(kept, floors)
    if spare < 0:
        return None
    widths = {index: floors[index] for index in kept}
    for kind in ("name", "prose"):
        wanting = [index for index in kept if wishes[index].kind == kind]
        wanting.sort(key=lambda index: wishes[index].natural - widths[index])
        for left, index in zip(range(len(wanting), 0, -1), wanting, strict=True):
            more = min(wishes[index].natural - widths[index], spare // left)
            widths[index] += more
            spare -= more
    return widths


def _floor(wish: Wish, name_width: int) -> int:
    smallest = {"whole": wish.natural, "name": name_width, "prose": PROSE_MIN}[wish.kind]
    return min(wish.natural, smallest)


def _need(kept: Sequence[int], floors: Sequence[int]) -> int:
    return sum(floors[index] for index in kept) + GAP * (len(kept) - 1)
