"""The one HTTP client for upstreams: pools of kept-alive connections, one pool for each origin.

It owns connecting (with a timeout, over TLS where asked), reuse, and the one sweep that enforces every
deadline, so that a request costs no timer.  It follows no redirect, keeps no cookie, reads no proxy variable
and never sends a request twice.
"""

import asyncio
import select
import ssl
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

from forebay.core.errors import ConnectFailed, ConnectionsExhausted, ConnectTimeout
from forebay.net.connection import Connection

SWEEP_S = 0.05  #: how often deadlines are looked at; the precision of every timeout
IDLE_MAX_S = 4.0  #: common servers close an idle connection after 5 s; we let go before they do
PROBE_AFTER_S = 0.5  #: a connection that lay idle for longer is looked at before it is used
IDLE_CONNECTIONS_MAX = 512  #: for each origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an origin is: scheme, host, port, and whom to trust there."""

    scheme: str
    host: str
    port: int
    tls_ca: str | None = None

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"


def parse_address(url: str, tls_ca: str | None = None) -> tuple[Address, str]:
    """Splits a base URL into its address and its path (without a slash at the end).

    Raises:
        ValueError: not an http(s) URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http or https URL: {url!r}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = Address(scheme=parts.scheme, host=parts.hostname, port=port, tls_ca=tls_ca)
    return address, parts.path.rstrip("/")


class Origin:
    """The connections to one address.

    `connections_max` bounds those in use and idle together.
    """

    __slots__ = (
        "_client", "_connecting", "_idle", "_open", "_tls", "address", "connections_max", "loop", "name",
    )  # fmt: skip

    def __init__(self, client: "Client", address: Address, connections_max: int) -> None:
        self._client = client
        self.loop = client.loop
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._connecting = 0
        self._tls: ssl.SSLContext | None = None
        self.address = address
        self.name = f"{address.scheme}://{address.authority}"
        self.connections_max = connections_max
        if address.scheme == "https":
            self._tls = ssl.create_default_context(cafile=address.tls_ca)
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
            self._tls.set_alpn_protocols(["http/1.1"])

    def now(self) -> float:
        return self._client.time

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    def pop_idle(self) -> Connection | None:
        """A kept-alive connection that is fit for use, the one used last, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.is_stale():
                connection.abort()
                continue
            if self._client.time - connection.idle_from > PROBE_AFTER_S and _is_readable(connection.fileno()):
                connection.abort()  # bytes or an end are waiting: either way it cannot be used
                continue
            connection.reused = True
            return connection
        return None

    async def acquire(self, connect_s: float) -> Connection:
        """A connection for one exchange: a kept-alive one, or a new one.

        Raises:
            ConnectionsExhausted: `connections_max` are in use.
            ConnectTimeout: no connection within `connect_s` seconds.
            ConnectFailed: refused, unreachable, name unknown, or TLS not agreed.
        """
        connection = self.pop_idle()
        return connection if connection is not None else await self.connect(connect_s)

    async def connect(self, connect_s: float) -> Connection:
        """A new connection; raises like `acquire`."""
        if len(self._open) + self._connecting >= self.connections_max:
            raise ConnectionsExhausted(f"all {self.connections_max} connections to {self.name} are in use")
        address = self.address
        self._connecting += 1
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self), address.host, address.port, ssl=self._tls
                )
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection to {self.name} within {connect_s:g} s") from error
        except ssl.SSLError as error:
            raise ConnectFailed(f"TLS with {self.name} failed: {error.reason or error}") from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {self.name}: {error.strerror or error}") from error
        finally:
            self._connecting -= 1
        self._open.add(connection)
        return connection

    def watch(self, connection: Connection, first_s: float | None, idle_s: float, total_at: float) -> None:
        """Puts an exchange under its deadlines.

        Args:
            first_s: seconds to the first content, None where nobody else could answer.
            idle_s: seconds between two reads.
            total_at: the loop's time at which all is over.
        """
        connection.first_at = None if first_s is None else self._client.time + first_s + SWEEP_S
        connection.idle_s = idle_s
        connection.total_at = total_at
        self._client.active.add(connection)

    def take_back(self, connection: Connection) -> None:
        self._client.active.discard(connection)
        if self._client.closing or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.abort()
            return
        connection.idle_from = self._client.time
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self._client.active.discard(connection)
        self._open.discard(connection)

    def close_idle(self, before: float) -> None:
        """Closes what has lain idle since before the given loop time."""
        idle = self._idle
        while idle and idle[0].idle_from < before:
            idle.popleft().abort()


class Client:
    """All origins of one worker, and the sweep over what is in flight.

    Args:
        loop: the running event loop.
    """

    __slots__ = ("_handle", "_origins", "active", "closing", "loop", "time")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._origins: dict[Address, Origin] = {}
        self.active: set[Connection] = set()
        self.closing = False
        self.time = loop.time()  #: the loop's time at the last sweep: exact enough, and free
        self._handle: asyncio.TimerHandle | None = loop.call_later(SWEEP_S, self._sweep)

    def origin(self, address: Address, connections_max: int) -> Origin:
        """The origin of an address; its pool survives configuration changes."""
        origin = self._origins.get(address)
        if origin is None:
            origin = self._origins[address] = Origin(self, address, connections_max)
        origin.connections_max = connections_max
        return origin

    def _sweep(self) -> None:
        self.time = now = self.loop.time()
        for connection in tuple(self.active):
            connection.check_deadlines(now)
        for origin in self._origins.values():
            origin.close_idle(now - IDLE_MAX_S)
        if not self.closing:
            self._handle = self.loop.call_later(SWEEP_S, self._sweep)

    def close(self) -> None:
        """Closes idle connections and stops the sweep; exchanges in flight are aborted."""
        self.closing = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        for connection in tuple(self.active):
            connection.abort()
        for origin in self._origins.values():
            origin.close_idle(float("inf"))


def _is_readable(fd: int) -> bool:
    if fd < 0:
        return True
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))
