"""What workers and the authority say to each other: MessagePack in frames (`frames`)."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from forebay.gateway.frames import frame
from forebay.gateway.policy.lending import Loan, Want

HELD_MAX = 1000  #: limits in one message
PART_MAX_BYTES = 1024 * 1024  #: of them, at least one: their ids may be long


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Units of a limit that a worker has not spent, with the epoch of their loan."""

    limit_id: str
    epoch: int
    units: int


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker's first words, also after a connection that broke.

    Attributes:
        worker: its name, unique over all processes there ever were.
        held: what it still holds of what it was lent; for concurrent requests, what it holds and uses.
    """

    worker: str
    held: tuple[Held, ...]


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Asks for units, all or none.  `number` comes back with the answer."""

    number: int
    wants: tuple[Want, ...]


class Return(msgspec.Struct, frozen=True, tag="return"):
    """Gives units back, which may be none; negative ones were spent beyond a loan."""

    returned: tuple[Held, ...]
    recalled: str = ""  #: the limit whose recall this answers
    number: int = 0  #: comes back once it is written down; 0 where nobody waits for that


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The authority's first word to a Hello: from here on it lends."""


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """Limits have other amounts from now on than the snapshot says; all that do, before a Welcome."""

    amounts: tuple[tuple[str, int], ...]


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """A Return is written down."""

    number: int


class Lent(msgspec.Struct, frozen=True, tag="lent"):
    """Yes."""

    number: int
    loans: tuple[Loan, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """No: of a limit only `left` units are left; `wait_ns` until there are enough, -1 where nobody knows."""

    number: int
    limit_id: str
    left: int
    wait_ns: int


class Recall(msgspec.Struct, frozen=True, tag="recall"):
    """Others need what is not spent of a limit: return it now."""

    limit_id: str


FromWorker = Hello | Ask | Return
FromAuthority = Welcome | Changed | Noted | Lent | Refused | Recall

_encode = msgspec.msgpack.Encoder().encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_from_authority = msgspec.msgpack.Decoder(FromAuthority).decode


_Item = TypeVar("_Item")


def cut(items: Iterable[_Item], find_id: Callable[[_Item], str]) -> Iterator[tuple[_Item, ...]]:
    """What is said of many limits, in parts of which each fits into a frame."""
    part: list[_Item] = []
    size = 0
    for item in items:
        item_bytes = 4 * len(find_id(item)) + 32  # at most
        if part and (size + item_bytes > PART_MAX_BYTES or len(part) == HELD_MAX):
            yield tuple(part)
            part, size = [], 0
        part.append(item)
        size += item_bytes
    if part:
        yield tuple(part)


def encode_frame(message: FromWorker | FromAuthority) -> bytes:
    return frame(_encode(message))
