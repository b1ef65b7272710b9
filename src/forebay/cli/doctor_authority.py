"""Checks of the server over which machines share limits: whether it answers, and what it would forget."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from forebay.app.config import Config
from forebay.app.quota_opening import find_address
from forebay.cli.finding import Finding, Verdict

NAME: Final = "authority over limits"
_SEE: Final = "see limits.authority, and docs/limits.md"


def check_authority(config: Config) -> Iterator[Finding]:
    """Nothing where each machine has limits of its own."""
    if config.limits.authority is None:
        return
    # Whoever has no such server does not wait for its client.
    from forebay.app.redis_link import FAILURES, explain, fetch_info

    begun = time.monotonic()
    try:
        info = asyncio.run(fetch_info(find_address(config)))
    except FAILURES as error:
        yield Finding(name=NAME, verdict=Verdict.FAIL, message=explain(error), hint=_SEE)
        return
    yield from examine_info(info, (time.monotonic() - begun) * 1000)


def examine_info(info: Mapping[str, Any], elapsed_ms: float) -> Iterator[Finding]:
    """What a server says of itself, as `INFO` does."""
    version = info.get("valkey_version")
    name = f"Valkey {version}" if version else f"Redis {info.get('redis_version', '?')}"
    if info.get("role") != "master":
        message = f"{name} is a replica, which takes no writes"
        yield Finding(name=NAME, verdict=Verdict.FAIL, message=message, hint="name the primary's address")
        return
    message = f"{name} answers, in {elapsed_ms:.0f} ms"
    yield Finding(name=NAME, verdict=Verdict.OK, message=message)
    if info.get("maxmemory") and info.get("maxmemory_policy") != "noeviction":
        yield Finding(
            name=NAME,
            verdict=Verdict.WARN,
            message=f"it forgets limits when its memory is full ({info['maxmemory_policy']})",
            hint="set maxmemory-policy noeviction",
        )
    if not info.get("aof_enabled"):
        yield Finding(
            name=NAME,
            verdict=Verdict.WARN,
            message="it keeps nothing on disk: after a restart only the control planes know what was used",
            hint="set appendonly yes and appendfsync everysec",
        )
