"""The gateway's routes on the wire: which path means what, and every answer that needs no target.

It parses nothing of a request's body; `service` does.  Every error leaves here in the caller's dialect.
"""

import difflib
import logging
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from forebay.core.errors import (
    ForebayError,
    InternalError,
    MethodNotAllowed,
    ModelNotFound,
    UnknownPath,
)
from forebay.core.routes import MEDIA, Endpoint
from forebay.gateway.batch_door import BATCHES, FILES, BatchDoor
from forebay.gateway.call import Call
from forebay.gateway.dialect import PathDialect, Spoken, TypedDialect
from forebay.gateway.metrics_page import MetricsPage
from forebay.gateway.model import Dialect, KeyState
from forebay.gateway.service import Service
from forebay.gateway.tensor_models import SERVER, TensorModels

logger = logging.getLogger("forebay.gateway")

INFERENCE = {f"/v1/{endpoint.value}": endpoint for endpoint in Endpoint if endpoint is not Endpoint.INFER}
TENSORS = "/v2/"  #: of the Open Inference Protocol
_TENSOR_MODEL = re.compile(r"/v2/models/([^/]+)/infer")
_HEALTH = {"/v2/health/live": "/healthz", "/v2/health/ready": "/readyz"}
MODELS = "/v1/models"
_JSON = "content-type: application/json\r\n"
_TEXT = "content-type: text/plain; charset=utf-8\r\n"
_METRICS = "content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
KNOWN_PATHS = frozenset(
    {*INFERENCE, MODELS, FILES, BATCHES, "/healthz", "/readyz", "/metrics", SERVER, *_HEALTH}
)
_PATTERNS = ("/v2/models/{model}/infer", "/v2/models/{model}", "/v2/models/{model}/ready")


class App:
    """What one worker answers.

    Args:
        dialect: of what needs no target.
        spoken: what the callers of each endpoint speak.
        metrics_folder: where all workers keep their counters.
        batches: the way to files and batches, where there is one.
    """

    def __init__(
        self,
        service: Service,
        dialect: Dialect,
        spoken: Spoken,
        metrics_folder: Path,
        batches: BatchDoor | None = None,
    ) -> None:
        self.service = service
        self.ready = True
        self._dialect = dialect
        known = {path: (endpoint, spoken[endpoint]) for path, endpoint in INFERENCE.items()}
        self._inference = {path: pair for path, pair in known.items() if pair[0] not in MEDIA}
        self._media = {path: pair for path, pair in known.items() if pair[0] in MEDIA}
        self._tensors = cast(PathDialect, spoken[Endpoint.INFER])
        self._tensor_models = TensorModels(service, self._tensors)
        self._metrics = MetricsPage(metrics_folder)
        self._batches = batches

    def handle(self, call: Call) -> Coroutine[Any, Any, None] | None:
        """Answers one call, or returns the coroutine that does; neither raises."""
        found = self._inference.get(call.path)
        if found is not None and call.method == "POST":
            return self.service.begin(call, *found)
        media = self._media.get(call.path)
        if media is not None and call.method == "POST":
            kind = call.headers.get(b"content-type", b"")
            return self.service.begin(call, media[0], cast(TypedDialect, media[1]).bind_type(kind))
        if call.method == "POST" and (named := _TENSOR_MODEL.fullmatch(call.path)):
            dialect = self._tensors.bind_model(unquote(named[1]))
            return self.service.begin(call, Endpoint.INFER, dialect)
        return self._answer(call)

    async def _answer(self, call: Call) -> None:
        path = call.path
        try:
            await self._serve_other(call, path)
        except ForebayError as error:
            headers = _JSON
            if error.status == 401:
                headers += "www-authenticate: Bearer\r\n"
            if error.retry_after_s is not None:
                headers += f"retry-after: {error.retry_after_s}\r\n"
            if isinstance(error, MethodNotAllowed):
                headers += f"allow: {'POST' if path in INFERENCE else 'GET, HEAD'}\r\n"
            call.respond(error.status, headers, self._find_dialect(path).encode_error(error))
        except Exception:  # the outer edge: whatever went wrong in us, the caller gets an answer
            cells = self.service.state.cells
            cells.cells[cells.internal_errors] += 1
            logger.exception("%s failed in the gateway", path)
            failure = InternalError("the gateway failed; its log says more")
            call.respond(failure.status, _JSON, self._find_dialect(path).encode_error(failure))

    def _find_dialect(self, path: str) -> Dialect:
        """Of who asks for a path, also for one that is none."""
        if path.startswith(TENSORS) or path == SERVER:
            return self._tensors
        at = next((known for known in self._inference if path == known or path.startswith(f"{known}/")), "")
        return self._inference[at][1] if at else self._dialect

    async def _serve_other(self, call: Call, path: str) -> None:
        method = call.method
        if self._batches is not None and self._batches.knows(path):
            await self._batches.serve(call)
            return
        of_tensors = self._tensor_models.knows(path)
        known = of_tensors or path in KNOWN_PATHS or path.startswith(f"{MODELS}/")
        if not known:
            self.service.state.cells.count_refusal("unknown_url")
            raise UnknownPath(f"unknown URL: {method} {path[:200]}; {_suggest_path(path)}")
        if path in INFERENCE or method not in ("GET", "HEAD"):
            self.service.state.cells.count_refusal("method_not_allowed")
            raise MethodNotAllowed(f"{path} takes {'POST' if path in INFERENCE else 'GET'}, not {method}")
        path = _HEALTH.get(path, path)
        if path == "/healthz":
            call.respond(200, _TEXT, b"ok\n")
        elif path == "/readyz":
            unready = b"draining\n" if not self.ready else b""
            if self.service.recorder.is_full:
                unready = b"records can't be written\n"  # until they can, every request is refused
            call.respond(503 if unready else 200, _TEXT, unready or b"ok\n")
        elif of_tensors:
            await self._tensor_models.serve(call, path)
        elif path == "/metrics":
            call.respond(200, _METRICS, await self._metrics.read())
        else:
            self._serve_models(call, path, self.service.authenticate(call))

    def _serve_models(self, call: Call, path: str, key: KeyState) -> None:
        if path == MODELS:
            routes = [state.route for state in key.routes.values()]
            body = self._dialect.encode_model_list(
                [(route.model, route.created_s, route.owned_by) for route in routes]
            )
        else:
            name = unquote(path[len(MODELS) + 1 :])
            state = key.routes.get(name)
            if state is None:
                raise ModelNotFound(f"the model `{name[:200]}` does not exist, or this key may not call it")
            body = self._dialect.encode_model(name, state.route.created_s, state.route.owned_by)
        call.respond(200, _JSON, body)


def _suggest_path(path: str) -> str:
    """What was meant, where a client's base URL has no /v1 or one too many, or a name is almost right."""
    tail = path[:200].rstrip("/").removeprefix("/v1").removeprefix("/v1")
    close = difflib.get_close_matches(f"/v1{tail}", [*INFERENCE, MODELS, FILES, BATCHES], n=1, cutoff=0.9)
    if close:
        return f"did you mean {close[0]}?"
    return f"this gateway serves {', '.join(sorted({*KNOWN_PATHS, *_PATTERNS}))}"
