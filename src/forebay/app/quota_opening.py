"""Opens the authority over limits that the configuration names: this machine's own, or one of several.

An address with a password is only ever a reference, read anew for each connection; the password is in no log.
"""

import os
import secrets
import socket
from urllib.parse import unquote, urlsplit

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


def find_address(config: Config) -> str:
    """Raises LookupError, whose words hold no secret, where a reference leads to none."""
    named = config.limits.authority or ""
    if not named.startswith(("env:", "file:")):
        return named
    address = read_secret(named)
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in SCHEMES and bool(parts.hostname or parts.path)
    except ValueError:
        is_address = False
    if not is_address:
        raise LookupError(f"{named} holds no address like redis://user:password@host:6379/0")
    if parts.password:
        redactor.learn(parts.password)
        redactor.learn(unquote(parts.password))
    return address
