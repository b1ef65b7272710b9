"""What a worker and the process that keeps files and batches say to each other about one call.  Pure.

The worker has admitted the caller: whose call it is, is its word.  A call is its head and then, frame by
frame, its body, an empty one last; the answer likewise.
"""

from typing import Final

import msgspec

HEAD_MAX_BYTES: Final = 64 * 1024
#: Before the secret of the process that runs batches; behind the secret a dot and the id of the key that it
#: acts for.
INNER_PREFIX: Final = b"fbb-"
#: Names the line of a batch that a request is for: `BATCH/LINE`.
MARK_HEADER: Final = b"x-forebay-batch"


class CallHead(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a caller."""

    method: str
    path: str
    query: str = ""
    content_type: str = ""
    length: int | None = None  #: of the body, where it was announced
    key: str  #: id of the key that it came with
    team: str
    project: str


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """How it is answered."""

    status: int
    content_type: str = "application/json"
    disposition: str = ""  #: of content that is a file
    retry_after_s: int | None = None


encode_head = msgspec.msgpack.Encoder().encode
_call_decoder = msgspec.msgpack.Decoder(CallHead)
_answer_decoder = msgspec.msgpack.Decoder(AnswerHead)


def decode_call(data: bytes) -> CallHead:
    """Raises msgspec.MsgspecError."""
    return _call_decoder.decode(data)


def decode_answer(data: bytes) -> AnswerHead:
    """Raises msgspec.MsgspecError."""
    return _answer_decoder.decode(data)
