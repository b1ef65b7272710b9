"""Whatever callers and targets do, in whatever order: each answer reaches its own request, nothing leaks."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from upstream_rig import FACTORIES, Peer, Wire, read_some, start, stop_sweeping, turn

from forebay.core.errors import ConnectionsExhausted, TargetError
from forebay.net.client import IDLE_MAX_S, Client, parse_address
from forebay.net.connection import Connection
from forebay.net.turn import Turn

CONNECTIONS_MAX = 3
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Use:
    """One caller's hold on a connection."""

    connection: Connection
    wire: Wire
    name: str = ""  #: of the request, once it is sent
    does: str = ""  #: what the target did with it: `answers`, `breaks`, `closes`, or nothing yet


def build_answer(name: str, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(name), extra, name.encode())


class ClientMachine(RuleBasedStateMachine):
    @initialize(loop_name=st.sampled_from(list(FACTORIES)))
    def open(self, loop_name: str) -> None:
        self.loop = FACTORIES[loop_name]()
        self.peer = Peer()
        self.wires: dict[int, Wire] = {}  #: by the client's port
        self.client = self.run(self.make_client())
        address, _ = parse_address(f"http://127.0.0.1:{self.peer.port}")
        self.origin = self.client.origin(address, CONNECTIONS_MAX)
        self.now = self.loop.time()
        self.uses: list[Use] = []
        self.asked = 0
        self.received: list[str] = []
        stop_sweeping(self.client)

    async def make_client(self) -> Client:
        loop = asyncio.get_running_loop()
        return Client(loop, Turn(loop, time.monotonic_ns))

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 5))

    def find_wire(self, connection: Connection) -> Wire:
        for wire in self.peer.accept_waiting():
            self.wires[wire.sock.getpeername()[1]] = wire
        return self.wires[connection._transport.get_extra_info("sockname")[1]]

    def pick(self, data: st.DataObject, *stages: str) -> Use | None:
        found = [use for use in self.uses if self.stage(use) in stages]
        return data.draw(st.sampled_from(found)) if found else None

    def stage(self, use: Use) -> str:
        return use.does or ("asked" if use.name else "held")

    # --- callers --------------------------------------------------------------------------------------------

    @rule()
    def acquire(self) -> None:
        full = self.origin.open_connections - self.origin.idle_connections >= CONNECTIONS_MAX
        try:
            connection = self.run(self.origin.acquire(5))
        except ConnectionsExhausted:
            assert full
            return
        assert not full
        assert all(use.connection is not connection for use in self.uses)
        self.uses.append(Use(connection, self.find_wire(connection)))

    @rule(data=st.data(), size=st.sampled_from([2, 30_000]))
    def send(self, data: st.DataObject, size: int) -> None:
        if use := self.pick(data, "held"):
            self.asked += 1
            use.name = f"r{self.asked}"
            self.send_by(use, size)

    def send_by(self, use: Use, size: int) -> None:
        async def send() -> None:
            start(self.origin, use.connection, b"x" * size, name=use.name)

        try:
            self.run(send())
        except TargetError:
            use.does = "closes"

    @rule(data=st.data(), whole=st.booleans())
    def read(self, data: st.DataObject, whole: bool) -> None:
        if use := self.pick(data, "answers", "breaks", "closes"):
            connection = use.connection
            try:
                body = self.run(connection.all() if whole else read_some(connection))
            except TargetError:
                assert use.does != "answers", f"{use.name} was answered"
            else:
                assert use.does == "answers"
                assert (connection.status, body) == (200, use.name.encode())
            self.let_go(use)

    @rule(data=st.data(), abort=st.booleans())
    def give_up(self, data: st.DataObject, abort: bool) -> None:
        if use := self.pick(data, "held", "asked", "answers", "breaks", "closes"):
            if abort:
                use.connection.abort()
            self.let_go(use)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        async def begin_and_cancel(connection: Connection) -> None:
            reading = asyncio.ensure_future(connection.all())
            await turn()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

        if use := self.pick(data, "asked"):
            self.run(begin_and_cancel(use.connection))
            self.let_go(use)

    def let_go(self, use: Use) -> None:
        use.connection.release()
        self.uses.remove(use)

    # --- the target -----------------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        extra=st.sampled_from([b"", b"connection: close\r\n", b"keep-alive: timeout=2\r\n"]),
        after=st.sampled_from([b"", b"", b"x", build_answer("secret")]),
        close=st.booleans(),
    )
    def answer(self, data: st.DataObject, extra: bytes, after: bytes, close: bool) -> None:
        if use := self.pick(data, "asked"):
            self.take_request(use)
            use.wire.send(build_answer(use.name, extra) + after)
            if close:
                use.wire.close()
            use.does = "answers"

    @rule(
        data=st.data(),
        wire=st.sampled_from([b"\x00garbage", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"]),
    )
    def break_protocol(self, data: st.DataObject, wire: bytes) -> None:
        if use := self.pick(data, "asked"):
            self.take_request(use)
            use.wire.send(wire)
            use.does = "breaks"

    @rule(data=st.data(), reset=st.booleans(), half=st.booleans())
    def close(self, data: st.DataObject, reset: bool, half: bool) -> None:
        if use := self.pick(data, "asked", "held"):
            if use.name and half:
                self.take_request(use)
                use.wire.send(build_answer(use.name)[:-1])
            use.wire.reset() if reset else use.wire.close()
            if use.name:
                use.does = "closes"
            else:
                self.let_go(use)

    def take_request(self, use: Use) -> None:
        self.run(turn())
        request = self.run(use.wire.read_request())
        name = request.split(b" ")[1].rpartition(b"/")[2].decode()
        assert name == use.name, "another request than the one that was sent on it"
        assert name not in self.received, "sent twice"
        self.received.append(name)
        assert use.wire.peek() == b"", "two requests at once on one connection"

    @precondition(lambda self: self.origin.idle_connections > 0)
    @rule(data=st.data(), deed=st.sampled_from(["close", "reset", "answer", "bytes"]), seen=st.booleans())
    def spoil_idle(self, data: st.DataObject, deed: str, seen: bool) -> None:
        """Seen or not by the client's event loop before the next rule."""
        wire = self.find_wire(data.draw(st.sampled_from(list(self.origin._idle))))
        if wire.sock.fileno() < 0:
            return
        match deed:
            case "answer":
                wire.send(build_answer("secret"))
            case "bytes":
                wire.send(b"x")
            case _:
                getattr(wire, deed)()
        if seen:
            self.run(turn())

    @rule(seconds=st.sampled_from([0.1, 1.5, IDLE_MAX_S]))
    def wait(self, seconds: float) -> None:
        self.now = max(self.now, self.loop.time()) + seconds
        self.client.sweep(self.now)
        for use in self.uses:
            if self.stage(use) == "asked" and use.connection._error is not None:
                use.does = "breaks"  # its time is up

    # --- what always holds ----------------------------------------------------------------------------------

    @invariant()
    def every_connection_is_somewhere_once(self) -> None:
        if not hasattr(self, "origin"):
            return
        idle = list(self.origin._idle)
        held = [use.connection for use in self.uses if use.connection in self.origin._open]
        assert len(set(idle)) == len(idle)
        assert not set(idle) & set(held)
        assert set(idle) | set(held) == self.origin._open
        assert self.origin._connecting == 0
        assert len(idle) + len(held) <= CONNECTIONS_MAX
        assert self.client.active <= {use.connection for use in self.uses}
        assert all(not connection.busy for connection in idle)

    def teardown(self) -> None:
        if not hasattr(self, "origin"):
            return
        for use in list(self.uses):
            self.let_go(use)
        self.client.close()
        self.run(turn())
        assert (self.origin.open_connections, self.origin.idle_connections) == (0, 0)
        assert self.client.active == set()
        for wire in [*self.wires.values(), *self.peer.accept_waiting()]:
            if wire.sock.fileno() >= 0:
                self.run(wire.read_end())
        self.peer.close()
        self.loop.close()


TestClientMachine = ClientMachine.TestCase
TestClientMachine.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
