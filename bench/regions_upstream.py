"""The scripted upstreams of `regions.py`: places that answer streams, each as well or as badly as it is told.

usage: python bench/regions_upstream.py      with one JSON object on its standard input, see `main`

A place serves so many requests at once and lets the others wait in their order, as an engine does.  `slow`
answers all, late; `failing` refuses some at once and breaks others off; `flapping` is well for a while and
then resets everything.
"""

import asyncio
import json
import random
import socket
import struct
import sys
from collections import deque
from typing import Any

import uvloop

SLOTS = 16
FIRST_S, TOKEN_S, TOKENS = 0.04, 0.005, 6  #: of a place that is well
SLOW_FACTOR = 20
FAIL_SHARE, RESET_SHARE = 0.3, 0.2  #: of the requests of a failing place
FLAP_S = 2.0  #: well, and as long ill
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","owned_by":"bench"}]}'


class Place:
    """One replica: its slots, and how it is."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.luck = random.Random(seed)
        self.busy = 0
        self.waiting: deque[Wire] = deque()

    def is_ill(self, now: float) -> bool:
        return self.kind == "flapping" and int(now / FLAP_S) % 2 == 1

    def take(self, wire: "Wire") -> None:
        if self.busy < SLOTS:
            self.busy += 1
            wire.begin()
        else:
            self.waiting.append(wire)

    def free(self) -> None:
        self.busy -= 1
        while self.waiting and self.busy < SLOTS:
            wire = self.waiting.popleft()
            if not wire.transport.is_closing():
                self.busy += 1
                wire.begin()


class Wire(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        if self._place.is_ill(self._loop.time()):
            self._reset()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if len(rest) < length:
            return
        self._data = rest[length:]
        if head.startswith(b"POST"):
            self._answer()
        else:
            body = MODELS if b"/v1/models" in lines[0] else b'{"status":"ok","model_path":"bench"}'
            self.transport.write(PLAIN % (b"200 OK", len(body), body))

    def _answer(self) -> None:
        place = self._place
        if place.is_ill(self._loop.time()):
            self._reset()
            return
        draw = place.luck.random() if place.kind == "failing" else 1.0
        if draw < FAIL_SHARE:
            body = b'{"error":{"message":"out of order","type":"server_error"}}'
            self.transport.write(PLAIN % (b"500 Internal Server Error", len(body), body))
        elif draw < FAIL_SHARE + RESET_SHARE:
            self._reset()
        else:
            place.take(self)

    def begin(self) -> None:
        self._left = TOKENS
        first_s = FIRST_S * self._place.luck.uniform(0.75, 1.25)
        if self._place.kind == "slow":
            first_s *= SLOW_FACTOR
        self._timer = self._loop.call_later(first_s, self._send_token)

    def _send_token(self) -> None:
        if self._place.is_ill(self._loop.time()):
            self._reset()
            return
        delta = {"role": "assistant", "content": "word "} if self._left == TOKENS else {"content": "word "}
        event = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "bench",
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        }
        data = HEAD if self._left == TOKENS else b""
        self._left -= 1
        if self._left:
            self.transport.write(data + _chunk(event))
            self._timer = self._loop.call_later(TOKEN_S, self._send_token)
            return
        event["choices"] = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
        self.transport.write(data + _chunk(event) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        self._timer = None
        self._place.free()

    def _reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._place.free()


def _chunk(event: dict[str, Any]) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(specification: dict[str, list[str]]) -> None:
    """Serves, and says at which ports: for each group one for each of its places."""
    loop = asyncio.get_running_loop()
    ports: dict[str, list[int]] = {}
    servers = []
    for group, kinds in specification.items():
        ports[group] = []
        for number, kind in enumerate(kinds):
            place = Place(kind, number)
            server = await loop.create_server(lambda place=place: Wire(place), "127.0.0.1", 0, backlog=1024)
            servers.append(server)
            ports[group].append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Reads `{"GROUP": ["well", "slow", "failing", "flapping"], …}`: a place for each word."""
    uvloop.run(serve(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
