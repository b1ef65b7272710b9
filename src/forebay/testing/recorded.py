"""What a scripted upstream saw: requests and connections, with monotonic times.

Times are seconds on the clock of `time.monotonic()`.  Both records are filled while bytes arrive, so they
are not frozen; only `connection` writes to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(slots=True, kw_only=True)
class RecordedRequest:
    """One request as it came off the wire, chunked bodies put together.

    request.json()["model"]; request.header("authorization"); request.connection
    """

    number: int  #: 0 for the upstream's first request
    connection: int  #: number of the connection it came on, from 0
    number_on_connection: int  #: 0 for the first request on its connection
    method: str
    target: str  #: as on the request line, with the query
    http_version: str
    headers: Sequence[tuple[str, str]]  #: in order, with the case in which they came
    arrived_at_s: float  #: when the head was complete
    body: bytearray = field(default_factory=bytearray)
    completed_at_s: float | None = None  #: when the body was complete
    answered_at_s: float | None = None  #: when its script came to its end; None if the peer left before

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def complete(self) -> bool:
        """Whether the body arrived to its end."""
        return self.completed_at_s is not None

    def header(self, name: str) -> str | None:
        """The value of the first header of that name, any case; None if there is none."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    def json(self) -> Any:
        """The body as JSON.  Raises msgspec.DecodeError if it is none."""
        return msgspec.json.decode(self.body)


@dataclass(slots=True, kw_only=True)
class RecordedConnection:
    """One connection's life."""

    number: int  #: 0 for the first
    opened_at_s: float
    requests: int = 0  #: heads received on it
    received_bytes: int = 0  #: after TLS
    closed_by_peer_at_s: float | None = None  #: FIN or RST came from the peer; None if we closed first
    closed_at_s: float | None = None  #: gone for good, whoever began
    reset_by_peer: bool = False
    protocol_error: str = ""  #: what was wrong with the peer's bytes; empty if nothing

    @property
    def open(self) -> bool:
        return self.closed_at_s is None
