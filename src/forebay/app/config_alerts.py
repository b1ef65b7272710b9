"""The section `alerts` of `forebay.yaml`: who is told when limits are nearly or wholly used.

What a limit's rule says of alerts stands with the rule.  `config_checks_alerts` holds the settings together.
"""

import re
from fnmatch import fnmatchcase
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema

from forebay.app.config_values import ResolvedPath, SecretReference, Section, check_reference
from forebay.gateway.policy.alerting import AlertKind

WEBHOOKS_MAX: Final = 50
URL_MAX_CHARS: Final = 1000
REFERENCES: Final = ("env:", "file:")
_HELP: Final = "write an address like https://host/path, or a reference to one: env:NAME or file:PATH"


def check_webhook_url(value: str) -> str:
    """An address of a webhook.  No part of it goes into a message: it may hold a secret.

    Raises:
        ValueError: it is none.
    """
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"not an address; {_HELP}") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError(f"not an address; {_HELP}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a name or password in the address is not allowed: deliveries are signed instead")
    if parts.fragment or not value.isascii() or re.search(r"[\s\x00-\x1f\x7f]", value):
        raise ValueError("the address must be in ASCII, without blanks and fragment; percent-encode others")
    return value


def _check_place(value: str, info: ValidationInfo) -> str:
    if value.startswith(REFERENCES):
        return check_reference(value, info)
    if "?" in value:
        raise ValueError("what follows a `?` is often secret: give such an address as env:NAME or file:PATH")
    return check_webhook_url(value)


WebhookUrl = Annotated[
    str,
    Field(min_length=1, max_length=URL_MAX_CHARS),
    AfterValidator(_check_place),
    WithJsonSchema({"type": "string", "pattern": "^(https?://|env:[A-Za-z_][A-Za-z0-9_]*$|file:.+)"}),
]
OwnerPattern = Annotated[str, Field(min_length=1, max_length=250)]


class WebhookConfig(Section):
    """Somebody who is told, by HTTP."""

    url: WebhookUrl = Field(
        description="Where events are sent, by POST: an address, or a reference to one that is secret."
    )
    secret: SecretReference = Field(
        description="With what each delivery is signed, as a reference, `env:NAME` or `file:PATH`: `whsec_` "
        "and 24 to 64 bytes in base64, such as `whsec_$(openssl rand -base64 32)` makes."
    )
    tls_ca: ResolvedPath | None = Field(
        default=None, description="PEM file with the authorities to trust instead of the system's."
    )
    events: Annotated[tuple[AlertKind, ...], Field(min_length=1)] = Field(
        default=tuple(AlertKind),
        description="Which events: `share_reached`, `exceeded`, `grace_entered`, `grace_ended`.",
    )
    owners: Annotated[tuple[OwnerPattern, ...], Field(min_length=1, max_length=100)] = Field(
        default=("*",),
        description="Whose limits, as patterns over owners like `team growth`, `project growth/search` and "
        "`key key_9f1b2c3d4e5f6071`.",
    )

    def hears(self, kind: AlertKind, owner: str) -> bool:
        return kind in self.events and any(fnmatchcase(owner, pattern) for pattern in self.owners)


class AlertsConfig(Section):
    """Who is told when limits are nearly or wholly used."""

    source: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")] = Field(
        default="/forebay", description="Names this Forebay in events: their CloudEvents `source`."
    )
    webhooks: Annotated[tuple[WebhookConfig, ...], Field(max_length=WEBHOOKS_MAX)] = Field(
        default=(), description="Who is told by HTTP; all alerts are kept in the database as well."
    )

    def choose_webhooks(self, kind: AlertKind, owner: str) -> tuple[str, ...]:
        """The addresses, as they stand here, of those who hear of it."""
        return tuple(webhook.url for webhook in self.webhooks if webhook.hears(kind, owner))
