"""Asks an identity provider for a document: one GET, bounded in time and size.

Blocks, so it is called in a thread.  Follows no redirect, sends no credential, reads no proxy variable.
"""

import http.client
import io
import socket
import ssl
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

DOCUMENT_MAX_BYTES: Final = 256 * 1024
_BLOCK_BYTES: Final = 32 * 1024


class FetchFailed(Exception):
    """Nothing usable came.  The text says from where, and why."""


def fetch_document(url: str, tls_ca: Path | None, timeout_s: float) -> bytes:
    """What is at the address.

    Args:
        url: http or https.
        tls_ca: authorities to trust instead of the system's.
        timeout_s: for all of it, however slowly bytes drip; only a host of several addresses that give no
            sign of life may take as long for each.

    Raises:
        FetchFailed
    """
    try:
        connection = _connect(url, tls_ca, timeout_s)
    except (OSError, ValueError) as error:
        raise FetchFailed(f"{tls_ca or url} can't be used: {error}") from None
    try:
        connection.request("GET", _find_target(url), headers={"accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise FetchFailed(f"{url} answered {response.status}")
        return _read(response, url)
    except TimeoutError:
        raise FetchFailed(f"{url} did not answer within {timeout_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise FetchFailed(f"{url}: its certificate is not to be trusted: {error.verify_message}") from None
    except OSError as error:
        raise FetchFailed(f"{url} can't be reached: {error.strerror or error}") from None
    except (http.client.HTTPException, ValueError):
        raise FetchFailed(f"{url} does not speak HTTP, or broke off") from None
    finally:
        connection.close()


def _find_target(url: str) -> str:
    """What stands in the request's first line: some providers tell their sets of keys apart by the query."""
    parts = urlsplit(url)
    return urlunsplit(("", "", parts.path or "/", parts.query, ""))


def _connect(url: str, tls_ca: Path | None, timeout_s: float) -> http.client.HTTPConnection:
    """Connects only when it is asked something.  Raises OSError, ValueError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=tls_ca)
        connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
    deadline_s = time.monotonic() + timeout_s

    def respond(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(_Reading(sock, deadline_s), *args, **options)  # type: ignore[arg-type]

    connection.response_class = respond  # type: ignore[assignment]
    return connection


class _Reading(io.RawIOBase):
    """Reads a socket until a deadline: its own timeout begins anew with each byte that drips in."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open when its connection is closed
        self._deadline_s = deadline_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        """All that `HTTPResponse` asks of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer) or 0

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    """Raises FetchFailed, OSError, HTTPException."""
    parts: list[bytes] = []
    size = 0
    while block := response.read1(_BLOCK_BYTES):
        parts.append(block)
        size += len(block)
        if size > DOCUMENT_MAX_BYTES:
            raise FetchFailed(f"{url} gives more than {DOCUMENT_MAX_BYTES} bytes")
    return b"".join(parts)
