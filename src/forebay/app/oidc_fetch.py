"""Asks an identity provider for a document: one GET, bounded in time and size.

Blocks, so it is called in a thread.  Follows no redirect, sends no credential, reads no proxy variable.
"""

import http.client
import ssl
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

DOCUMENT_MAX_BYTES: Final = 256 * 1024
_BLOCK_BYTES: Final = 32 * 1024


class FetchFailed(Exception):
    """Nothing usable came.  The text says from where, and why."""


def fetch_document(url: str, tls_ca: Path | None, timeout_s: float) -> bytes:
    """What is at the address.

    Args:
        url: http or https.
        tls_ca: authorities to trust instead of the system's.
        timeout_s: for all of it, connection included.

    Raises:
        FetchFailed
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        connection = _connect(url, tls_ca, timeout_s)
    except (OSError, ValueError) as error:
        raise FetchFailed(f"{tls_ca or url} can't be used: {error}") from None
    try:
        parts = urlsplit(url)
        connection.request("GET", parts.path or "/", headers={"accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise FetchFailed(f"{url} answered {response.status}")
        return _read(response, url, deadline_s)
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


def _connect(url: str, tls_ca: Path | None, timeout_s: float) -> http.client.HTTPConnection:
    """Connects only when it is asked something.  Raises OSError, ValueError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=tls_ca)
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)


def _read(response: http.client.HTTPResponse, url: str, deadline_s: float) -> bytes:
    """Raises FetchFailed, OSError, HTTPException."""
    parts: list[bytes] = []
    size = 0
    while block := response.read1(_BLOCK_BYTES):
        parts.append(block)
        size += len(block)
        if size > DOCUMENT_MAX_BYTES:
            raise FetchFailed(f"{url} gives more than {DOCUMENT_MAX_BYTES} bytes")
        if time.monotonic() > deadline_s:
            raise TimeoutError
    return b"".join(parts)
