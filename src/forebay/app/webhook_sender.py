"""Sends one event to one webhook, signed, once, within a time; says what came back.

Only addresses of the configuration are ever called.  No redirect is followed, no answer's body is read beyond
its first bytes, and no secret is in any word of a result.
"""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from urllib.parse import urlsplit

from forebay.app.config_alerts import REFERENCES, WebhookConfig, check_webhook_url
from forebay.app.redaction import redactor
from forebay.app.secret_refs import read_secret
from forebay.app.webhook_signing import SECRET_PREFIX, decode_secret, sign
from forebay.core.clock import Clock
from forebay.core.errors import ConnectFailed, ConnectTimeout, ForebayError
from forebay.net.client import Client, parse_address
from forebay.net.connection import Connection
from forebay.net.turn import Turn
from forebay.version import __version__

TOTAL_S: Final = 10.0  #: for one try, from connecting to the answer's head
CONNECT_S: Final = 5.0
CONNECTIONS_MAX: Final = 8  #: to one webhook
THREADS_MAX: Final = 4  #: of one webhook
ANSWER_SHOWN_CHARS: Final = 200
PLACE_SECRET_CHARS_MIN: Final = 12  #: a shorter path is a word that stands in other texts, and guards nothing
ANSWER_MAX_BYTES: Final = 64 * 1024
RETRY_AFTER_MAX_S: Final = 3600.0

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a try.

    Attributes:
        status: of the answer; None where there was none.
        error: why it did not arrive; empty if it did.
        answer: the first words of the answer.
        retry_after_s: what the receiver asks for; 0 where it says nothing.
    """

    status: int | None = None
    error: str = ""
    answer: str = ""
    duration_s: float = 0.0
    retry_after_s: float = 0.0


class WebhookSender:
    """See the module.  For one event loop; the first try makes the client."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client: Client | None = None
        # Each webhook has threads of its own for files and names, whose waits nobody can end: a name server
        # or a file system that hangs holds up no other webhook, and nothing else in this process.
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def send(self, webhook: WebhookConfig, message_id: str, body: bytes) -> Sent:
        """Never raises for what the receiver or the network does."""
        began_ns = self._clock.monotonic_ns()
        is_secret = webhook.url.startswith(("env:", "file:"))  # no part of the address is shown then
        try:
            async with asyncio.timeout(TOTAL_S):
                url, key = await self._call(webhook, _resolve, webhook)
                await self._call(webhook, _find_host, url, is_secret)
            sent = await self._exchange(webhook, url, self._make_head(url, key, message_id, body), body)
        except LookupError as error:
            sent = Sent(error=str(error))
        except TimeoutError:
            sent = Sent(error=f"its host or a file was not found within {TOTAL_S:g} s")
        except (ConnectFailed, ConnectTimeout) as error:
            sent = Sent(error="the receiver can't be reached" if is_secret else error.message)
        except ForebayError:
            sent = Sent(error="the connection broke before there was an answer, or it was not HTTP")
        except OSError as error:
            sent = Sent(error=f"the authorities of tls_ca can't be read: {error}")
        return replace(sent, duration_s=(self._clock.monotonic_ns() - began_ns) / 1e9)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    async def _call(
        self, webhook: WebhookConfig, function: Callable[..., Result], *arguments: object
    ) -> Result:
        """In a thread of the webhook's own."""
        threads = self._threads.get(webhook.url)
        if threads is None:
            threads = self._threads[webhook.url] = ThreadPoolExecutor(THREADS_MAX, "webhook")
        return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)

    def _make_head(self, url: str, key: bytes, message_id: str, body: bytes) -> bytes:
        address, _ = parse_address(url)
        parts = urlsplit(url)
        place = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        now_s = self._clock.wall_ns() // 10**9
        lines = (
            f"POST {place} HTTP/1.1",
            f"host: {address.authority}",
            f"user-agent: forebay/{__version__}",
            "content-type: application/cloudevents+json; charset=utf-8",
            f"content-length: {len(body)}",
            f"webhook-id: {message_id}",
            f"webhook-timestamp: {now_s}",
            f"webhook-signature: {sign(key, message_id, now_s, body)}",
            "connection: close",
        )
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def _exchange(self, webhook: WebhookConfig, url: str, head: bytes, body: bytes) -> Sent:
        address, _ = parse_address(url, None if webhook.tls_ca is None else str(webhook.tls_ca))
        client = self._open_client()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(TOTAL_S):
                # In a thread: the system's certificates take many milliseconds to load.
                origin = await self._call(webhook, client.origin, address, CONNECTIONS_MAX, webhook.url)
                connection = await origin.connect(CONNECT_S)
                connection.send(head, body, ANSWER_MAX_BYTES)
                return _judge(connection, await connection.some())
        except TimeoutError:
            if connection is not None and connection.status:
                return _judge(connection, b"")  # it has answered, and does not come to an end
            return Sent(error=f"no answer within {TOTAL_S:g} s")
        finally:
            if connection is not None:
                connection.abort()  # one try is one connection: none is stale, none is kept

    def _open_client(self) -> Client:
        if self._client is None:
            loop = asyncio.get_running_loop()
            self._client = Client(loop, Turn(loop, self._clock.monotonic_ns))
        return self._client


def _resolve(webhook: WebhookConfig) -> tuple[str, bytes]:
    """Address and key.  Raises LookupError, in whose words no secret is."""
    url = webhook.url
    try:
        if url.startswith(REFERENCES):
            url = check_webhook_url(read_secret(url))
            _keep_place_from_logs(url)
    except (LookupError, ValueError) as error:
        raise LookupError(f"its address can't be had: {error}") from None
    try:
        secret = read_secret(webhook.secret)
        redactor.learn(secret.removeprefix(SECRET_PREFIX))
        return url, decode_secret(secret)
    except (LookupError, ValueError) as error:
        raise LookupError(f"its secret can't be had: {error}") from None


def _keep_place_from_logs(url: str) -> None:
    """A receiver may repeat a secret address without its host, as pages that say "not found" do."""
    parts = urlsplit(url)
    for place in (parts.path.strip("/"), parts.query):
        if len(place) >= PLACE_SECRET_CHARS_MIN:
            redactor.learn(place)


def _find_host(url: str, is_secret: bool) -> None:
    """Looks the host up once, so that the client's own look finds it.  Raises LookupError."""
    address, _ = parse_address(url)
    try:
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or "not a name that can be looked up"
        name = "its host" if is_secret else f"the host {address.host}"
        raise LookupError(f"{name} can't be found: {words}") from None


def _judge(connection: Connection, data: bytes) -> Sent:
    status = connection.status
    text = data[: 4 * ANSWER_SHOWN_CHARS].decode(errors="replace")
    answer = redactor.redact("".join(each if each.isprintable() else " " for each in text).strip())
    answer = answer[:ANSWER_SHOWN_CHARS]
    if 200 <= status < 300:
        return Sent(status=status, answer=answer)
    if 300 <= status < 400:
        error = f"answered {status}: redirects are not followed"
    else:
        error = f"answered {status}" + (f": {answer}" if answer else "")
    return Sent(status=status, error=error, answer=answer, retry_after_s=_read_retry_after(connection))


def _read_retry_after(connection: Connection) -> float:
    value = connection.header(b"retry-after")
    return min(float(value), RETRY_AFTER_MAX_S) if value.isdigit() and len(value) < 10 else 0.0
