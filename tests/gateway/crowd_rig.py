"""Places that count strictly what they have in hand, workers before them, and crowds of callers."""

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec

from forebay.core.keys import PRIORITIES, KeyEntry
from forebay.core.limits import Limit, QueueRules, WhenAway
from forebay.core.routes import Choosing, Endpoint, GatewayLimits, Order, Route, Target
from forebay.testing.answers import json_answer
from forebay.testing.gateway import GatewayProcess, make_key
from forebay.testing.openai import chat_completion
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Sleep, Step, Wait
from forebay.testing.threaded import ThreadedUpstream

RULES = QueueRules(
    wait_max_s=60, requests_max=1000, tenant_requests_max=1000, default_wait_s=(30.0, 30.0, 30.0)
)
CLASSES = {name: f"fb-{name}" for name in PRIORITIES}


class Place:
    """An upstream's answers: each takes a time, or until the test lets it go; all in hand are counted."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.busy = self.peak = self.served = 0
        self.order: list[str] = []
        self.gates: list[Gate] = []
        self._lock = threading.Lock()

    def __call__(self, request: RecordedRequest) -> Script:
        return self._serve(request)

    def _serve(self, request: RecordedRequest) -> Iterator[Step]:
        gate = Gate()
        self.gates.append(gate)  # first, so that a test that sees the request can let it go
        with self._lock:
            self.busy += 1
            self.peak = max(self.peak, self.busy)
            self.order.append(request.json()["messages"][0]["content"])
        try:
            yield Wait(gate) if self.seconds is None else Sleep(self.seconds)
        finally:  # before its last byte goes, so that whoever is let in for it comes later
            with self._lock:
                self.busy -= 1
        self.served += 1
        yield from json_answer(chat_completion())

    def release(self, count: int = 1) -> None:
        """Lets the first answers go that the test holds back."""
        shut = [gate for gate in self.gates if not gate.is_open]
        for gate in shut[:count]:
            gate.open()


class Scene:
    """See the module."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._numbers = itertools.count()
        self.targets: list[Target] = []
        self.workers: list[GatewayProcess] = []

    def add(self, place: Place, *, pool: str = "own", **facts: Any) -> Place:
        upstream = self._stack.enter_context(ThreadedUpstream(place))
        number = next(self._numbers)
        self.targets.append(
            Target(
                id=f"{pool}#{number}", pool=pool, url=upstream.url, model="m", **{"slow_start_s": 0.0} | facts
            )
        )
        return place

    def make_route(
        self, rules: QueueRules | None = RULES, model: str = "m", fallbacks: tuple[str, ...] = ()
    ) -> Route:
        """Of all places that were added since the last one."""
        targets, self.targets = tuple(self.targets), []
        choosing = Choosing(order=Order.LOAD, queue=rules)
        endpoints = (Endpoint.CHAT, Endpoint.MESSAGES)
        return Route(
            model=model, endpoints=endpoints, targets=targets, choosing=choosing, fallbacks=fallbacks
        )

    def start(
        self,
        *routes: Route,
        workers: int = 1,
        limits: GatewayLimits | None = None,
        quotas: tuple[Limit, ...] = (),
        keys: list[KeyEntry] | None = None,
    ) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._stack.callback(listener.close)
        ids = tuple(limit.id for limit in quotas)
        made = keys or [
            msgspec.structs.replace(make_key(secret, id=name), priority=name, limits=ids)
            for name, secret in CLASSES.items()
        ]
        for index in range(workers):
            worker = GatewayProcess(
                routes or [self.make_route()],
                folder=self._folder,
                keys=made,
                limits=limits,
                index=index,
                listener=listener,
                constants={"forebay.gateway.mirrors.LAG_MAX_S": 30.0},  # a busy worker makes no copies
            )
            worker.snapshot = msgspec.structs.replace(
                worker.snapshot,
                quotas=quotas,
                quota_when_away=WhenAway.OPEN,
                quota_workers=workers,
                explains_routes=True,
            )
            self.workers.append(self._stack.enter_context(worker))

    @property
    def gateway(self) -> GatewayProcess:
        return self.workers[0]

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(base_url=self.gateway.url, timeout=120, limits=limits)

    async def ask(
        self,
        client: httpx.AsyncClient,
        text: str = "Hello",
        *,
        key: str = CLASSES["standard"],
        path: str = "/chat/completions",
        model: str = "m",
        **headers: str,
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
        return await client.post(path, json=body, headers={"authorization": f"Bearer {key}"} | named)

    def waiting(self, **labels: str) -> float:
        return self.gateway.metric("forebay_queue_waiting", **labels)

    def ends(self, result: str) -> float:
        return self.gateway.metric("forebay_queue_waits_total", result=result)

    async def serve(self, place: Place, count: int) -> None:
        """Lets so many answers of a place go, one after the other."""
        for served in range(place.served, place.served + count):
            await self.until(lambda: any(not gate.is_open for gate in place.gates))
            place.release()
            await self.until(lambda served=served: place.served > served)  # type: ignore[misc]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not is_so():
                await asyncio.sleep(0.005)

    async def until_waiting(self, count: int, **labels: str) -> None:
        async with asyncio.timeout(120):
            while await asyncio.to_thread(lambda: self.waiting(**labels)) != count:
                await asyncio.sleep(0.02)
