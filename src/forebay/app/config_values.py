"""Kinds of values in `forebay.yaml`: what each may look like, and what a wrong one is told.

The sections in `config_model` are made of them.  Nothing here opens a file; no message repeats a secret.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
)

from forebay.app.config_defaults import EMBEDDED_MODELS
from forebay.engines.weights import EMBEDDED_PREFIX
from forebay.providers.translators import list_dialects
from forebay.registry.reference import PREFIX as REGISTRY_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOrigin:
    """Where a configuration comes from: passed as pydantic's validation context."""

    folder: Path  #: relative paths in the file start here
    file: Path | None  #: None when there is no file and the defaults apply


def _resolve_path(value: Path, info: ValidationInfo) -> Path:
    if "\0" in str(value):
        raise ValueError("not a usable path")
    try:
        value = value.expanduser()
    except RuntimeError:
        raise ValueError("the home folder of that user is not known") from None
    return info.context.folder / value if isinstance(info.context, ConfigOrigin) else value


def _resolve_weights(value: str, info: ValidationInfo) -> str:
    if value.startswith(EMBEDDED_PREFIX):
        name = value.removeprefix(EMBEDDED_PREFIX)
        if name not in EMBEDDED_MODELS:
            raise ValueError(f"no embedded model of that name; there is {', '.join(EMBEDDED_MODELS)}")
        return value
    if value.startswith(REGISTRY_PREFIX):
        raise ValueError("only a deployment can name a version of the registry: write one, or give a path")
    if re.match(r"[a-z0-9]+://", value):
        return value  # what a cluster fetches
    return str(_resolve_path(Path(value), info))


def check_reference(value: str, info: ValidationInfo) -> str:
    """A reference to a secret, whose path starts at the file's folder.  Raises ValueError."""
    kind, _, rest = value.partition(":")
    if kind == "env" and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", rest):
        return value
    if kind == "file" and rest.strip():
        return f"file:{_resolve_path(Path(rest), info)}"
    raise ValueError("a secret is given as a reference: env:NAME or file:PATH")


def _check_database(value: str, info: ValidationInfo) -> str:
    if value.startswith(("env:", "file:")):
        return check_reference(value, info)
    if ":" in value:
        raise ValueError("an address may hold a password: give it as a reference, env:NAME or file:PATH")
    return str(_resolve_path(Path(value), info))


def check_url(value: str) -> str:
    """No part of the value goes into a message: people paste addresses with passwords in them.

    Raises ValueError.
    """
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("not an address; it should look like https://host/v1") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError("not an address; it should look like https://host/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a name or password in the address is not allowed; use api_key: env:NAME")
    if parts.query or parts.fragment or re.search(r"[\s\x00-\x1f\x7f]", value):
        raise ValueError("the address must have no query, no fragment and no blanks")
    if not host.isascii():
        raise ValueError("the host must be in ASCII; give a name with other letters in its form `xn--…`")
    if not value.isascii():
        raise ValueError("the path must be in ASCII; give other characters percent-encoded")
    return value.rstrip("/")


def _check_target_url(value: str) -> str:
    """As `check_url`, with the one query that an address may need: Azure's version of its API."""
    base, _, query = value.partition("?")
    if re.fullmatch(r"api-version=[A-Za-z0-9.-]+", query):
        return f"{check_url(base)}?{query}"
    return check_url(value)


def _check_proxy(value: str) -> str:
    if value == "direct":
        return value
    try:
        parts = urlsplit(value)
        is_good = parts.scheme == "http" and parts.path in ("", "/") and parts.username is None
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(
            "not the address of an HTTP proxy; it should look like http://host:3128, with credentials as "
            "`proxy_credentials`"
        )
    return check_url(value)


def _check_dialect(value: str) -> str:
    if value not in list_dialects():
        raise ValueError(f"no such dialect; the dialects are {', '.join(list_dialects())}")
    return value


def _check_host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.:_%-]+", value) or re.fullmatch(r"[^:]*:\d+", value):
        raise ValueError("only a host name or an IP address, without scheme and port")
    return value


ResolvedPath = Annotated[Path, AfterValidator(_resolve_path)]
Weights = Annotated[str, Field(min_length=1), AfterValidator(_resolve_weights)]
SecretReference = Annotated[
    str,
    AfterValidator(check_reference),
    WithJsonSchema({"type": "string", "pattern": "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$"}),
]
DatabasePlace = Annotated[
    str,
    Field(min_length=1),
    AfterValidator(_check_database),
    WithJsonSchema({"type": "string", "pattern": "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+|[^:]+)$"}),
]
Url = Annotated[str, AfterValidator(check_url)]
ProxyUrl = Annotated[str, AfterValidator(_check_proxy)]
TargetUrl = Annotated[str, AfterValidator(_check_target_url)]
Host = Annotated[str, AfterValidator(_check_host)]
Port = Annotated[StrictInt, Field(ge=0, le=65535)]
Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Threads = Annotated[StrictInt, Field(ge=1, le=1024)]
Bytes = Annotated[StrictInt, Field(ge=1024, le=1 << 44)]
Seconds = Annotated[StrictFloat, Field(gt=0, le=31_536_000, allow_inf_nan=False)]
SecondsOrZero = Annotated[StrictFloat, Field(ge=0, le=31_536_000, allow_inf_nan=False)]
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$")]
EngineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Dialect = Annotated[str, AfterValidator(_check_dialect), WithJsonSchema({"enum": list_dialects()})]
Tier = Literal["provisioned", "autoscaled", "quantized", "provider"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
