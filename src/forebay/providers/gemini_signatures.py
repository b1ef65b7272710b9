"""Gemini's thought signatures inside OpenAI's chat, so that they come back to their parts.  Pure.

Google signs parts of an answer (a call of a function, a text, a thought), and wants each signature back on
its part, exactly as it was.  In chat a call has it in `extra_content.google.thought_signature`, as Google's
own compatible API has it; beside that, for callers who have no such place, it stands as the `signature` of
one of `thinking_blocks`, behind a mark that names the part.

Source: Gemini API docs, "Thought signatures" and "OpenAI compatibility".
"""

import re
from typing import Final

#: How a signature of Google's begins in `thinking_blocks`; nobody else's translator may send it on.
MARK: Final = "gemini:"
#: What Google takes for the signature of a call that another model made; without any it refuses the history.
FOREIGN: Final = "skip_thought_signature_validator"

TEXT: Final = "text"
THOUGHT: Final = "thought"
_MARKED = re.compile(rf"{MARK}(text|thought|call\d+):(.+)", re.DOTALL)
#: Models that know budgets of tokens instead of levels of thinking, and demand no signatures.
_OLD = re.compile(r"gemini-[12](?:\.\d+)?(?!\d)")


def name_call(place: int) -> str:
    """The name of a call's part, by its place among the calls of its message."""
    return f"call{place}"


def write_mark(part: str, signature: str) -> str:
    return f"{MARK}{part}:{signature}"


def read_mark(marked: str) -> tuple[str, str] | None:
    """The part's name and Google's signature; None for a signature of somebody else."""
    found = _MARKED.fullmatch(marked)
    return None if found is None else (found[1], found[2])


def is_old(model: str) -> bool:
    """Whether a model is of the generations before Gemini 3; what can't be told is new."""
    return _OLD.search(model) is not None
