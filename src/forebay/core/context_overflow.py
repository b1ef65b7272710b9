"""Whether a target's error says that a request is longer than its context window.  Pure.

It reads the words of every dialect at once, for a gateway behind an address may hand on those of any other:
OpenAI and Azure (`context_length_exceeded`), vLLM and SGLang ("maximum context length", "context length"),
TGI (`inputs` must have less than), llama.cpp (`exceed_context_size_error`), Anthropic ("prompt is too long",
"exceed context limit"), Gemini ("input token count … exceeds the maximum number of tokens"), Bedrock ("Input
is too long for requested model"), Mistral, Cohere.  It only ever reads errors, never a good answer.

Many engines quote what they refuse, so words that stand in the request itself prove nothing, unless that is
long enough to be too long.
"""

import re
from typing import Final

#: Statuses that come with such words: 500 and 502 where a stream, or an old engine, had no better one.
STATUSES: Final = frozenset({400, 413, 422, 500, 502})
READ_MAX_BYTES: Final = 16 * 1024  #: of an error's body
WINDOW_LEAST: Final = 4096  #: tokens, where nobody says
_WORDS: Final = re.compile(
    rb"context_length_exceeded|exceed_context_size_error|context_window_exceeded"
    rb"|maximum (?:context|model|sequence|prompt) length"
    rb"|(?:longer|larger|greater) than the (?:model'?s? )?(?:max(?:imum)? )?context[ _](?:length|size|window)"
    rb"|exceed(?:s|ed)? (?:the |this )?(?:model'?s? |available |max(?:imum)? )*"
    rb"context[ _](?:length|size|window|limit)"
    rb"|(?:prompt|input|conversation|request) is too long(?! a time)"
    rb"|input token count.{0,60}exceeds|exceeds the maximum number of tokens"
    rb"|too many (?:input |prompt )?tokens: (?:total|size limit|the)|too many input tokens"
    rb"|(?:inputs?`? tokens?|`inputs`) .{0,60}must (?:be <=|have less than)"
    rb"|too large for model with \d+ maximum context",
    re.IGNORECASE | re.DOTALL,
)


def says_too_long(status: int, body: bytes, request: bytes = b"", window: int | None = None) -> bool:
    """Whether an error of a target, in whatever dialect, is that the request fits not into its context.

    Args:
        request: the caller's body.
        window: the target's context window, in tokens, of which none is less than a byte.
    """
    if status not in STATUSES:
        return False
    may_be = len(request) >= (window or WINDOW_LEAST)
    return any(may_be or found[0] not in request for found in _WORDS.finditer(body, 0, READ_MAX_BYTES))
