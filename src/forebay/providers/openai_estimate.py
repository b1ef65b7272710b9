"""How many tokens a prompt has before anybody has counted, from its request's bytes alone.  Pure.

Four bytes of plain text are a token.  Letters of other scripts weigh more than their bytes say, pictures and
sound in base64 less, wherever a chat holds such; `openai_media` finds them.  No byte of text ever weighs less
than one: no text takes more than four times its estimate, whoever made it.
`tests/engines/test_estimate_truth.py` holds the result against a real tokenizer.
"""

from typing import Final

from forebay.providers.openai_media import MediaFinder, find_media

BYTES_PER_TOKEN: Final = 4  #: of plain text, the usual rule of thumb
FOREIGN_BYTES_PER_TOKEN: Final = 2  #: of bytes beyond ASCII, which are letters of other scripts and emoji
MEDIA_TOKENS_MAX: Final = 1000  #: of one picture or piece of sound, however many bytes it has
MEDIA_BODY_BYTES_MIN: Final = 4096  #: in a smaller body no media are looked for: they would be tiny

_MEDIA_BYTES_MAX: Final = MEDIA_TOKENS_MAX * BYTES_PER_TOKEN
_FOREIGN_MORE: Final = BYTES_PER_TOKEN // FOREIGN_BYTES_PER_TOKEN - 1
_ASCII: Final = bytes(range(128))


def estimate_input(body: bytes, find: MediaFinder = find_media) -> int:
    """Tokens of a request's prompt, at least 1."""
    return max(1, (len(body) + weigh_text(body, find)) // BYTES_PER_TOKEN)


def weigh_text(body: bytes, find: MediaFinder = find_media) -> int:
    """Bytes of plain text that a body weighs beyond its size; below 0 where it weighs less.

    Args:
        find: looks for media as the caller's dialect holds them.
    """
    more = 0
    if not body.isascii():
        more = _FOREIGN_MORE * len(body.translate(None, _ASCII))
    if len(body) >= MEDIA_BODY_BYTES_MIN:
        more -= sum(max(0, size - _MEDIA_BYTES_MAX) for size in find(body))
    return more
