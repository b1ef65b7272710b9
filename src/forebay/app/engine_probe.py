"""Asks a replica how it is and what load it has, and has it answer warm-up requests.

Everything is bounded: the time of a look and of a request, the bytes of an answer, the connections to a
replica, and the threads that look names up, whose waits nobody can end.  Nothing here decides what an answer
means for routing, and it never raises for what a replica or the network does: what was seen is the answer.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from forebay.app.config_engines import join_root
from forebay.app.secret_refs import read_secret
from forebay.app.watched import Place, Replica
from forebay.core.clock import Clock
from forebay.core.errors import ConnectFailed, ForebayError, StaleConnection
from forebay.core.routes import Endpoint, Target
from forebay.engines.facts import FACT_PATHS, MODEL_LIST, OF_MODEL, ModelFacts, read_facts
from forebay.engines.load_health import Health, judge_health
from forebay.engines.load_names import EngineKind
from forebay.engines.load_page import LoadPage, Reading, read_adapters, read_slots
from forebay.gateway.compiling import find_proxy
from forebay.net.client import Address, Client, Origin, parse_address
from forebay.net.dialing import is_numeric
from forebay.net.turn import Turn
from forebay.version import __version__

LOOK_S: Final = 2.0  #: for one look, from connecting to the last byte
CONNECT_S: Final = 1.0
PAGE_MAX_BYTES: Final = 1 << 20
ANSWER_MAX_BYTES: Final = 4 << 20  #: of a warm-up request
CONNECTIONS_MAX: Final = 4  #: to one replica
THREADS_MAX: Final = 8  #: for names, files and certificates
ERROR_SHOWN_CHARS: Final = 160

FACTS_S: Final = 1.0  #: of a look, for all that it says beside its load
MODELS_ASKED_MAX: Final = 16  #: of one replica, what each is
BUSY: Final = frozenset({503, 529})

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look has found.

    Attributes:
        answered: whether it answered at all, whatever it said.
        refused: whether nothing listens there.
        readings: by the model's name, of all its places; empty where it has no page.
        adapters: in its list of models; None where it was not asked.
        facts: what it says of its models, by their names; None where it was not asked.
        error: why there is no reading; empty where there is one.
    """

    answered: bool = False
    refused: bool = False
    health: Health = Health.SILENT
    readings: dict[str, Reading] | None = None
    adapters: tuple[str, ...] | None = None
    facts: dict[str, ModelFacts] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Generated:
    """How a generation has ended: well where there is no error.

    Attributes:
        is_opinion: whether the error says that the engine does not generate; not so where it may be busy,
            away, or ask for another key or name.
    """

    error: str = ""
    is_opinion: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes


class EngineProbe:
    """See the module.  For one event loop; the first look makes the client."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client: Client | None = None
        self._threads = ThreadPoolExecutor(THREADS_MAX, "engines")
        self._calls: dict[str, asyncio.Future[Any]] = {}

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def look(self, replica: Replica, *, with_models: bool = False) -> Looked:
        """One look at a replica.

        Args:
            with_models: whether its list of models is read too, for adapters.
        """
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._look(replica, with_models)
        except TimeoutError:
            return Looked(error=f"no answer within {LOOK_S:g} s")
        except ConnectFailed as error:
            return Looked(refused=True, error=error.message)
        except ForebayError as error:
            return Looked(error=error.message)
        except (OSError, LookupError, ValueError) as error:
            return Looked(error=str(error))

    async def _look(self, replica: Replica, with_models: bool) -> Looked:
        health = Health.SILENT
        if replica.health_url is not None:
            answer = await self._get(replica, replica.health_url)
            health = judge_health(answer.status, answer.body)
            if health in (Health.LOADING, Health.FAILED):
                words = f"its health address answered {answer.status}"
                return Looked(answered=True, health=health, error=words)
        readings, error = await self._read_load(replica)
        adapters = facts = None
        if with_models and replica.kind is not None:
            facts, adapters = await self._read_facts(replica, replica.kind)
        return Looked(
            answered=True, health=health, readings=readings, adapters=adapters, facts=facts, error=error
        )

    async def _read_facts(
        self, replica: Replica, kind: EngineKind
    ) -> tuple[dict[str, ModelFacts] | None, tuple[str, ...] | None]:
        """What it says of its models, and its adapters; None where it was silent, which costs no look."""
        pages: dict[str, bytes] = {}
        found: dict[str, ModelFacts] = {}
        with suppress(TimeoutError, ForebayError, OSError, LookupError, ValueError):
            async with asyncio.timeout(FACTS_S):
                for place in replica.places[:MODELS_ASKED_MAX]:
                    await self._add_pages(replica, FACT_PATHS[kind], place.model, pages)
                    facts = read_facts(kind, place.model, pages)
                    if facts is not None:
                        found[place.model] = facts
        listed = pages.get(MODEL_LIST) if replica.lists_models else None
        return found or None, None if listed is None else read_adapters(listed)

    async def _add_pages(
        self, replica: Replica, paths: Iterable[str], model: str, pages: dict[str, bytes]
    ) -> None:
        for path in paths:
            if path in pages and OF_MODEL not in path:
                continue
            pages.pop(path, None)
            told = path.replace(OF_MODEL, quote(model, safe=""))
            url = f"{replica.url}/models" if path == MODEL_LIST else join_root(replica.url, told)
            answer = await self._get(replica, url)
            if answer.status == 200:
                pages[path] = answer.body

    async def _read_load(self, replica: Replica) -> tuple[dict[str, Reading], str]:
        """What it says of each of its places, and why not."""
        if replica.metrics_url is None:
            return {}, ""
        answer = await self._get(replica, replica.metrics_url)
        models = [place.model for place in replica.places]
        if answer.status == 200:
            page = LoadPage(answer.body.decode("utf-8", "replace"))
            readings = {model: page.read(model) for model in models}
            if any(not reading.is_empty for reading in readings.values()):
                return readings, ""
            return {}, f"{replica.metrics_url} says nothing of load that is known here"
        if replica.slots_url is not None:
            slots = await self._get(replica, replica.slots_url)
            reading = read_slots(slots.body) if slots.status == 200 else Reading()
            if not reading.is_empty:
                return dict.fromkeys(models, reading), ""
        return {}, f"{replica.metrics_url} answered {answer.status}"

    async def generate(
        self, replica: Replica, place: Place, prompt: str, timeout_s: float, output_tokens: int
    ) -> Generated:
        """Has a replica answer one prompt."""
        assert place.endpoint is not None
        body = _make_body(place.endpoint, place.model, prompt, output_tokens)
        url = f"{replica.url}/{place.endpoint.value}"
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._exchange(replica, url, "POST", body, ANSWER_MAX_BYTES)
        except TimeoutError:
            return Generated(f"no answer within {timeout_s:g} s", is_opinion=True)
        except ConnectFailed as error:
            return Generated(error.message)
        except ForebayError as error:
            return Generated(error.message, is_opinion=True)
        except (OSError, LookupError, ValueError) as error:
            return Generated(str(error))
        if answer.status == 200:
            if _is_answer(place.endpoint, answer.body):
                return Generated()
            return Generated("its answer is not what OpenAI's API answers", is_opinion=True)
        words = answer.body[: 4 * ERROR_SHOWN_CHARS].decode(errors="replace")
        words = "".join(each if each.isprintable() else " " for each in words)[:ERROR_SHOWN_CHARS].strip()
        is_opinion = answer.status >= 500 and answer.status not in BUSY
        return Generated(f"answered {answer.status}: {words}", is_opinion=is_opinion)

    async def _get(self, replica: Replica, url: str) -> _Answer:
        return await self._exchange(replica, url, "GET", b"", PAGE_MAX_BYTES)

    async def _exchange(self, replica: Replica, url: str, method: str, body: bytes, limit: int) -> _Answer:
        """Raises ForebayError, OSError, LookupError, ValueError."""
        address, path = await self._find_address(replica.target, url)
        origin = await self._find_origin(address)
        head = await self._make_head(replica.target, address, path, method, len(body))
        connection = await origin.acquire(CONNECT_S)
        try:
            connection.send(head, body, limit)
            content = await connection.all()
        except StaleConnection:
            connection.abort()
            connection = await origin.connect(CONNECT_S)
            connection.send(head, body, limit)
            content = await connection.all()
        finally:
            connection.release()  # which closes what is not complete
        return _Answer(connection.status, content)

    async def _find_address(self, target: Target, url: str) -> tuple[Address, str]:
        """Raises LookupError, ValueError."""
        proxy = None
        if target.proxy is not None:
            key = f"proxy {target.proxy} {target.proxy_credentials}"
            proxy = await self._call(key, find_proxy, target, read_secret)
        return parse_address(url, target.tls_ca, target.tls_cert, target.tls_key, proxy)

    async def _find_origin(self, address: Address) -> Origin:
        """Looks a name up first, in threads of our own: the loop's own few serve the whole process."""
        if self._client is None:
            loop = asyncio.get_running_loop()
            self._client = Client(loop, Turn(loop, self._clock.monotonic_ns))
        if address.proxy is None and not is_numeric(address.host):
            await self._call(f"host {address.host}", _find_host, address.host, address.port)
        if address.scheme == "https":  # the system's certificates take many milliseconds to load
            return await self._call(f"tls {address}", self._client.origin, address, CONNECTIONS_MAX)
        return self._client.origin(address, CONNECTIONS_MAX)

    async def _make_head(
        self, target: Target, address: Address, path: str, method: str, length: int
    ) -> bytes:
        lines = [
            f"{method} {path or '/'} HTTP/1.1",
            f"host: {address.authority}",
            f"user-agent: forebay/{__version__}",
            "accept: */*",
        ]
        own, _ = parse_address(target.url)
        is_own = (address.scheme, address.host, address.port) == (own.scheme, own.host, own.port)
        if target.api_key is not None and is_own:  # its key is for nobody else
            secret = await self._call(target.api_key, read_secret, target.api_key)
            lines.append(f"authorization: Bearer {secret}")
        if method == "POST":
            lines += ["content-type: application/json", f"content-length: {length}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")

    async def _call(self, key: str, function: Callable[..., Result], *arguments: object) -> Result:
        """In a thread of ours; of each kind of call one at a time, so that none pile up behind one that
        hangs."""
        running = self._calls.get(key)
        if running is None or running.done():
            loop = asyncio.get_running_loop()
            running = self._calls[key] = loop.run_in_executor(self._threads, function, *arguments)
            running.add_done_callback(partial(self._forget, key))
        result: Result = await asyncio.shield(running)
        return result

    def _forget(self, key: str, call: asyncio.Future[Any]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        if not call.cancelled():
            call.exception()  # seen: whoever asked may have gone


def _find_host(host: str, port: int) -> None:
    """Raises LookupError."""
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or "not a name that can be looked up"
        raise LookupError(f"the host {host} can't be found: {words}") from None


def _make_body(endpoint: Endpoint, model: str, prompt: str, output_tokens: int) -> bytes:
    body: dict[str, object] = {"model": model}
    match endpoint:
        case Endpoint.CHAT:
            body |= {"messages": [{"role": "user", "content": prompt}], "max_tokens": output_tokens}
        case Endpoint.COMPLETIONS:
            body |= {"prompt": prompt, "max_tokens": output_tokens}
        case _:
            body |= {"input": prompt}
    return msgspec.json.encode(body)


class _Listed(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    data: list[msgspec.Raw] = []


def _is_answer(endpoint: Endpoint, body: bytes) -> bool:
    """Whether the model has answered, and not a page in front of it."""
    try:
        listed = msgspec.json.decode(body, type=_Listed)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return bool(listed.data if endpoint is Endpoint.EMBEDDINGS else listed.choices)
