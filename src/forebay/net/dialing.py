"""Opens sockets to one address: looks its name up for each, tries all that it stands for, asks proxies.

It keeps nothing but the resolver's last good answer, which serves while there is no newer one.  It sends
nothing but a proxy's CONNECT; TLS is for others to begin, with the context that it makes for them.
"""

import asyncio
import base64
import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohappyeyeballs

RESOLVE_MAX_S = 1.0  #: for the resolver, where an earlier answer of it is known
RACE_S = 0.25  #: before the next address is tried beside one that does not answer (RFC 8305)
ANSWER_MAX_BYTES = 16_384  #: of a proxy
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")

Found = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
Look = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """An HTTP proxy that makes tunnels.

    Attributes:
        authorization: the value of the header that it wants, empty where it wants none.
    """

    host: str
    port: int
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an origin is: scheme, host, port; whom to trust there, who to be, and whom to go through."""

    scheme: str
    host: str
    port: int
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        default = 443 if self.scheme == "https" else 80
        return name_host(self.host) if self.port == default else f"{name_host(self.host)}:{self.port}"

    @property
    def files(self) -> tuple[str, ...]:
        """Those that TLS needs, but for the system's."""
        return tuple(filter(None, (self.tls_ca, self.tls_cert, self.tls_key)))


class ProxyRefused(OSError):
    """A proxy did not make a tunnel.  `strerror` says why, and what to mend."""

    def __init__(self, message: str) -> None:
        super().__init__(None, message)


def parse_proxy(url: str, credentials: str = "") -> Proxy:
    """
    Args:
        credentials: `user:password`; empty where the proxy wants none.

    Raises:
        ValueError: not the URL of an HTTP proxy.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("not the address of an HTTP proxy; it should look like http://host:3128")
    port = parts.port if parts.port is not None else 80
    encoded = base64.b64encode(credentials.encode()).decode()
    return Proxy(host=parts.hostname, port=port, authorization=f"Basic {encoded}" if credentials else "")


def name_host(host: str) -> str:
    """As it stands in an authority."""
    return f"[{host}]" if ":" in host else host


def is_numeric(host: str) -> bool:
    """Whether it is an IP address, which needs no resolver."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def open_tls(address: Address) -> ssl.SSLContext:
    """Whom to trust at an address, and the certificate to show there.

    Raises:
        OSError: a file can't be read, or is of no use (ssl.SSLError).
    """
    context = ssl.create_default_context(cafile=address.tls_ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if address.tls_cert is not None:
        # A key with a passphrase is refused: without this the passphrase is asked for at the terminal.
        context.load_cert_chain(address.tls_cert, address.tls_key, password=str)
    return context


def look_at_files(address: Address) -> Look:
    """Differs once one of the files has changed.  Raises OSError."""
    looks = [os.stat(name) for name in address.files]
    return tuple((look.st_ino, look.st_mtime_ns, look.st_size) for look in looks)


def encode_connect(address: Address) -> bytes:
    """What asks a proxy for a tunnel to an address."""
    place = f"{name_host(address.host)}:{address.port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"host: {place}"]
    if address.proxy is not None and address.proxy.authorization:
        lines.append(f"proxy-authorization: {address.proxy.authorization}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def check_tunnel(answer: bytes) -> bool:
    """Whether a proxy has made the tunnel; False while its answer is not complete.

    Raises:
        ProxyRefused: it has not, or what came is no such answer.
    """
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        if len(answer) > ANSWER_MAX_BYTES:
            raise ProxyRefused("what answers there is no HTTP proxy")
        return False
    found = _STATUS.match(answer)
    if found is None:
        raise ProxyRefused("what answers there is no HTTP proxy")
    status = int(found[1])  # and not its words, which may repeat the credentials
    if status == 407:
        raise ProxyRefused("it wants credentials, or others; set `proxy_credentials`")
    if not 200 <= status < 300:
        raise ProxyRefused(f"it answers {status}; ask who runs it whether it lets this address through")
    if len(answer) > end + 4:
        raise ProxyRefused("it sent more than an answer")
    return True


class Dialer:
    """See the module; for an address whose host is a name, or that is reached through a proxy."""

    __slots__ = ("_address", "_asked_at", "_known", "_lookup", "_loop", "_next")

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address) -> None:
        self._loop = loop
        self._address = address
        self._known: list[Found] = []
        self._lookup: asyncio.Task[list[Found]] | None = None
        self._asked_at = 0.0
        self._next = 0

    @property
    def is_resolving(self) -> bool:
        """Whether the resolver owes an answer, for which some thread waits."""
        return self._lookup is not None and not self._lookup.done()

    async def dial(self) -> socket.socket:
        """A connected socket, through the proxy if there is one.

        Raises:
            OSError: nobody answers, or the name is not known; ProxyRefused, if the proxy is the reason.
        """
        found = await self._resolve()
        wire = await aiohappyeyeballs.start_connection(
            self._turn_round(found), happy_eyeballs_delay=RACE_S, interleave=1, loop=self._loop
        )
        try:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._address.proxy is not None:
                await self._ask_tunnel(wire)
        except BaseException:
            wire.close()
            raise
        return wire

    async def _resolve(self) -> list[Found]:
        """What the name stands for now; what it stood for last, where the resolver has no answer in time.

        One question at a time: a resolver that hangs holds a thread, of which there are few.  Once it has
        been given up it delays nobody else.
        """
        if self._lookup is None or self._lookup.done():
            # In nobody's group: it serves all who wait, outlives each of them, and can't be cancelled.
            self._lookup = self._loop.create_task(self._look_up())
            self._lookup.add_done_callback(_take_note)
            self._asked_at = self._loop.time()
        left_s = self._asked_at + RESOLVE_MAX_S - self._loop.time()
        try:
            async with asyncio.timeout(left_s if self._known else None):
                return await asyncio.shield(self._lookup)
        except (OSError, UnicodeError):  # a TimeoutError among them
            if not self._known:
                raise
            return self._known

    async def _look_up(self) -> list[Found]:
        place = self._address.proxy or self._address
        found = await self._loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        self._known = list(found)
        return self._known

    def _turn_round(self, found: list[Found]) -> list[Found]:
        """Each connection begins at another of the addresses, within what the resolver puts first."""
        first = [each for each in found if each[0] == found[0][0]]
        rest = [each for each in found if each[0] != found[0][0]]
        self._next += 1
        at = self._next % len(first)
        return [*first[at:], *first[:at], *rest]

    async def _ask_tunnel(self, wire: socket.socket) -> None:
        await self._loop.sock_sendall(wire, encode_connect(self._address))
        answer = b""
        while not check_tunnel(answer):
            data = await self._loop.sock_recv(wire, ANSWER_MAX_BYTES)
            if not data:
                raise ProxyRefused("it closed the connection instead of an answer")
            answer += data


def _take_note(lookup: asyncio.Task[list[Found]]) -> None:
    """Or the loop would complain of a failure for which nobody waited any more."""
    if not lookup.cancelled():
        lookup.exception()
