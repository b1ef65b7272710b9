"""How many values a body of JSON has, counted without building any of them.  Pure.

What is translated is built as objects, value by value, and while that goes on a worker does nothing else: so
there is a bound, and only what lies within it is built.  The length of single texts is no matter here, nor
what stands in them: a text that looks like JSON is one value.
"""

from typing import Final

#: Objects, lists and what they hold; the slowest of them take about 2.5 µs each to translate.
VALUES_MAX: Final = 40_000

_OTHERS: Final = bytes(set(range(256)) - set(b",{["))


def has_more_values(body: bytes, values_max: int = VALUES_MAX) -> bool:
    """Whether a body has more values than that.  Of what is no JSON, any answer will do."""
    if len(body) <= values_max or _count_marks(body) <= values_max:
        return False
    # Texts may hold such marks too, and there they count for nothing.  Without escapes, every second piece
    # between quotes is a text; and each text is a value or the name of one.
    quotes_max = 4 * values_max
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', quotes_max)
    return len(pieces) > quotes_max or _count_marks(b"".join(pieces[::2])) > values_max


def _count_marks(text: bytes) -> int:
    return len(text.translate(None, _OTHERS))
