"""The one HTTP client for upstreams: pools of kept-alive connections, one pool for each origin.

It owns connecting (with a timeout, over TLS where asked; `dialing` knows the way), reuse, and the one sweep
that enforces every deadline, so that a request costs no timer.  It follows no redirect, keeps no cookie,
reads no proxy variable and never sends a request twice.
"""

import asyncio
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from urllib.parse import urlsplit

from forebay.core.errors import (
    ConnectFailed,
    ConnectionsExhausted,
    ConnectTimeout,
    Draining,
    FirstTokenTimeout,
    IdleTimeout,
    TotalTimeout,
)
from forebay.net.connection import FRESH, POOLED, REUSED, Connection
from forebay.net.dialing import Address as Address
from forebay.net.dialing import (
    Dialer,
    Look,
    Proxy,
    ProxyRefused,
    is_numeric,
    look_at_files,
    name_host,
    open_tls,
)
from forebay.net.stream_keeping import StreamKeeping
from forebay.net.turn import Turn

SWEEP_S = 0.05  #: how often deadlines are looked at; no timeout comes early, nor later than two of these
IDLE_EVERY = 5  #: sweeps between two looks at what lies idle: 0.25 s; nothing is used beyond its time anyway
IDLE_MAX_S = 4.0  #: common servers close an idle connection after 5 s; we let go before they do
KEEP_ALIVE_MARGIN_S = 1.0  #: how long before the end of a server's own `Keep-Alive: timeout` we let go
IDLE_CONNECTIONS_MAX = 512  #: for each origin
AGE_MAX_S = 300.0  #: of a connection to a name, which may come to stand for another address


def parse_address(
    url: str,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    proxy: Proxy | None = None,
) -> tuple[Address, str]:
    """Splits a base URL into its address and its path (without a slash at the end).

    Args:
        tls_ca, tls_cert, tls_key: paths of PEM files: whom to trust, and the client's certificate and key.
        proxy: through which it is reached.

    Raises:
        ValueError: not an http(s) URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http or https URL: {url!r}")
    port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    address = Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        proxy=proxy,
    )
    return address, parts.path.rstrip("/")


class Origin:
    """The connections to one address, in one owner's use.

    `connections_max` bounds those in use, idle and being made together.
    """

    __slots__ = (
        "_client", "_connecting", "_dialer", "_idle", "_made", "_open", "_streams", "_tls", "address",
        "clock", "connections_max", "loop", "name", "turn",
    )  # fmt: skip

    def __init__(
        self, client: "Client", address: Address, connections_max: int, tls: ssl.SSLContext | None
    ) -> None:
        self._client = client
        self._idle: deque[Connection] = deque()  #: alive and in nobody's use; the last one used is last
        self._open: set[Connection] = set()
        self._connecting = 0
        self._made = 0
        self._tls = tls
        by_name = address.proxy is not None or not is_numeric(address.host)
        self._dialer = Dialer(client.loop, address) if by_name else None
        self.clock = client
        self.loop = client.loop
        self._streams = StreamKeeping(client.loop)
        self.turn = client.turn
        self.address = address
        self.name = f"{address.scheme}://{address.authority}"
        self.connections_max = connections_max

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    @property
    def is_resolving(self) -> bool:
        return self._dialer is not None and self._dialer.is_resolving

    @property
    def is_busy(self) -> bool:
        """Whether it has a connection, or somebody waits for one."""
        return bool(self._open or self._connecting or self.is_resolving)

    def pop_idle(self) -> Connection | None:
        """A kept-alive connection that is fit for use, the one used last, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            connection.place = REUSED
            if self._client.time < connection.idle_until and not connection.is_stale():
                return connection
            connection.abort()
        return None

    async def acquire(self, connect_s: float) -> Connection:
        """A connection for one exchange: a kept-alive one, or a new one.

        Raises:
            ConnectionsExhausted: `connections_max` are in use.
            ConnectTimeout: no connection within `connect_s` seconds.
            ConnectFailed: refused, unreachable, name unknown, or TLS not agreed.
            Draining: the client is closed.
        """
        connection = self.pop_idle()
        return connection if connection is not None else await self.connect(connect_s)

    async def connect(self, connect_s: float) -> Connection:
        """A new connection, in the place of an idle or spare one if need be; raises like `acquire`."""
        if len(self._open) + self._connecting >= self.connections_max:
            spare = self._idle[0] if self._idle else next((one for one in self._open if one.spare), None)
            if spare is None:
                raise ConnectionsExhausted(
                    f"all {self.connections_max} connections to {self.name} are in use", retry_after_s=1
                )
            spare.abort()
        self._connecting += 1
        try:
            connection = await self._open_socket(connect_s)
        finally:
            self._connecting -= 1
        if self._client.closing:
            connection.abort()
            raise Draining("the gateway is shutting down; send the request again", retry_after_s=1)
        if connection.is_closed():
            connection.abort()
            raise ConnectFailed(f"{self.name} accepted a connection and gave it up at once")
        self._open.add(connection)
        return connection

    async def _open_socket(self, connect_s: float) -> Connection:
        address, tls = self.address, self._tls
        try:
            async with asyncio.timeout(connect_s):
                if self._dialer is None:
                    _, connection = await self.loop.create_connection(
                        lambda: Connection(self), address.host, address.port, ssl=tls
                    )
                else:
                    connection = await self._dial(self._dialer)
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection to {self.name} within {connect_s:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise ConnectFailed(
                f"the certificate of {self.name} is not to be trusted: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise ConnectFailed(f"TLS with {self.name} failed: {error.reason or error}") from error
        except ProxyRefused as error:
            assert address.proxy is not None
            raise ConnectFailed(
                f"the proxy {_name_proxy(address.proxy)} made no tunnel to {self.name}: {error.strerror}"
            ) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that can't be one
            through = "" if address.proxy is None else f" through the proxy {_name_proxy(address.proxy)}"
            raise ConnectFailed(f"cannot connect to {self.name}{through}: {_explain(error)}") from error
        connection.trusted = tls
        return connection

    async def _dial(self, dialer: Dialer) -> Connection:
        """A connection to what the host's name stands for now, for some minutes: then it may be another."""
        address, tls = self.address, self._tls
        wire = await dialer.dial()
        try:
            _, connection = await self.loop.create_connection(
                lambda: Connection(self), sock=wire, ssl=tls, server_hostname=address.host if tls else None
            )
        except BaseException:
            wire.close()
            raise
        self._made += 1
        # Apart from each other, so that they do not all end together.
        connection.reuse_until = self.loop.time() + AGE_MAX_S * (1 - self._made % 10 / 20)
        return connection

    def watch(self, connection: Connection, first_s: float | None, idle_s: float, total_at: float) -> None:
        """Puts an exchange under its deadlines.

        Args:
            first_s: seconds to the first content, None where nobody else could answer.
            idle_s: seconds between two reads, from the first byte of the body on.
            total_at: the loop's time at which all is over.
        """
        # The client's time may be one sweep behind: without the addition a timeout could come early.
        connection.first_at = None if first_s is None else self._client.time + first_s + SWEEP_S
        connection.idle_s = idle_s + SWEEP_S
        connection.total_at = total_at
        self._client.active.add(connection)

    def take_back(self, connection: Connection) -> None:
        client = self._client
        client.active.discard(connection)
        if connection.place == FRESH:
            connection.keep_s = read_keep_alive(connection.header(b"keep-alive"))
        if (
            client.closing
            or connection.keep_s <= 0
            or connection.trusted is not self._tls
            or len(self._idle) >= IDLE_CONNECTIONS_MAX
        ):
            connection.abort()
            return
        if not self._streams.is_certain and self._streams.hold(connection, self.take_back):
            return
        connection.place = POOLED
        connection.idle_until = min(client.time + connection.keep_s, connection.reuse_until)
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self._client.active.discard(connection)
        self._open.discard(connection)
        if connection.place == POOLED:
            connection.place = REUSED
            self._idle.remove(connection)

    def close_idle(self, now: float) -> None:
        """Closes what has lain idle for its time.

        Where the times differ, one may outlast its own behind an older one; `pop_idle` does not use it then.
        """
        idle = self._idle
        while idle and idle[0].idle_until <= now:
            idle[0].abort()

    def trust(self, tls: ssl.SSLContext | None) -> None:
        """Whom to trust from now on.

        Connections that were made with whom was trusted before serve nobody else: those that lie idle end
        now, those in use with their exchange.
        """
        if tls is not self._tls:
            self._tls = tls
            for connection in tuple(self._idle):
                connection.abort()

    def close(self, error: Draining) -> None:
        """Fails whoever waits for an answer, and closes every connection."""
        for connection in tuple(self._open):
            connection.fail(error)
            connection.abort()


class Client:
    """All origins of one worker, and the sweep over what is in flight.

    Args:
        loop: the running event loop.
        turn: at whose end requests go out.
    """

    __slots__ = ("_contexts", "_origins", "_ticks", "_timer", "active", "closing", "loop", "time", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Turn) -> None:
        self.loop = loop
        self.turn = turn
        self._origins: dict[tuple[Address, str], Origin] = {}
        self._contexts: dict[tuple[str | None, ...], tuple[Look, ssl.SSLContext]] = {}
        self.active: set[Connection] = set()
        self.closing = False
        self._ticks = 0
        self.time = loop.time()  #: the loop's time at the last sweep: exact enough, and free
        self._timer: asyncio.TimerHandle | None = loop.call_later(SWEEP_S, self._tick)

    @property
    def is_resolving(self) -> bool:
        """Whether a resolver owes an answer, which can't be cancelled and may take it a minute."""
        return any(origin.is_resolving for origin in self._origins.values())

    def origin(self, address: Address, connections_max: int, owner: str = "") -> Origin:
        """The origin of an address; its pool survives configuration changes.

        Args:
            owner: whose use it is for: each owner has a pool of its own, and its limit for itself.

        Raises:
            OSError: a file that TLS needs can't be read, or is of no use (ssl.SSLError).
        """
        tls = self._open_context(address) if address.scheme == "https" else None
        origin = self._origins.get((address, owner))
        if origin is None:
            origin = self._origins[address, owner] = Origin(self, address, connections_max, tls)
        origin.connections_max = connections_max
        origin.trust(tls)
        return origin

    def keep_only(self, origins: Iterable[Origin]) -> None:
        """Forgets origins that are not among these and have nothing under way.  To be called with each table:
        what still has a connection then goes with a later one."""
        kept = set(origins)
        for name, origin in tuple(self._origins.items()):
            if origin not in kept and not origin.is_busy:
                del self._origins[name]

    def _open_context(self, address: Address) -> ssl.SSLContext:
        """One for all that trust and show the same: the system's certificates take a megabyte and many
        milliseconds to load.

        A file is read again once it has changed; the system's are not.
        """
        files = address.tls_ca, address.tls_cert, address.tls_key
        look = look_at_files(address)
        known = self._contexts.get(files)
        if known is not None and known[0] == look:
            return known[1]
        context = open_tls(address)
        self._contexts[files] = look, context
        return context

    def _tick(self) -> None:
        self._timer = self.loop.call_later(SWEEP_S, self._tick)  # first: whatever goes wrong, it goes on
        self._ticks += 1
        if self._ticks % IDLE_EVERY:
            self._check_active(self.loop.time())
        else:
            self.sweep(self.loop.time())

    def _check_active(self, now: float) -> None:
        self.time = now
        for connection in tuple(self.active):
            _check_deadlines(connection, now)

    def sweep(self, now: float) -> None:
        """Enforces all deadlines as of the loop's time `now`."""
        self._check_active(now)
        for origin in self._origins.values():
            origin.close_idle(now)

    def close(self) -> None:
        """Closes every connection and stops the sweep; what is in flight fails with `Draining`."""
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        error = Draining("the gateway is shutting down; send the request again", retry_after_s=1)
        for origin in self._origins.values():
            origin.close(error)


def _check_deadlines(connection: Connection, now: float) -> None:
    if connection.complete:
        return
    if now > connection.total_at:
        error = "the target did not finish in time; raise `timeouts.total_s` if it may"
        connection.fail(TotalTimeout(error))
    elif connection.first_at is not None and not connection.content_seen and now > connection.first_at:
        connection.fail(FirstTokenTimeout("the target sent no content in time"))
    elif connection.paused or connection.last_at is None:
        pass  # the silence is ours, or the answer's body has not begun
    elif now > connection.last_at + connection.idle_s:
        connection.fail(IdleTimeout("the target fell silent in the middle of its answer"))


_TIMEOUT = re.compile(rb"(?:^|[,;\s])timeout\s*=\s*\"?(\d{1,9})")


def read_keep_alive(header: bytes) -> float:
    """How long a connection may lie idle, by its first answer's `Keep-Alive` header; 0 if not at all."""
    found = _TIMEOUT.search(header.lower()) if header else None
    return IDLE_MAX_S if found is None else min(IDLE_MAX_S, int(found[1]) - KEEP_ALIVE_MARGIN_S)


def _name_proxy(proxy: Proxy) -> str:
    return f"{name_host(proxy.host)}:{proxy.port}"


def _explain(error: OSError | UnicodeError) -> str:
    """The system's words; asyncio puts its own in their place, which do not say why."""
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
