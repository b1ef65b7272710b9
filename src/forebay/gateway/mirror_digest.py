"""Tells whether two answers hold the same, where a model's results follow from its input alone.  Pure.

Compared is what was asked for, and not what differs between any two answers, such as ids, times and names.
Of texts that a model writes nothing is compared: they differ by chance.
"""

import hashlib
from typing import Any, Final

import msgspec

from forebay.core.routes import Endpoint

#: Where the results stand in an answer.
_RESULTS: Final = {
    Endpoint.EMBEDDINGS: "data",
    Endpoint.SCORE: "data",
    Endpoint.RERANK: "results",
    Endpoint.INFER: "outputs",
}
COMPARED: Final = frozenset(_RESULTS)
COMPARED_BYTES_MAX: Final = 128 * 1024  #: of an answer; larger ones would keep a worker from all others

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


def compute_digest(endpoint: Endpoint, body: bytes) -> bytes | None:
    """Of the results in a whole answer; None where there is nothing to compare: tensors in binary, say."""
    name = _RESULTS.get(endpoint)
    if name is None or len(body) > COMPARED_BYTES_MAX:
        return None
    try:
        results = _decode(body).get(name)
        return None if results is None else hashlib.sha256(_encode(results)).digest()
    except (msgspec.MsgspecError, RecursionError, OverflowError, ValueError):  # it may send anything
        return None
