"""Rude callers and a rude target at once: each answer belongs to its request, and nothing is left behind.

Callers send requests behind each other in pieces, read slowly, and leave; the target cuts, closes, resets,
and sends more than anybody asked for.  Each request carries a token that its answer must carry alone.
"""

import asyncio
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from forebay.core.routes import Timeouts
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_route
from forebay.testing.openai import DONE, chat_chunk, event

CALLERS = 6
CONNECTIONS = 40  #: of each caller, one after the other
LAST_BEGIN_S = 6.0  #: no caller connects later than this: a slow machine makes fewer connections
TOKEN = re.compile(rb"tok_\d+_\d+_\d+")
EXTRAS = (b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"tok":"EVIL"}', b"\x00", b"HTTP/1")


def make_answer(luck: random.Random, token: str, *, stream: bool) -> bytes:
    if stream:
        events = event(chat_chunk({"content": token})) * luck.choice([1, 3, 200])
        events += event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + DONE
        size = luck.choice([50, 1000, 1 << 20])
        pieces = [events[at : at + size] for at in range(0, len(events), size)]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    status = luck.choice([b"200 OK"] * 6 + [b"503 No", b"400 Bad"])
    padding = "z" * luck.choice([1] * 12 + [1000, 100_000, 2_000_000])
    said = {"tok": token, "pad": padding} if status == b"200 OK" else {"error": {"message": token}}
    body = json.dumps(said).encode()
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
        status,
        len(body),
    )
    return head + body


class RudeTarget:
    """Listens in a thread of its own; `seen` are the requests that reached it, with their models."""

    def __init__(self, seed: int) -> None:
        self.seen: list[tuple[bytes, bool]] = []
        self.port = 0
        self._luck = random.Random(seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        luck = self._luck
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"content-length: (\d+)", head)
        body = await reader.readexactly(int(length))
        (token,) = TOKEN.findall(body)
        self.seen.append((token, b'"two"' in body))
        deed = luck.choices(
            ["good", "reset", "close", "cut", "early hints", "extra", "closed behind"],
            [74, 3, 3, 4, 3, 9, 4],
        )[0]
        if luck.random() < 0.2:
            await asyncio.sleep(luck.random() * 0.02)
        if deed == "reset":
            writer.transport.abort()
        if deed in ("reset", "close"):
            return False
        data = make_answer(luck, token.decode(), stream=b'"stream": true' in body)
        if deed == "cut":
            data = data[: luck.randrange(len(data))]
        elif deed == "early hints":
            data = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + data
        elif deed == "extra":
            data += luck.choice(EXTRAS)
        size = len(data) if deed == "extra" or len(data) > 3000 else luck.choice([len(data), 7, 100])
        for at in range(0, len(data), size or 1):
            if writer.transport.is_closing():
                return False
            writer.write(data[at : at + size])
            if size < len(data) and luck.random() < 0.1:
                await asyncio.sleep(0.001)
        await writer.drain()
        return deed not in ("cut", "closed behind")


@contextmanager
def rude_target(seed: int) -> Iterator[RudeTarget]:
    target = RudeTarget(seed)
    loop = asyncio.new_event_loop()
    over = asyncio.Event()
    ready = threading.Event()

    async def listen() -> None:
        async with await asyncio.start_server(target.serve, "127.0.0.1", 0) as server:
            target.port = server.sockets[0].getsockname()[1]
            ready.set()
            await over.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(listen())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield target
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


class RudeCaller:
    """One after the other, connections with one request or more; `answered` are the ids of what it read."""

    def __init__(self, port: int, number: int, seed: int) -> None:
        self.answered: list[tuple[str, int]] = []
        self._port = port
        self._number = number
        self._luck = random.Random(f"{seed} {number}")

    def run(self) -> None:
        until = time.monotonic() + LAST_BEGIN_S
        for count in range(CONNECTIONS):
            if time.monotonic() > until:
                break
            with socket.socket() as sock:
                if self._luck.random() < 0.2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.connect(("127.0.0.1", self._port))
                sock.settimeout(60)
                self._use(sock, count)

    def _use(self, sock: socket.socket, count: int) -> None:
        luck = self._luck
        asked: list[tuple[bytes, bool]] = []
        data = b""
        for index in range(luck.choice([1, 1, 2, 5, 20])):
            token = f"tok_{self._number}_{count}_{index}"
            known = luck.random() > 0.1
            asked.append((token.encode(), known))
            body = {"model": luck.choice(["one", "two"]), "tok": token, "stream": luck.random() < 0.4}
            data += build_request(json.dumps(body).encode(), TEST_KEY if known else "fb-wrong")
        size = luck.choice([len(data), len(data), 300])
        for at in range(0, len(data), size):
            sock.sendall(data[at : at + size])
        if luck.random() < 0.15:
            time.sleep(luck.random() * 0.05)
            if luck.random() < 0.5:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        with sock.makefile("rb") as file:
            for sent, known in asked:
                head = b"".join(iter(file.readline, b"\r\n"))
                assert head.startswith(b"HTTP/1.1 "), f"the connection ended before the answer to {sent!r}"
                self._check(head, read_body(head, file), sent, known=known)
                if b"connection: close" in head:
                    break

    def _check(self, head: bytes, body: bytes, token: bytes, *, known: bool) -> None:
        status = int(head[9:12])
        assert (status == 401) == (not known)
        if not known:
            return
        found = set(TOKEN.findall(body))
        assert found <= {token}, f"{token!r} was answered with what belongs to {found}"
        assert b"EVIL" not in body
        assert found or status != 200 or b'"error"' in body, body[:200]
        (request_id,) = re.findall(rb"x-request-id: (\S+)", head)
        self.answered.append((request_id.decode(), status))


def build_request(body: bytes, key: str) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def read_body(head: bytes, file: BinaryIO) -> bytes:
    length = re.search(rb"content-length: (\d+)", head)
    if length is not None:
        return file.read(int(length[1]))
    parts = []
    while size := int(file.readline(), 16):
        parts.append(file.read(size + 2)[:-2])
    assert file.readline() == b"\r\n"
    return b"".join(parts)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_answer_belongs_to_its_request_and_nothing_is_left_behind(tmp_path: Path, seed: int) -> None:
    brief = Timeouts(idle_s=5, total_s=15)
    with rude_target(seed) as target:
        first, second = (f"http://{name}:{target.port}/v1" for name in ("127.0.0.1", "localhost"))
        routes = [
            make_route("one", first, timeouts=brief),
            make_route("two", first, second, timeouts=brief),
        ]
        with GatewayProcess(routes, folder=tmp_path) as gateway, ThreadPoolExecutor(CALLERS) as pool:
            callers = [RudeCaller(gateway.port, number, seed) for number in range(CALLERS)]
            for done in [pool.submit(caller.run) for caller in callers]:
                done.result()
            gateway.wait_idle()
            gateway.until(lambda: gateway.metric("forebay_memory_held_bytes") == 0)
            assert gateway.metric("forebay_internal_errors_total") == 0
            records = gateway.records()
            assert "Traceback" not in gateway.log
    statuses = {record.request_id: record.status for record in records}
    answered = [pair for caller in callers for pair in caller.answered]
    assert len(statuses) == len(records), "one record each"
    assert len(answered) > 50
    assert len(dict(answered)) == len(answered)
    assert {name: statuses.get(name) for name, _ in answered} == dict(answered)
    again = [token for (token, is_two), times in Counter(target.seen).items() if times > 1 and not is_two]
    assert not again, "a request that a target has seen is not sent there again"
