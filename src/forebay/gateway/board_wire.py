"""How workers and the board tell each other the news (`policy.news`): MessagePack in frames (`frames`)."""

import msgspec

from forebay.gateway.frames import frame
from forebay.gateway.policy.news import News


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker's first word.  Its name is unique over all processes there ever were."""

    worker: str


FromWorker = Hello | News

_encode = msgspec.msgpack.Encoder().encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_from_board = msgspec.msgpack.Decoder(News).decode


def encode_frame(message: FromWorker) -> bytes:
    return frame(_encode(message))
