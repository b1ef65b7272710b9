"""A server on 127.0.0.1 that does to each request exactly what a script says, and records what it saw.

It lives in the test's event loop; `threaded.ThreadedUpstream` runs one in a thread, so that it can serve
other processes while the test blocks.  It is for tests: what it records grows without bound.

    async with ScriptedUpstream(well_behaved("Hello")) as upstream:
        answer = await httpx.AsyncClient().post(upstream.url + "/chat/completions", json={...})
        assert upstream.requests[0].json()["model"] == "m"
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from forebay.testing.answers import json_answer
from forebay.testing.connection import ConnectionRules, ScriptedConnection
from forebay.testing.recorded import RecordedConnection, RecordedRequest
from forebay.testing.steps import Script

WAIT_MAX_S = 60.0  #: for what comes at once, but on a machine that is busy with something else

Answer = Script | Callable[[RecordedRequest], Script]
#: One answer for every request, or answers by `"POST /path"` or `"/path"`.
Handler = Answer | Mapping[str, Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """How an upstream behaves apart from its scripts."""

    port: int = 0  #: 0 picks a free one
    tls: ssl.SSLContext | None = None
    keep_alive_s: float | None = None  #: closes a connection that was idle for so long; None never does
    on_connect: Script | None = None  #: runs at once on each connection; no request is read then
    answer_at_head: bool = False  #: scripts start when the head has arrived, not when the body has
    answer_continue: bool = True  #: `Expect: 100-continue` gets its 100
    backlog: int = 1024


class ScriptedUpstream:
    """An asyncio server whose answers are scripts.

    Scripts that were enqueued are used up first, in the order in which requests arrive; then the handler is
    asked; without either, the answer is a 500 that says so.  An error raised by a handler is raised again
    when the context is left.
    """

    def __init__(self, handler: Handler | None = None, settings: UpstreamSettings | None = None) -> None:
        self.settings = settings or UpstreamSettings()
        self.requests: list[RecordedRequest] = []  #: in order of arrival, from their head on
        self.connections: list[RecordedConnection] = []
        self.port = 0
        self._handler = handler
        self._scripts: deque[Script] = deque()
        self._server: asyncio.Server | None = None
        self._live: dict[ScriptedConnection, asyncio.Task[None]] = {}
        self._errors: list[Exception] = []
        self._changed = asyncio.Event()

    # --- what a test says and asks --------------------------------------------------------------------------

    def enqueue(self, *scripts: Script) -> None:
        """Answer the next requests with these scripts, one each.  Any thread may call it."""
        self._scripts.extend(scripts)

    @property
    def origin(self) -> str:
        """`http://127.0.0.1:PORT`"""
        return f"{'https' if self.settings.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL of an OpenAI client or a target: the origin and `/v1`."""
        return self.origin + "/v1"

    @property
    def connections_open(self) -> int:
        return sum(connection.open for connection in self.connections)

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float = WAIT_MAX_S) -> None:
        """Return once the condition on the records holds; raises TimeoutError with them if it never does.

        await upstream.wait_until(lambda: upstream.connections_open == 0)
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not is_true():
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"not within {timeout_s} s; requests: {self.requests}; connections: {self.connections}"
            ) from None

    async def wait_requests(self, count: int, timeout_s: float = WAIT_MAX_S) -> None:
        """Return once so many requests have arrived with their whole bodies."""
        await self.wait_until(lambda: sum(r.complete for r in self.requests) >= count, timeout_s)

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen.  `async with` calls it."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._make_connection,
            "127.0.0.1",
            self.settings.port,
            ssl=self.settings.tls,
            backlog=self.settings.backlog,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Refuse new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Refuse new connections, drop those that are open, and raise what a handler raised."""
        self.stop_listening()
        live = dict(self._live)
        for connection, task in live.items():
            task.cancel()
            connection.abort()
        await asyncio.gather(*live.values(), return_exceptions=True)
        if live:
            await asyncio.wait([connection.ended for connection in live], timeout=1.0)
        if self._errors:
            raise self._errors[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- inside ---------------------------------------------------------------------------------------------

    def _make_connection(self) -> ScriptedConnection:
        settings = self.settings
        return ScriptedConnection(
            ConnectionRules(
                begin_connection=self._begin_connection,
                begin_request=self.requests.append,
                choose_script=self._choose_script,
                count_request=lambda: len(self.requests),
                changed=self._announce_change,
                on_connect=settings.on_connect,
                answer_at_head=settings.answer_at_head,
                answer_continue=settings.answer_continue,
                keep_alive_s=settings.keep_alive_s,
            )
        )

    def _begin_connection(self, connection: ScriptedConnection) -> RecordedConnection:
        loop = asyncio.get_running_loop()
        record = RecordedConnection(number=len(self.connections), opened_at_s=loop.time())
        self.connections.append(record)
        # The table owns the task: it ends with its connection, or with the upstream in `stop`.
        task = loop.create_task(connection.serve())
        self._live[connection] = task
        connection.ended.add_done_callback(lambda _: self._forget(connection))
        task.add_done_callback(lambda task: self._keep_error(connection, task))
        return record

    def _forget(self, connection: ScriptedConnection) -> None:
        task = self._live.pop(connection, None)
        if task is not None:
            task.cancel()

    def _keep_error(self, connection: ScriptedConnection, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._errors.append(error)
            connection.abort()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _choose_script(self, request: RecordedRequest) -> Script:
        if self._scripts:
            return self._scripts.popleft()
        answer: Answer | None
        if isinstance(self._handler, Mapping):
            answer = self._handler.get(f"{request.method} {request.path}") or self._handler.get(request.path)
        else:
            answer = self._handler
        if answer is None:
            return json_answer({"error": f"no script for {request.method} {request.path}"}, status=500)
        return answer(request) if callable(answer) else answer
