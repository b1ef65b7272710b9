"""Checks of the targets that the configuration names by `url`: whether each takes a connection.

A name is looked up, a connection made, and over https a handshake; then it is closed.  No request is sent,
and no credential leaves this machine but what a proxy wants for a tunnel.  What is out of reach is a warning:
it may be so from here alone, and another target may serve.
"""

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.secret_refs import read_secret
from forebay.app.snapshot import compile_snapshot
from forebay.cli.doctor_config import find_served_secrets
from forebay.cli.finding import Finding, Verdict
from forebay.core.routes import Target
from forebay.gateway.compiling import find_proxy
from forebay.net.client import parse_address
from forebay.net.dialing import (
    Address,
    ProxyRefused,
    check_tunnel,
    encode_connect,
    open_tls,
    parse_proxy,
)

REACH_S: Final = 2.0  #: for all of it
AT_ONCE_MAX: Final = 32
ALERT_S: Final = 0.3  #: for a server to refuse the client's certificate, or that there is none

_STEPS: Final = {
    "resolve": ("the name does not resolve", "check the host in its url, and DNS on this machine"),
    "connect": ("it takes no connection", "check the host and the port in its url, and that it runs"),
    "proxy": ("its proxy takes no connection", "check the host and the port in `proxy`, and that it runs"),
    "tunnel": ("its proxy makes no tunnel", "check `proxy` and `proxy_credentials`"),
    "certificate": ("it does not go on after the handshake", "set `tls_cert` to the certificate to show it"),
    "handshake": ("TLS fails", "check that the port speaks https; else its url begins with http://"),
}


class Reach(threading.Thread):
    """One try to reach an address.

    A thread, and one that nobody waits for at the end: a resolver takes its time, and can't be called off.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(daemon=True)
        self.address = address
        self._step = "resolve"
        self._cause: tuple[str, str] | None = None
        self._is_over = False

    @property
    def trouble(self) -> tuple[str, str] | None:
        """What is wrong, as far as is known by now, and how to mend it; None where all went well."""
        what, hint = _STEPS[self._step]
        return self._cause if self._is_over else (f"{what} within {REACH_S:g} s", hint)

    def run(self) -> None:
        cause: tuple[str, str] | None = None
        try:
            self._try()
        except ssl.SSLCertVerificationError as error:
            hint = "set tls_ca to a PEM file of the authority that signed it, or use the name that it is for"
            cause = f"its certificate is not to be trusted: {error.verify_message}", hint
        except (OSError, ValueError) as error:  # a ValueError for a name that no DNS can hold
            what, hint = _STEPS[self._step]
            said = (error.strerror if isinstance(error, OSError) else None) or str(error)
            cause = f"{what}: {said or type(error).__name__}", hint
        self._cause, self._is_over = cause, True

    def _try(self) -> None:
        address = self.address
        place = address.proxy or address
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        self._step = "connect" if address.proxy is None else "proxy"
        with _connect(found) as wire:
            if address.proxy is not None:
                self._step = "tunnel"
                _ask_tunnel(wire, address)
            if address.scheme == "https":
                self._step = "handshake"
                with open_tls(address).wrap_socket(wire, server_hostname=address.host) as tls:
                    self._step = "certificate"
                    _await_alert(tls)


def _await_alert(tls: ssl.SSLSocket) -> None:
    """Raises OSError where the server refuses the client: by TLS 1.3 it says so after the handshake alone."""
    tls.settimeout(ALERT_S)
    with suppress(TimeoutError):
        if not tls.recv(1):
            raise OSError("it closed the connection")


def _ask_tunnel(wire: socket.socket, address: Address) -> None:
    """Raises OSError where the proxy makes no tunnel."""
    wire.sendall(encode_connect(address))
    answer = b""
    while not check_tunnel(answer):
        data = wire.recv(4096)
        if not data:
            raise ProxyRefused("it closed the connection instead of an answer")
        answer += data


def _connect(found: Sequence[tuple[int, int, int, str, tuple[object, ...]]]) -> socket.socket:
    """A connection to the first of the addresses that takes one.  Raises OSError."""
    last = OSError("the name has no address")
    for family, kind, protocol, _, place in found:
        wire = socket.socket(family, kind, protocol)
        wire.settimeout(REACH_S)
        try:
            wire.connect(place)
        except OSError as error:
            wire.close()
            last = error
        else:
            return wire
    raise last


def check_targets(config: Config) -> Iterator[Finding]:
    """Nothing where no target has a `url`; a line for all that are well, and one for each that is not."""
    table = compile_snapshot(config, (), {}, created_s=0).table
    targets = [target for route in table.routes for target in route.targets]
    served = find_served_secrets(config) if targets else frozenset()
    addresses = {target.id: _find_address(target) for target in targets}
    troubles = reach_all(list(dict.fromkeys(addresses.values())))
    good = 0
    for target in targets:
        found = troubles[addresses[target.id]], _find_missing_secret(target, served)
        for message, hint in filter(None, found):
            where = f"{addresses[target.id].authority}: {message}"
            yield Finding(name=f"target {target.id}", verdict=Verdict.WARN, message=where, hint=hint)
        good += not any(found)
    if good:
        message = f"{good} of {len(targets)} with a url can be reached; no request was sent"
        yield Finding(name="targets", verdict=Verdict.OK, message=message)


def _find_address(target: Target) -> Address:
    try:
        proxy = find_proxy(target, read_secret)
    except LookupError:
        proxy = parse_proxy(target.proxy or "")  # which then says that it wants them
    return parse_address(target.url, target.tls_ca, target.tls_cert, target.tls_key, proxy)[0]


def reach_all(addresses: Sequence[Address]) -> dict[Address, tuple[str, str] | None]:
    """What is wrong with each, and how to mend it; tried at once, or so many at a time."""
    clock = SystemClock()
    troubles: dict[Address, tuple[str, str] | None] = {}
    for start in range(0, len(addresses), AT_ONCE_MAX):
        tries = [Reach(address) for address in addresses[start : start + AT_ONCE_MAX]]
        deadline_ns = clock.monotonic_ns() + int(REACH_S * 1e9)
        for each in tries:
            each.start()
        for each in tries:
            each.join(max(0.0, (deadline_ns - clock.monotonic_ns()) / 1e9))
            troubles[each.address] = each.trouble
    return troubles


def _find_missing_secret(target: Target, served: frozenset[str]) -> tuple[str, str] | None:
    if target.api_key is None or target.api_key in served:
        return None
    try:
        read_secret(target.api_key)
    except LookupError as error:
        hint = "put the secret there; a variable has to be in the environment of `forebay up`"
        return f"its api_key is not there: {error}", hint
    return None
