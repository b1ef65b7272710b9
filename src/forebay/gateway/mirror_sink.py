"""Where the answer of a copy goes: to what looks like a caller that takes all at once, and keeps nothing."""

import asyncio
from collections.abc import Mapping

from forebay.gateway.call import Call

#: Of the request's headers, what is between its caller and the gateway alone.
_OWN = frozenset({b"authorization", b"x-api-key", b"x-forebay-debug", b"x-forebay-wait"})


class Sink(Call):
    """See the module.

    Args:
        headers: of the request that is copied.
    """

    body_done = True
    method = "POST"

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:  # there is no connection
        self.headers = {name: value for name, value in headers.items() if name not in _OWN}

    def respond(self, status: int, headers: str, body: bytes) -> None:
        self.answered = self.done = True

    def begin_stream(self, status: int, headers: str) -> None:
        self.answered = self.streaming = True

    async def send(self, data: bytes) -> None:
        await asyncio.sleep(0)  # all others first

    def send_now(self, data: bytes) -> None:
        pass

    def end_stream(self, data: bytes = b"") -> None:
        self.done = True

    def cut(self) -> None:
        self.done = True

    def abort(self) -> None:
        self.done = True

    @property
    def is_behind(self) -> bool:
        return False
