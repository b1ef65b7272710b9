"""JSON Pointers (RFC 6901): which place in a document is meant.  Pure; it reads no document."""

import re
from typing import Final

LENGTH_MAX: Final = 256  #: characters
DEPTH_MAX: Final = 16  #: steps from the whole document down
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


def parse_pointer(text: str) -> tuple[str, ...]:
    """The names on the way down, `/usage/a~1b` as `("usage", "a/b")`; none for the whole document.

    Raises:
        ValueError: not a pointer, with the reason.
    """
    if len(text) > LENGTH_MAX:
        raise ValueError(f"is longer than {LENGTH_MAX} characters")
    if not text:
        return ()
    if not text.startswith("/"):
        raise ValueError("must begin with /, such as /usage/prompt_tokens")
    if _BAD_ESCAPE.search(text):
        raise ValueError("has a ~ that stands for nothing: ~0 is ~ itself, and ~1 is /")
    steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))
    if len(steps) > DEPTH_MAX:
        raise ValueError(f"has more than {DEPTH_MAX} steps")
    return steps


def read_index(step: str) -> int | None:
    """The place in a list that a step may mean: no sign, no zero in front.  None where it means none."""
    return int(step) if _INDEX.fullmatch(step) else None
