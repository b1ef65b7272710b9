"""What an engine's answer about its own health means.  Pure.

No answer is no opinion: an engine that can't be asked may serve well, and one that is busy may be slow to say
so.
"""

from enum import StrEnum
from typing import Final

_LOADING: Final = b"loading model"


class Health(StrEnum):
    """What an engine says of itself."""

    SERVING = "serving"
    LOADING = "loading"
    FAILED = "failed"
    SILENT = "silent"  #: it does not say


def judge_health(status: int, body: bytes) -> Health:
    """Of an answer at the engine's health address.

    vLLM, SGLang and llama.cpp answer 200 or 503, Triton 200 or 400; llama.cpp says in its 503 that it is
    loading its model. Anything else, such as the 404 of an engine without that address or the 401 of one that
    wants a key, says nothing.
    """
    if status == 200:
        return Health.SERVING
    if status == 503:
        return Health.LOADING if _LOADING in body[:1024].lower() else Health.FAILED
    return Health.FAILED if status in (400, 500) else Health.SILENT
