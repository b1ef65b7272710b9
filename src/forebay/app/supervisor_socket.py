"""The ports of one machine: the listening sockets that outlive a worker, and the ports kept for engines.

A listening socket is bound once, by the supervisor, and inherited; so a worker's restart refuses nobody.
Never accepts a connection.
"""

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from forebay.core.errors import Fault, ForebayError
from forebay.net.listen import explain_bind

BACKLOG: Final = 4096
#: Below the range from which Linux takes ports for outgoing connections, so none of those takes an engine's
#: port while the engine restarts.
ENGINE_PORTS: Final = range(20_000, 32_000)
_LISTEN: Final = "0A"


class AddressUnavailable(ForebayError):
    """The message names the setting to change, and who holds the port if the system tells."""

    fault: ClassVar[Fault] = Fault.CALLER
    code: ClassVar[str] = "address_unavailable"


def open_listener(host: str, port: int, *, section: str) -> socket.socket:
    """A listening socket.  A name with several addresses is bound on the first IPv4 one, if it has any.

    Args:
        host: a name, or an IPv4 or IPv6 address; `::` takes IPv4 as well.
        port: 0 takes any free one.
        section: the section of forebay.yaml that holds `host` and `port`, for the message.

    Raises:
        AddressUnavailable
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise AddressUnavailable(
            f"{section}.host: {host!r} can't be resolved ({error.strerror}). Use an address of this machine."
        ) from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        is_held = error.errno == errno.EADDRINUSE
        raise AddressUnavailable(
            explain_bind(
                error, host, port,
                host_setting=f"{section}.host", port_setting=f"{section}.port",
                holder=find_port_holder(port) if is_held else None,
            )
        ) from None  # fmt: skip
    return listener


def format_url(listener: socket.socket) -> str:
    """The address for a caller on this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_port_holder(port: int) -> str | None:
    """`NAME (pid N)` of a process that listens on a TCP port; None where the system does not tell."""
    inodes = set(_find_listen_inodes(port))
    if not inodes:
        return None
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and _holds_socket(Path(entry.path), inodes):
            with suppress(OSError):
                return f"{Path(entry.path, 'comm').read_text().strip()} (pid {entry.name})"
    return None


def _find_listen_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _holds_socket(process: Path, inodes: set[str]) -> bool:
    with suppress(OSError):
        for descriptor in os.scandir(process / "fd"):
            with suppress(OSError):
                if os.readlink(descriptor.path).removeprefix("socket:[").removesuffix("]") in inodes:
                    return True
    return False


def reserve_engine_port(preferred: int | None = None, host: str = "127.0.0.1") -> socket.socket:
    """A port of an address of this machine, kept for a child as long as the socket is open.

    The socket is bound and does not listen.  A child that sets SO_REUSEADDR or SO_REUSEPORT, as servers do,
    can listen there; whoever sets neither, and any other call of this function, can't take the port.

    Args:
        preferred: the port of the last run, so that addresses stay the same where they can.
        host: the address, of IPv4.

    Raises:
        AddressUnavailable: no port is free.
    """
    drawn = random.sample(ENGINE_PORTS, 200)
    for port in [preferred, *drawn] if preferred else drawn:
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.bind((host, port))
        except OSError:
            holder.close()
            continue
        # Only now, so that the bind above has failed on a port that somebody else keeps.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return holder
    raise AddressUnavailable("No free port was found for an engine. Stop what holds ports 20000 to 32000.")
