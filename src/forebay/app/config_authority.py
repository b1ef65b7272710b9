"""`limits.authority`: where several machines share their limits.  Checks the address, and never shows it."""

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from forebay.app.config_values import check_reference


def _check_authority(value: str, info: ValidationInfo) -> str:
    """No part of the value goes into a message: people paste addresses with passwords in them."""
    if value.startswith(("env:", "file:")):
        return check_reference(value, info)
    try:
        parts = urlsplit(value)
        is_address = parts.scheme == "unix" and bool(parts.path)
        is_address &= "\0" not in value
        is_address |= (
            parts.scheme in ("redis", "rediss")
            and bool(parts.hostname)
            and parts.port != 0
            and re.fullmatch(r"(/\d{0,4})?", parts.path) is not None
        )
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError("not an address; it should look like redis://host:6379/0, rediss:// or unix:///path")
    if parts.password is not None or "password" in parts.query:
        raise ValueError("an address with a password is given as a reference: env:NAME or file:PATH")
    asked = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.fragment or asked.keys() - {"ssl_ca_certs"} or (asked and parts.scheme != "rediss"):
        raise ValueError(
            "the address may have no query but `?ssl_ca_certs=FILE` behind rediss://, and no fragment"
        )
    if asked and not Path(asked["ssl_ca_certs"]).is_file():
        raise ValueError("the file that `ssl_ca_certs` names is not there")
    return value


AuthorityPlace = Annotated[
    str,
    AfterValidator(_check_authority),
    WithJsonSchema(
        {"type": "string", "pattern": "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+|(rediss?|unix)://.+)$"}
    ),
]
