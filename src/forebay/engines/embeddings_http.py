"""The routes of the embedding engine, as an RSGI application.

Tokenises and encodes in one thread and embeds in another, so that `/health` answers meanwhile.  Owns neither
the model nor the process.
"""

import asyncio
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from forebay.core.errors import (
    BodyTooLarge,
    CallerLeft,
    ForebayError,
    InternalError,
    MethodNotAllowed,
    UnknownPath,
)
from forebay.engines.batcher import Batcher
from forebay.engines.embeddings_wire import (
    EmbeddingRequest,
    TextOrIds,
    encode_answer,
    encode_error,
    encode_models,
    parse_request,
)
from forebay.engines.minilm import DIMENSIONS, Embedder, TokenIds

JSON: Final = (("content-type", "application/json"),)
BODY_MAX_BYTES: Final = 32 * 1024 * 1024
ROUTES: Final = {"/v1/embeddings": "POST", "/v1/models": "GET", "/health": "GET", "/metrics": "GET"}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = JSON


class EmbeddingMetrics:
    """What `/metrics` tells."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count, name = self._count, "forebay_embeddings"
        self.requests = count(f"{name}_requests", "Requests by HTTP status", ("status",))
        self.texts = count(f"{name}_texts", "Texts embedded")
        self.tokens = count(f"{name}_tokens", "Tokens embedded")
        self.texts_cut = count(f"{name}_texts_cut", "Texts longer than the model reads")
        self.batches = count(f"{name}_batches", "Runs of the model")
        self.padded_tokens = count(f"{name}_padded_tokens", "Tokens the model ran over, padding included")
        self.seconds = Histogram(f"{name}_seconds", "From request to answer", registry=self.registry)
        self._waiting = Gauge(f"{name}_waiting", "Texts that wait", registry=self.registry)

    def _count(self, name: str, description: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, description, labels, registry=self.registry)

    def observe_batch(self, texts: int, padded_tokens: int) -> None:
        self.batches.inc()
        self.padded_tokens.inc(padded_tokens)

    def render(self, waiting: int) -> bytes:
        self._waiting.set(waiting)
        return generate_latest(self.registry)


class EmbeddingApp:
    """`Batcher.run` must be running beside it."""

    def __init__(
        self,
        name: str,
        model: Embedder,
        batcher: Batcher,
        metrics: EmbeddingMetrics,
        *,
        body_max_bytes: int = BODY_MAX_BYTES,
    ) -> None:
        self._name = name
        self._model = model
        self._batcher = batcher
        self._metrics = metrics
        self._body_max_bytes = body_max_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        try:
            answer = await self._answer(scope, protocol)
        except ForebayError as error:
            answer = _refuse(error)
        except Exception:  # noqa: BLE001  one request's fault must not end the server
            traceback.print_exc(file=sys.stderr)
            answer = _refuse(InternalError("The engine failed. Its log says why."))
        if scope.path == "/v1/embeddings":
            self._metrics.requests.labels(answer.status).inc()
        protocol.response_bytes(answer.status, list(answer.headers), answer.body)

    async def _answer(self, scope: Any, protocol: Any) -> Answer:
        method = ROUTES.get(scope.path)
        if method is None:
            raise UnknownPath(f"There is no {scope.path[:200]!r} here. The engine has {', '.join(ROUTES)}.")
        if scope.method != method:
            raise MethodNotAllowed(f"{scope.path} takes {method}, not {scope.method}.")
        match scope.path:
            case "/health":
                return Answer(body=b'{"status":"ok"}')
            case "/metrics":
                text = self._metrics.render(self._batcher.waiting)
                return Answer(body=text, headers=(("content-type", CONTENT_TYPE_LATEST),))
            case "/v1/models":
                return Answer(body=encode_models(self._name))
            case _:
                return await self._embed(await self._read(scope, protocol), protocol)

    async def _read(self, scope: Any, protocol: Any) -> bytes:
        stated = scope.headers.get("content-length")
        if stated is not None and int(stated) > self._body_max_bytes:
            raise self._too_large()
        body = bytearray()
        async for chunk in protocol:
            body += chunk
            if len(body) > self._body_max_bytes:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self._body_max_bytes} bytes. Send fewer texts.")

    async def _embed(self, body: bytes, protocol: Any) -> Answer:
        start = asyncio.get_running_loop().time()
        asked = parse_request(
            body, model=self._name, dimensions=DIMENSIONS, vocabulary=self._model.vocabulary
        )
        work = asyncio.ensure_future(self._work(asked))
        left = asyncio.ensure_future(protocol.client_disconnect())
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise CallerLeft("The caller closed the connection.")
            answer = await work
        finally:
            work.cancel()
            left.cancel()
        self._metrics.seconds.observe(asyncio.get_running_loop().time() - start)
        return Answer(body=answer)

    async def _work(self, asked: EmbeddingRequest) -> bytes:
        loop = asyncio.get_running_loop()
        sequences, cut = await loop.run_in_executor(self._thread, self._encode, asked.inputs)
        rows = await self._batcher.submit(sequences)
        tokens = sum(map(len, sequences))
        self._metrics.texts.inc(len(sequences))
        self._metrics.tokens.inc(tokens)
        self._metrics.texts_cut.inc(cut)
        return await loop.run_in_executor(
            self._thread,
            lambda: encode_answer(rows, model=self._name, tokens=tokens, is_base64=asked.is_base64),
        )

    def _encode(self, inputs: Sequence[TextOrIds]) -> tuple[list[TokenIds], int]:
        done = [
            self._model.encode(item) if isinstance(item, str) else self._model.complete(item)
            for item in inputs
        ]
        return [ids for ids, _ in done], sum(was_cut for _, was_cut in done)


def _refuse(error: ForebayError) -> Answer:
    wait = () if error.retry_after_s is None else (("retry-after", str(error.retry_after_s)),)
    return Answer(status=error.status, body=encode_error(error), headers=JSON + wait)
