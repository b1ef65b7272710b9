"""Opens what machines share, as the configuration says: who lends of limits, and the line between boards.

An address with a password is only ever a reference, read anew for each connection; the password is in no log.
"""

import os
import secrets
import socket
from urllib.parse import unquote, urlsplit

from forebay.app.board_server import JoinFleet
from forebay.app.config import Config
from forebay.app.quota_authority import Authority
from forebay.app.quota_local import LocalAuthority
from forebay.app.quota_state import QuotaState
from forebay.app.redaction import redactor
from forebay.app.secret_refs import read_secret
from forebay.core.clock import Clock

SCHEMES = ("redis", "rediss", "unix")


def open_authority(config: Config, clock: Clock) -> Authority:
    """Raises OSError."""
    if config.limits.authority is None:
        return LocalAuthority(QuotaState(config.data_path / "quota.state"), clock)
    # Whoever has no such server does not pay for its client.
    from forebay.app.quota_redis import RedisAuthority

    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return RedisAuthority(lambda: find_address(config), config.limits.fleet, name, clock)


def open_fleet(config: Config) -> JoinFleet | None:
    """What makes the line to the boards of the machines that share limits; None for a machine alone."""
    if config.limits.authority is None:
        return None
    from forebay.app.board_fleet import BoardFleet

    fleet, workers = config.limits.fleet, config.gateway.workers or len(os.sched_getaffinity(0))
    return lambda merging, dealing: BoardFleet(
        lambda: find_address(config), fleet, socket.gethostname(), merging, dealing, workers
    )


def find_address(config: Config) -> str:
    """Raises LookupError, whose words hold no secret, where a reference leads to none."""
    named = config.limits.authority or ""
    if not named.startswith(("env:", "file:")):
        return named
    address = read_secret(named)
    if not _is_address(address):
        raise LookupError(
            f"{named} holds no address like redis://user:password@host:6379/0; in a password, / ? # and @ "
            "are written %2F %3F %23 and %40"
        )
    password = urlsplit(address).password
    if password:
        redactor.learn(password)
        redactor.learn(unquote(password))
    return address


def _is_address(text: str) -> bool:
    """Whether no part of a password can stand where a host or a port is looked for."""
    try:
        parts = urlsplit(text)
        port = parts.port  # it is read only here; a password with a slash in it makes a strange one
    except ValueError:
        return False
    if parts.scheme not in SCHEMES or parts.fragment:
        return False
    if parts.scheme == "unix":
        return bool(parts.path) and not parts.hostname and port is None
    return bool(parts.hostname) and "@" not in parts.path + parts.query
