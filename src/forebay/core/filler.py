"""A filler: words of the operator's own that begin a stream while the model has said nothing yet.  Pure."""

from typing import Protocol

import msgspec

from forebay.core.routes import Endpoint
from forebay.core.translation import StreamTranslator


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a filler says, and as whose answer."""

    text: str
    id: str  #: of the answer, without what its dialect puts before
    model: str
    created_s: int


class Filler(StreamTranslator, Protocol):
    """One stream that began with a filler: gives the caller's events of the answer, joined to it.

    Filler and answer are one message, as the dialect has them.  What can't be read passes as it is.
    """

    @property
    def opening(self) -> bytes:
        """The events that go out before all others."""
        ...


def begin_no_filler(body: bytes, endpoint: Endpoint, opening: Opening) -> None:
    """For dialects whose answers nothing can stand before."""
    return
