"""Checks of the server over which machines share limits: whether it answers, and what it would forget."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from forebay.app.config import Config
from forebay.app.config_running import load_live_state
from forebay.app.quota_opening import find_address
from forebay.cli.finding import Finding, Verdict
from forebay.cli.fleet import fetch_fleet
from forebay.cli.terminal import Failure

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


def check_sharing(config: Config) -> Iterator[Finding]:
    """Whether the Forebay that runs here shares what its workers know of loads with other machines."""
    if config.limits.authority is None or load_live_state(config.state_path) is None:
        return
    name = "loads of other machines"
    try:
        found = fetch_fleet(config).sharing
    except Failure as error:
        yield Finding(name=name, verdict=Verdict.WARN, message=str(error), hint="see control.log")
        return
    if found is None:
        message = "they are not shared: Forebay runs as it was before limits.authority was set"
        yield Finding(name=name, verdict=Verdict.WARN, message=message, hint="start `forebay up` anew")
    elif not found.connected:
        hint = "its user needs the commands and the channel that docs/limits.md names"
        yield Finding(name=name, verdict=Verdict.FAIL, message=str(found.trouble), hint=hint)
    else:
        names = ", ".join(sorted(machine.name for machine in found.machines))
        message = f"shared with {names}" if names else "shared, and no other machine is heard"
        yield Finding(name=name, verdict=Verdict.OK, message=message)
