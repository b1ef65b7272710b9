"""Asks an engine process whether it is up, and whether its model answers.

Plain asyncio, one connection for each question, every wait bounded.  Never starts or stops anything.
"""

import asyncio
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forebay.engines.model import LaunchPlan

HEALTH_TIMEOUT_S: Final = 2.0
GENERATION_TIMEOUT_S: Final = 30.0
ANSWER_MAX_BYTES: Final = 1024 * 1024


class Healthy(msgspec.Struct, frozen=True, kw_only=True):
    elapsed_s: float


class Unhealthy(msgspec.Struct, frozen=True, kw_only=True):
    elapsed_s: float
    reason: str  #: what was seen, for people


Health = Healthy | Unhealthy


async def probe_health(plan: LaunchPlan, *, timeout_s: float = HEALTH_TIMEOUT_S) -> Health:
    """Whether the engine takes requests now."""
    return await _probe("GET", plan.health_url, b"", timeout_s)


async def probe_generation(plan: LaunchPlan, *, timeout_s: float = GENERATION_TIMEOUT_S) -> Health:
    """Whether the model itself answers: with one token, or with one vector."""
    return await _probe("POST", plan.probe_url, plan.probe_body, timeout_s)


async def _probe(method: str, url: str, body: bytes, timeout_s: float) -> Health:
    now = asyncio.get_running_loop().time
    start = now()
    try:
        async with asyncio.timeout(timeout_s):
            status, answer = await _fetch(method, url, body)
    except TimeoutError:
        return Unhealthy(elapsed_s=now() - start, reason=f"{url} did not answer within {timeout_s:g} s")
    except OSError as error:
        return Unhealthy(elapsed_s=now() - start, reason=f"{url} can't be reached: {error.strerror or error}")
    except (ValueError, EOFError, asyncio.LimitOverrunError):
        return Unhealthy(elapsed_s=now() - start, reason=f"{url} does not speak HTTP, or broke off")
    if status != 200:
        said = answer[:200].decode(errors="replace")
        return Unhealthy(elapsed_s=now() - start, reason=f"{url} answered {status}: {said}")
    return Healthy(elapsed_s=now() - start)


async def _fetch(method: str, url: str, body: bytes) -> tuple[int, bytes]:
    """Status and body.  Raises OSError, ValueError, EOFError or LimitOverrunError."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=ANSWER_MAX_BYTES)
    try:
        writer.write(
            f"{method} {parts.path or '/'} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, *_ = head[0].split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(version)
        fields = dict(line.lower().split(":", 1) for line in head[1:] if ":" in line)
        length = min(int(fields.get("content-length", 0)), ANSWER_MAX_BYTES)
        return int(status), await reader.readexactly(length)
    finally:
        writer.close()
