"""What concerns several settings at once, or the world outside the file: engines, ports, secrets, paths.

Works on the raw values, so that these mistakes show beside those of single settings, and not only after they
are mended.  Looks at files and the environment, and changes nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forebay.app.config_defaults import EMBEDDED_ENGINES, ENDPOINTS_BY_KIND
from forebay.app.config_deployments_checks import check_deployments, check_file_references
from forebay.app.config_dialect_checks import check_dialect, list_addresses
from forebay.app.config_engines_checks import check_pool_engines
from forebay.app.config_explain import suggest_hint
from forebay.app.config_limits_checks import Found, check_limits
from forebay.app.config_mirrors_checks import check_mirrors
from forebay.app.config_model import ControlConfig, GatewayConfig
from forebay.app.config_oidc import check_oidc
from forebay.app.config_pools import WAYS
from forebay.app.config_pools_checks import check_pools, has_place
from forebay.app.config_problems import ConfigProblem, Severity, format_key
from forebay.app.config_source import KeyPath, Source
from forebay.app.config_usage_checks import check_priced_units, check_usage, list_units
from forebay.app.config_values import ConfigOrigin
from forebay.app.config_way_checks import TLS_KEYS, check_way, find_ca_problem, is_file
from forebay.engines.model import EngineRefused
from forebay.engines.weights import EMBEDDED_PREFIX, read_gguf_header

_OWN_PROCESS: Final = re.compile(r"control|worker-\d+")
_ENGINE_FORBIDS: Final = ("api_key", *WAYS)
_PRICE_KEYS: Final = ("usd_per_mtok", "usd_per_request", "usd_per_second", "usd_per_unit")
_PRICE_PLACE: Final = ("model", "target", "pool", "tier", "from")


def compute_check_problems(
    source: Source, origin: ConfigOrigin, env: Mapping[str, str]
) -> list[ConfigProblem]:
    """Mistakes and warnings; settings of a wrong type are passed over, since they are reported already."""
    found = [
        *_check_addresses(source.data),
        *_check_oidc(source.data, origin),
        *_check_engines(source.data, origin),
        *_check_models(source.data, origin, env),
        *_check_prices(source.data),
        *check_reference(("data", "database"), _mapping(source.data.get("data")), origin, env),
        *check_reference(("limits", "authority"), _mapping(source.data.get("limits")), origin, env),
        *check_limits(source.data),
        *check_pools(source.data),
        *check_mirrors(source.data),
        *_check_pool_ways(source.data, origin, env),
        *check_pool_engines(source.data, origin),
        *check_deployments(source.data, origin),
        *check_file_references(source.data),
    ]
    return make_problems(source, dict.fromkeys(found))  # a pool's are found at each target that names it


def make_problems(source: Source, found: Iterable[Found]) -> list[ConfigProblem]:
    """With file and line."""
    return [
        ConfigProblem(
            file=source.file,
            line=source.line(path),
            key=format_key(path),
            message=message,
            hint=hint,
            severity=severity,
            secret=secret,
        )
        for path, message, hint, severity, secret in found
    ]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _error(path: KeyPath, message: str, hint: str) -> Found:
    return path, message, hint, Severity.ERROR, False


def _warning(path: KeyPath, message: str, hint: str, *, secret: bool = False) -> Found:
    return path, message, hint, Severity.WARNING, secret


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _check_addresses(data: Mapping[str, Any]) -> Iterator[Found]:
    gateway, control = _mapping(data.get("gateway")), _mapping(data.get("control"))
    port = gateway.get("port", GatewayConfig().port)
    if port != 0 and port == control.get("port", ControlConfig().port):
        key = "control" if "port" in control else "gateway"
        yield _error((key, "port"), "gateway and control plane have the same port", "choose another port")
    host = gateway.get("host")
    if isinstance(host, str) and not is_loopback(host):
        yield _warning(
            ("gateway", "host"),
            "the gateway is open to the network, without TLS of its own",
            "put a TLS proxy in front, or use 127.0.0.1",
        )
    host = control.get("host")
    if isinstance(host, str) and not is_loopback(host):
        yield _warning(
            ("control", "host"),
            "the admin API is open to the network",
            "use 127.0.0.1 and reach it by a tunnel",
        )


def _check_oidc(data: Mapping[str, Any], origin: ConfigOrigin) -> Iterator[Found]:
    section = _mapping(data.get("control")).get("oidc")
    if not isinstance(section, Mapping):
        return
    place: KeyPath = ("control", "oidc")
    for keys, message, hint in check_oidc(section):
        yield _error((*place, *keys), message, hint)
    ca = section.get("tls_ca")
    if isinstance(ca, str) and (problem := find_ca_problem(origin.folder, ca)):
        hint = "give a PEM file; relative paths start at the file's folder"
        yield _error((*place, "tls_ca"), problem, hint)


def _check_engines(data: Mapping[str, Any], origin: ConfigOrigin) -> Iterator[Found]:
    engines = _mapping(data.get("engines"))
    for name, engine in engines.items():
        if _OWN_PROCESS.fullmatch(name):
            yield _error(
                ("engines", name), "is the name of a process of Forebay's own", "choose another name"
            )
        model = _mapping(engine).get("model")
        if isinstance(model, str) and model and not model.startswith(EMBEDDED_PREFIX):
            yield from _check_weights(("engines", name, "model"), origin.folder, model)
    if "models" in data:
        used = {target.get("engine") for _, _, target in _targets(data)}
        for unused in engines:
            if unused not in used:
                yield _warning(
                    ("engines", unused),
                    "no model uses this engine",
                    "name it in a target, or remove it to save memory",
                )


def _check_weights(path: KeyPath, folder: Path, name: str) -> Iterator[Found]:
    try:
        read_gguf_header(folder / Path(name).expanduser())
    except EngineRefused as refused:
        yield _error(path, refused.message.rstrip("."), "")
    except (RuntimeError, ValueError):
        return  # the home of an unknown user, or no path at all: the setting itself reports it


def _targets(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, Mapping[str, Any]]]:
    for name, model in _mapping(data.get("models")).items():
        targets = _mapping(model).get("targets")
        for index, target in enumerate(targets if isinstance(targets, list) else ()):
            if isinstance(target, Mapping):
                yield ("models", name, "targets", index), name, target


def _check_models(data: Mapping[str, Any], origin: ConfigOrigin, env: Mapping[str, str]) -> Iterator[Found]:
    models = data.get("models")
    if isinstance(models, Mapping) and not models:
        yield _warning(("models",), "no models: callers get 404 for every name", "add one, or remove the key")
    engines = {**EMBEDDED_ENGINES, **_mapping(data.get("engines"))}
    for name, model in _mapping(models).items():
        endpoints = _mapping(model).get("endpoints")
        if isinstance(endpoints, list):
            for index, endpoint in enumerate(endpoints):
                if endpoint in endpoints[:index]:
                    yield _error(
                        ("models", name, "endpoints", index), "stands twice in the list", "remove one"
                    )
    pools = _mapping(data.get("pools"))
    for path, name, target in _targets(data):
        endpoints = _mapping(_mapping(models).get(name)).get("endpoints")
        yield from _check_place(path, target)
        yield from _check_target_engine(path, target, engines, endpoints)
        yield from check_dialect(path, target, endpoints, pools)
        for url_path, url in list_addresses(path, target, pools):
            yield from _check_target_url(path, target, url_path, url)
        yield from check_usage(path, target)
        yield from _check_secret(path, target, origin, env)
    yield from _check_copies(data)


def _check_place(path: KeyPath, target: Mapping[str, Any]) -> Iterator[Found]:
    if "engine" in target and "url" in target:
        yield _error(path, "has both `engine` and `url`", "make two targets of it, or remove one")
    elif not has_place(target):
        yield _error(
            path, "has neither `engine` nor `url`", "name an engine of this file, an address or a pool"
        )
    if "engine" in target:
        for key in _ENGINE_FORBIDS:
            if key in target:
                yield _error((*path, key), "has no meaning for an engine on this machine", "remove it")


def _check_target_engine(
    path: KeyPath, target: Mapping[str, Any], engines: Mapping[str, Any], endpoints: object
) -> Iterator[Found]:
    engine = target.get("engine")
    if not isinstance(engine, str):
        return
    if engine not in engines:
        yield _error(
            (*path, "engine"), "no engine of that name", suggest_hint(engine, engines, "the engines are")
        )
        return
    able = ENDPOINTS_BY_KIND.get(str(_mapping(engines[engine]).get("kind")))
    for index, endpoint in enumerate(endpoints if able and isinstance(endpoints, list) else ()):
        known = {each for kinds in ENDPOINTS_BY_KIND.values() for each in kinds}
        if able and isinstance(endpoint, str) and endpoint in known and endpoint not in able:
            yield _error(
                (*path[:2], "endpoints", index),
                f"engine `{engine}` does not answer this endpoint",
                f"it answers {', '.join(able)}",
            )


def _check_target_url(
    path: KeyPath, target: Mapping[str, Any], url_path: KeyPath, url: object
) -> Iterator[Found]:
    if not isinstance(url, str):
        return
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return
    if parts.scheme == "http" and not is_loopback(host) and "api_key" in target:
        yield _warning(url_path, "the credential travels without encryption", "use https://")
    for key in TLS_KEYS:
        if parts.scheme == "http" and key in target:
            hint = "use https://, or remove it"
            yield _warning((*path, key), "has no meaning for an http:// address", hint)


def _check_secret(
    path: KeyPath, target: Mapping[str, Any], origin: ConfigOrigin, env: Mapping[str, str]
) -> Iterator[Found]:
    yield from check_way(path, target, origin.folder)
    for key in ("api_key", "proxy_credentials"):
        yield from check_reference((*path, key), target, origin, env)


def _check_pool_ways(
    data: Mapping[str, Any], origin: ConfigOrigin, env: Mapping[str, str]
) -> Iterator[Found]:
    for name, pool in _mapping(data.get("pools")).items():
        yield from check_way(("pools", name), _mapping(pool), origin.folder)
        yield from check_reference(("pools", name, "proxy_credentials"), _mapping(pool), origin, env)


def check_reference(
    path: KeyPath, section: Mapping[str, Any], origin: ConfigOrigin, env: Mapping[str, str]
) -> Iterator[Found]:
    """Whether a secret that the last key of the path refers to is there."""
    reference = section.get(str(path[-1]))
    if not isinstance(reference, str):
        return
    kind, _, rest = reference.partition(":")
    if kind == "env" and rest.isidentifier() and not env.get(rest):
        yield _warning(path, f"the environment variable {rest} is not set", "export it", secret=True)
    if kind == "file" and rest.strip() and not is_file(origin.folder, rest):
        yield _warning(path, "the file with the secret can't be found", "check the path", secret=True)


def _check_copies(data: Mapping[str, Any]) -> Iterator[Found]:
    seen: dict[tuple[str, ...], KeyPath] = {}
    for path, name, target in _targets(data):
        place = (name, str(target.get("engine")), str(target.get("url")), str(target.get("model")))
        if place in seen and ("engine" in target or "url" in target):
            yield _error(path, f"is the same as {format_key(seen[place])}", "remove one of the two")
        seen.setdefault(place, path)


def _check_prices(data: Mapping[str, Any]) -> Iterator[Found]:
    book = _mapping(data.get("prices")).get("book")
    seen: dict[tuple[str, ...], KeyPath] = {}
    counted = list_units(data.get("models"), (target for _, _, target in _targets(data)))
    for index, entry in enumerate(book if isinstance(book, list) else ()):
        if not isinstance(entry, Mapping):
            continue
        path: KeyPath = ("prices", "book", index)
        if not any(entry.get(key) not in (None, {}) for key in _PRICE_KEYS):
            yield _error(path, "names no price", f"give one of {', '.join(_PRICE_KEYS)}; 0 is for free")
        yield from check_priced_units((*path, "usd_per_unit"), _mapping(entry.get("usd_per_unit")), counted)
        place = tuple(str(entry.get(key, "*" if key == "model" else "")) for key in _PRICE_PLACE)
        if place in seen:
            hint = "remove one of the two, or give the newer one a later `from`"
            yield _error(path, f"is for the same requests and time as {format_key(seen[place])}", hint)
        seen.setdefault(place, path)
