"""One question to a server of this machine over plain HTTP, to see whether it is well.

Plain asyncio, one connection for each question, every wait and every size bounded.  It never raises for a
server that isn't: what was seen is the answer.
"""

import asyncio
from typing import Final
from urllib.parse import urlsplit

import msgspec

ANSWER_MAX_BYTES: Final = 1024 * 1024
PROBE_TIMEOUT_S: Final = 2.0


class Healthy(msgspec.Struct, frozen=True, kw_only=True):
    elapsed_s: float


class Unhealthy(msgspec.Struct, frozen=True, kw_only=True):
    elapsed_s: float
    reason: str  #: what was seen, for people


Health = Healthy | Unhealthy


async def probe(url: str, body: bytes | None = None, *, timeout_s: float = PROBE_TIMEOUT_S) -> Health:
    """Healthy if the answer is 200.

    Args:
        url: `http://HOST:PORT/PATH`.
        body: JSON to post; None asks with GET.
        timeout_s: for all of it, connection included.
    """
    now = asyncio.get_running_loop().time
    start = now()
    try:
        async with asyncio.timeout(timeout_s):
            status, answer = await _fetch(url, body)
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


async def _fetch(url: str, body: bytes | None) -> tuple[int, bytes]:
    """Status and body.  Raises OSError, ValueError, EOFError or LimitOverrunError."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=ANSWER_MAX_BYTES)
    try:
        method, content = ("GET", b"") if body is None else ("POST", body)
        writer.write(
            f"{method} {parts.path or '/'} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode()
            + content
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
