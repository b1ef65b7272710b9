"""A small client of the gateway for people: blocking, one request at a time, the answer as it comes.

Built on the standard library, because the gateway's own client is asynchronous and meant for many.  It reads
no configuration and prints nothing; every failure is a `Failure` with words for the person at the keyboard.
"""

import http.client
import socket
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from forebay.app.chat_answer import AnswerBroken, ChatAnswer, Piece, read_refusal
from forebay.app.clock import SystemClock
from forebay.app.config_checks import is_loopback
from forebay.cli.terminal import Failure

CONNECT_AND_IDLE_S: Final = 600.0
REST_S: Final = 1.0  #: for the end of the body, once the answer is whole
ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class Unreachable(Failure):
    """Nobody answers at the address."""


class Refused(Failure):
    """The gateway answered with an error."""

    def __init__(self, message: str, http_status: int, error_code: str) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.error_code = error_code


class Broken(Failure):
    """The answer ended before its end, or is none that the API allows."""


class _ModelEntry(msgspec.Struct, kw_only=True):
    id: str


class _ModelList(msgspec.Struct, kw_only=True):
    data: list[_ModelEntry]


class GatewayClient:
    """One gateway and one key.

    Args:
        url: the gateway's address, with or without `/v1` at its end.
        key: sent as a bearer token; None sends none.

    Raises:
        Failure: for an address that is none.
    """

    def __init__(self, url: str, key: str | None) -> None:
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            raise Failure(
                f"{url} is not an address", hint="it should look like http://127.0.0.1:8080"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(f"{url} is not an address", hint="it should look like http://127.0.0.1:8080")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise Failure("the key holds characters that no key has", hint="was it copied whole?")
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url = url

    def fetch_models(self) -> tuple[str, ...]:
        """The public names that the key may call."""
        with self._exchange("GET", "/models") as (answer, _):
            body = answer.read(ANSWER_MAX_BYTES)
        try:
            return tuple(entry.id for entry in msgspec.json.decode(body, type=_ModelList).data)
        except msgspec.DecodeError:
            raise Broken(f"{self.url} does not answer like a gateway", hint="is the address right?") from None

    def stream_chat(self, request: Mapping[str, Any]) -> Generator[Piece, None, None]:
        """Asks for a chat completion and yields it as it comes.  Closing the iterator ends the request."""
        whole = {**request, "stream": True, "stream_options": {"include_usage": True}}
        try:
            body = msgspec.json.encode(whole)
        except UnicodeEncodeError:
            raise Failure("the message is not UTF-8 text", hint="check its encoding") from None
        with self._exchange("POST", "/chat/completions", body) as (answer, wire):
            chat = ChatAnswer()
            try:
                while not chat.is_whole and (block := answer.read1(_READ_BYTES)):
                    yield from chat.feed(block)
                yield from chat.finish()
                _take_rest(answer, wire)
            except AnswerBroken as error:
                raise Broken(error.message) from None

    def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The whole answer to a call, of at most ANSWER_MAX_BYTES."""
        with self._exchange(method, path, body) as (answer, _):
            return answer.read(ANSWER_MAX_BYTES)

    def send_form(self, path: str, body: Iterable[bytes], size: int, boundary: str) -> bytes:
        """The answer to a form, which is sent while it is read; `size` is all of it."""
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(size),
        }
        with self._exchange("POST", path, body, headers) as (answer, _):
            return answer.read(ANSWER_MAX_BYTES)

    def stream(self, path: str) -> Generator[bytes, None, None]:
        """The answer to a GET, piece by piece."""
        with self._exchange("GET", path) as (answer, _):
            while block := answer.read(_READ_BYTES):
                yield block

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[http.client.HTTPResponse, socket.socket]]:
        """An answer with status 200, and the socket that it comes over."""
        connection = self._connect()
        try:
            json_type = {"content-type": "application/json"} if isinstance(body, bytes) else {}
            headers = {**self._headers, **json_type, **(more or {})}
            try:
                connection.request(method, self._path + path, body=body, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it was refused before all of it had been sent: the answer says why
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from None
            wire = connection.sock  # which an answer that is the connection's last takes over
            assert isinstance(wire, socket.socket)
            try:
                answer = connection.getresponse()
                if answer.status != 200:
                    raise _read_refusal(answer)
                yield answer, wire
            except TimeoutError:
                raise Broken(f"no byte came for {CONNECT_AND_IDLE_S:.0f} s") from None
            except (http.client.HTTPException, OSError) as error:
                raise Broken(f"the answer broke off: {_name_end(error)}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_AND_IDLE_S, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_AND_IDLE_S)

    def _unreachable(self, error: Exception) -> Unreachable:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLCertVerificationError):
            plain = f"http://{self.url.partition('://')[2]}"
            return Unreachable(f"{self.url} does not speak https: {_name(error)}", hint=f"try --url {plain}")
        if isinstance(error, ssl.SSLError):
            return Unreachable(f"the certificate of {self.url} is not to be trusted: {_name(error)}")
        hint = (
            "start it with `forebay up`" if is_loopback(self._host) else "check the address, and that it runs"
        )
        return Unreachable(f"nothing answers at {self.url}: {_name(error)}", hint=hint)


def _take_rest(answer: http.client.HTTPResponse, wire: socket.socket) -> None:
    """Reads to the end of the body: to whoever counts, a caller that closes before it has left."""
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(REST_S * 1e9)
    with suppress(OSError, http.client.HTTPException):  # the answer itself is here
        while (left_ns := deadline_ns - clock.monotonic_ns()) > 0:
            wire.settimeout(left_ns / 1e9)
            if not answer.read1(_READ_BYTES):
                return


def _read_refusal(answer: http.client.HTTPResponse) -> Refused:
    reason = read_refusal(answer.status, answer.read(ANSWER_MAX_BYTES), answer.reason)
    return Refused(reason.message, answer.status, str(reason.code or ""))


def _name_end(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead | ConnectionError):
        return "the gateway closed the connection"
    return _name(error)


def _name(error: Exception) -> str:
    """Words for an error whose own are often empty."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__
