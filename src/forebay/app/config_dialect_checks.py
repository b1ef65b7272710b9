"""What follows from the dialect of a target: what it can be asked, and what its address looks like.

Works on the raw values, as `config_checks` does, which calls it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from forebay.app.config_problems import Severity
from forebay.app.config_source import KeyPath
from forebay.core.errors import UpstreamCredentials
from forebay.core.routes import Endpoint, ForcedCalls
from forebay.providers.chat_to_bedrock import find_region
from forebay.providers.translators import can_answer, list_dialects

Found = tuple[KeyPath, str, str, Severity, bool]
DEFAULT: Final = "openai"
_ENDS_IN_V1: Final = frozenset({"openai", "openai-responses", "anthropic"})
#: How the paths of Google's addresses end, and an example.
_GOOGLE: Final = {
    "gemini": (r"/v1(beta|alpha)?$", "https://generativelanguage.googleapis.com/v1beta"),
    "vertex": (
        r"/v1(beta1)?/projects/[^/]+/locations/[^/]+/publishers/google$",
        "https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/publishers/google",
    ),
}
_AZURE: Final = "azure"
_BEDROCK: Final = "bedrock"
#: What a model answers too that answers chat, where its targets can be told.
_BESIDE_CHAT: Final = (Endpoint.MESSAGES, Endpoint.RESPONSES)


def complete_endpoints(listed: Iterable[Endpoint], dialects: Iterable[str]) -> tuple[Endpoint, ...]:
    """The endpoints of a model: those of the file, and those that follow from them.

    Args:
        dialects: of its targets.
    """
    endpoints = list(dict.fromkeys(listed))
    known = set(dialects)
    if Endpoint.CHAT in endpoints:
        endpoints += [
            each
            for each in _BESIDE_CHAT
            if each not in endpoints and any(can_answer(dialect, each) for dialect in known)
        ]
    if Endpoint.MESSAGES in endpoints and Endpoint.COUNT_TOKENS not in endpoints:
        endpoints.append(Endpoint.COUNT_TOKENS)
    return tuple(endpoints)


def list_addresses(
    path: KeyPath, target: Mapping[str, Any], pools: Mapping[str, Any]
) -> list[tuple[KeyPath, object]]:
    """The addresses of a target, or of the pool that it names, with their places in the file."""
    if "url" in target:
        return [((*path, "url"), target["url"])]
    name = target.get("pool")
    pool = pools.get(name) if isinstance(name, str) and "engine" not in target else None
    replicas = pool.get("replicas") if isinstance(pool, Mapping) else None
    listed = replicas if isinstance(replicas, list) else ()
    return [(("pools", str(name), "replicas", index), url) for index, url in enumerate(listed)]


def check_dialect(
    path: KeyPath, target: Mapping[str, Any], endpoints: object, pools: Mapping[str, Any]
) -> Iterator[Found]:
    """What a target can't be asked, and what has no meaning at it.

    Args:
        endpoints: of its model, as the file has them.
        pools: of the file.
    """
    dialect = target.get("dialect", DEFAULT)
    if not isinstance(dialect, str) or dialect not in list_dialects():
        return
    if "engine" in target and dialect != DEFAULT:
        message = f"engines on this machine speak `{DEFAULT}`"
        yield (*path, "dialect"), message, "remove it", Severity.ERROR, False
    yield from _check_forced(path, target, dialect, pools)
    addresses = list_addresses(path, target, pools)
    if not addresses:
        return
    place = "url" if "url" in target else "pool"
    known = {each.value for each in Endpoint}
    for endpoint in endpoints if isinstance(endpoints, list) else ():
        if isinstance(endpoint, str) and endpoint in known and not can_answer(dialect, Endpoint(endpoint)):
            yield (
                (*path, "dialect" if "dialect" in target else place),
                f"targets that speak `{dialect}` can't answer `{endpoint}`",
                "take it out of the model's `endpoints`, or make another model of these targets",
                Severity.ERROR,
                False,
            )
    region = target.get("region")
    if region is None and "url" not in target:
        region = pools[target["pool"]].get("region")
    region_path = (*path, "region") if "region" in target else None
    for url_path, url in addresses:
        yield from _check_url(url_path, url, dialect)
        if dialect == _BEDROCK:
            yield from _check_region(region_path or url_path, url, region)


def _check_forced(
    path: KeyPath, target: Mapping[str, Any], dialect: str, pools: Mapping[str, Any]
) -> Iterator[Found]:
    """A forced call is met here only on the way to a server of OpenAI's chat."""
    name = target.get("pool")
    pool = pools.get(name) if isinstance(name, str) else None
    said = target.get("forced_tools")
    where: KeyPath = (*path, "forced_tools")
    if said is None and isinstance(pool, Mapping):
        said, where = pool.get("forced_tools"), ("pools", str(name), "forced_tools")
    if said in (ForcedCalls.SCHEMA, ForcedCalls.REFUSE) and dialect != DEFAULT:
        message = f"`{said}` is not for targets that speak `{dialect}`: their servers meet a forced call"
        hint = f"say native, or leave it out; only a target with `dialect: {DEFAULT}` may say it"
        yield where, message, hint, Severity.ERROR, False


def _check_url(path: KeyPath, url: object, dialect: str) -> Iterator[Found]:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
    except ValueError:
        return
    if parts.hostname and dialect in _ENDS_IN_V1 and not parts.path.rstrip("/").endswith("/v1"):
        tail = "/messages" if dialect == "anthropic" else "/chat/completions"
        yield (
            path,
            "does not end in /v1",
            f"paths like {tail} are added to it as it is",
            Severity.WARNING,
            False,
        )
    if parts.hostname and dialect in _GOOGLE:
        ending, example = _GOOGLE[dialect]
        if re.search(ending, parts.path.rstrip("/")) is None:
            yield (
                path,
                "does not end as Google's addresses do",
                f"/models/… is added to it as it is; such as {example}",
                Severity.WARNING,
                False,
            )
    if parts.query and dialect != _AZURE:
        yield (
            path,
            f"a target that speaks `{dialect}` has no query in its address",
            "remove it; only addresses of the dialect `azure` may end in ?api-version=…",
            Severity.ERROR,
            False,
        )


def _check_region(path: KeyPath, url: object, region: object) -> Iterator[Found]:
    try:
        host = urlsplit(url if isinstance(url, str) else "").hostname
    except ValueError:
        return
    if not host:
        return
    try:
        find_region(host, region if isinstance(region, str) else "")
    except UpstreamCredentials:
        yield (
            path,
            "does not say the AWS region, without which requests to Bedrock can't be signed",
            "take an address such as https://bedrock-runtime.eu-central-1.amazonaws.com, or set `region` to "
            "AWS's name of one; a Bedrock API key needs none",
            Severity.WARNING,
            False,
        )
