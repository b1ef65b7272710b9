"""What concerns several settings of `alerts` at once, or the world outside the file: addresses, secrets.

Works on the raw values, as `config_checks` does.  Looks at files and the environment, and changes nothing; no
message repeats a secret.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from forebay.app.config_alerts import REFERENCES, check_webhook_url
from forebay.app.config_checks import (
    check_reference,
    is_loopback,
    make_problems,
)
from forebay.app.config_problems import ConfigProblem, Severity, format_key
from forebay.app.config_source import KeyPath, Source
from forebay.app.config_values import ConfigOrigin
from forebay.app.config_way_checks import find_ca_problem
from forebay.app.secret_refs import SECRET_MAX_BYTES
from forebay.app.webhook_signing import decode_secret

Found: TypeAlias = tuple[KeyPath, str, str, Severity, bool]


def compute_alert_problems(
    source: Source, origin: ConfigOrigin, env: Mapping[str, str]
) -> list[ConfigProblem]:
    """Mistakes and warnings; settings of a wrong type are passed over, since they are reported already."""
    return make_problems(source, _check_webhooks(source.data, origin, env))


def _check_webhooks(data: Mapping[str, Any], origin: ConfigOrigin, env: Mapping[str, str]) -> Iterator[Found]:
    alerts = data.get("alerts")
    webhooks = alerts.get("webhooks") if isinstance(alerts, Mapping) else None
    seen: dict[str, KeyPath] = {}
    for index, webhook in enumerate(webhooks if isinstance(webhooks, list) else ()):
        if not isinstance(webhook, Mapping):
            continue
        path: KeyPath = ("alerts", "webhooks", index)
        url = webhook.get("url")
        if isinstance(url, str):
            if url in seen:
                hint = "make one of the two, with the events and owners of both"
                yield _error((*path, "url"), f"is the same as that of {format_key(seen[url])}", hint)
            seen.setdefault(url, path)
            yield from _check_url(path, webhook, url, origin, env)
        yield from _check_ca(path, webhook, origin)
        yield from check_reference((*path, "secret"), webhook, origin, env)
        yield from _check_content((*path, "secret"), webhook.get("secret"), decode_secret, origin, env)


def _check_url(
    path: KeyPath, webhook: Mapping[str, Any], url: str, origin: ConfigOrigin, env: Mapping[str, str]
) -> Iterator[Found]:
    if url.startswith(REFERENCES):
        yield from check_reference((*path, "url"), webhook, origin, env)
        yield from _check_content((*path, "url"), url, check_webhook_url, origin, env)
        return
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return
    if parts.scheme == "http" and "tls_ca" in webhook:
        hint = "use https://, or remove it"
        yield _warning((*path, "tls_ca"), "has no meaning for an http:// address", hint)
    if parts.scheme == "http" and host and not is_loopback(host):
        yield _warning((*path, "url"), "events travel without encryption", "use https://")


def _check_ca(path: KeyPath, webhook: Mapping[str, Any], origin: ConfigOrigin) -> Iterator[Found]:
    ca = webhook.get("tls_ca")
    if isinstance(ca, str) and (problem := find_ca_problem(origin.folder, ca)):
        yield _error((*path, "tls_ca"), problem, "give a PEM file; relative paths start at the file's folder")


def _check_content(
    path: KeyPath,
    reference: object,
    check: Callable[[str], object],
    origin: ConfigOrigin,
    env: Mapping[str, str],
) -> Iterator[Found]:
    """What a reference leads to, where it is there."""
    if not isinstance(reference, str):
        return
    kind, _, name = reference.partition(":")
    found = env.get(name, "") if kind == "env" else _read(origin.folder, name) if kind == "file" else ""
    if not found:
        return
    try:
        check(found.strip())
    except ValueError as error:
        yield (*_warning(path, "leads to what is of no use here", str(error))[:4], True)


def _read(folder: Path, name: str) -> str:
    try:
        with (folder / Path(name).expanduser()).open("rb") as file:
            return file.read(SECRET_MAX_BYTES).decode()
    except (OSError, ValueError, RuntimeError):
        return ""  # that it is not there is reported already


def _error(path: KeyPath, message: str, hint: str) -> Found:
    return path, message, hint, Severity.ERROR, False


def _warning(path: KeyPath, message: str, hint: str) -> Found:
    return path, message, hint, Severity.WARNING, False
