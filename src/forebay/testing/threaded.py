"""A scripted upstream for tests that block or drive whole processes, and addresses that fail to connect."""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from forebay.testing.recorded import RecordedConnection, RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.upstream import WAIT_MAX_S, Handler, ScriptedUpstream, UpstreamSettings

Result = TypeVar("Result")
_kept: list[socket.socket] = []
#: One for each port that this process has been given; whoever looks for one sees them.
_given: list[socket.socket] = []


class ThreadedUpstream:
    """A `ScriptedUpstream` in a thread with an event loop of its own.

    with ThreadedUpstream(well_behaved("Hello")) as upstream:
        subprocess.run(["curl", upstream.url + "/models"], check=True)
        upstream.wait_requests(1)

    Handlers run in that thread.  The records may be read from any thread.
    """

    def __init__(self, handler: Handler | None = None, settings: UpstreamSettings | None = None) -> None:
        self._handler = handler
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-upstream", daemon=True)
        self._upstream: ScriptedUpstream

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._upstream = self._call(self._start())
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self._upstream.stop())
        finally:
            self._end_thread()

    @property
    def requests(self) -> list[RecordedRequest]:
        return self._upstream.requests

    @property
    def connections(self) -> list[RecordedConnection]:
        return self._upstream.connections

    @property
    def connections_open(self) -> int:
        return self._upstream.connections_open

    @property
    def port(self) -> int:
        return self._upstream.port

    @property
    def origin(self) -> str:
        return self._upstream.origin

    @property
    def url(self) -> str:
        return self._upstream.url

    def enqueue(self, *scripts: Script) -> None:
        """See `ScriptedUpstream.enqueue`."""
        self._upstream.enqueue(*scripts)

    def stop_listening(self) -> None:
        """See `ScriptedUpstream.stop_listening`."""
        self._call(self._stop_listening())

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float = WAIT_MAX_S) -> None:
        """See `ScriptedUpstream.wait_until`; the condition is asked in the upstream's thread."""
        self._call(self._upstream.wait_until(is_true, timeout_s))

    def wait_requests(self, count: int, timeout_s: float = WAIT_MAX_S) -> None:
        """See `ScriptedUpstream.wait_requests`."""
        self._call(self._upstream.wait_requests(count, timeout_s))

    async def _start(self) -> ScriptedUpstream:
        upstream = ScriptedUpstream(self._handler, self._settings)
        await upstream.start()
        return upstream

    async def _stop_listening(self) -> None:
        self._upstream.stop_listening()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blackhole:
    """An address where a connect never ends: a listener whose queue is full, so that Linux drops each SYN.

    with Blackhole() as hole:
        with pytest.raises(ConnectTimeout):
            await client.send(request_to(f"http://127.0.0.1:{hole.port}/v1"))
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.port = 0

    def __enter__(self) -> Self:
        listener = socket.socket()
        self._sockets.append(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        self.port = listener.getsockname()[1]
        for _ in range(4):  # the queue holds one more than it says; the rest are for good measure
            filler = socket.socket()
            self._sockets.append(filler)
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in self._sockets:
            sock.close()


def find_closed_port(*, keep: bool = False) -> int:
    """A port of 127.0.0.1 where nobody listens, so that a connect is refused; also one to listen at later on.

    It is none of those that the kernel gives to whoever asks for any and to connections that go out, and
    nobody else who asks here is given it, in this process or beside it, while this one lives.

    Args:
        keep: nobody can listen there until this process ends, so that a connect is refused for as long.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(low // 2, low)
        claim, sock = socket.socket(socket.AF_UNIX), socket.socket()
        try:
            claim.bind(f"\0forebay-closed-port-{port}")  # in no folder, and gone with the process
            sock.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            sock.close()
            continue
        _given.append(claim)
        if keep:
            _kept.append(sock)  # bound, and not listening
        else:
            sock.close()
        return port
    raise RuntimeError(f"no port below {low} is free")
