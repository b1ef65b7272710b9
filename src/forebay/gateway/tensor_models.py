"""What the Open Inference Protocol tells beside inference: of the server, of models, and if one is ready.

Readiness is the gateway's own knowledge, so that a crowd of probes reaches no target.  What a model takes and
gives only its target can say: that is asked for, kept for a moment, and told under the public name.  A key
hears of no model that it may not call.  None of it is inference: nothing here is limited, priced or recorded.
"""

import asyncio
import re
from typing import Final
from urllib.parse import unquote

import msgspec

from forebay.core.errors import (
    CallerLeft,
    ForebayError,
    ModelNotFound,
    TargetError,
    TargetMisconfigured,
    UpstreamError,
)
from forebay.core.routes import Endpoint
from forebay.gateway.answers import refuse_compressed
from forebay.gateway.call import Call
from forebay.gateway.dialect import PathDialect
from forebay.gateway.model import KeyState, RouteState, TargetState
from forebay.gateway.policy.listed import is_in_service
from forebay.gateway.service import Service
from forebay.net.connection import Connection
from forebay.version import __version__

SERVER: Final = "/v2"
_MODEL = re.compile(r"/v2/models/([^/]+)(/ready)?")
_JSON: Final = "content-type: application/json\r\n"
METADATA_MAX_BYTES: Final = 1024 * 1024
METADATA_KEPT_S: Final = 5.0
METADATA_KEPT_MAX: Final = 100
_EXTENSIONS: Final = ("binary_tensor_data",)


class TensorModels:
    """See the module.

    Args:
        dialect: of callers of the protocol.
    """

    def __init__(self, service: Service, dialect: PathDialect) -> None:
        self._service = service
        self._dialect = dialect
        self._loop = asyncio.get_running_loop()
        #: By the route table, the target and the public name: until when it is good.
        self._kept: dict[tuple[str, str, str], tuple[float, bytes]] = {}

    @staticmethod
    def knows(path: str) -> bool:
        return path == SERVER or _MODEL.fullmatch(path) is not None

    async def serve(self, call: Call, path: str) -> None:
        """Answers one call.

        Raises:
            Unauthenticated, ModelNotFound: it may not know of such a model.
            TargetError: no target told what it is.
        """
        key = self._service.authenticate(call)
        if path == SERVER:
            told = {"name": "forebay", "version": __version__, "extensions": _EXTENSIONS}
            call.respond(200, _JSON, msgspec.json.encode(told))
            return
        found = _MODEL.fullmatch(path)
        assert found is not None, path
        name = unquote(found[1])
        route = _find_route(key, name)
        if found[2]:
            is_ready = any(map(self._is_ready, route.targets))
            # The protocol has 4xx for a model that is not ready.
            call.respond(
                200 if is_ready else 400, _JSON, msgspec.json.encode({"name": name, "ready": is_ready})
            )
            return
        call.respond(200, _JSON, await self._find_metadata(call, name, route))

    def _is_ready(self, target: TargetState) -> bool:
        return target.answers(Endpoint.INFER) and is_in_service(target, self._loop.time())

    async def _find_metadata(self, call: Call, name: str, route: RouteState) -> bytes:
        """Of the first target that tells it, those that are ready first; no more than a request tries."""
        state = self._service.state
        targets = [target for target in route.targets if target.answers(Endpoint.INFER)]
        targets.sort(key=self._is_ready, reverse=True)
        failure: ForebayError = TargetMisconfigured(f"no target of the model `{name[:200]}` answers this")
        for target in targets[: state.snapshot.table.attempts_max]:
            place = state.table_hash, target.target.id, name
            until, body = self._kept.get(place, (0.0, b""))
            if self._loop.time() < until:
                return body
            try:
                body = await self._fetch(call, name, target)
            except TargetError as error:
                failure = error
                continue
            if len(self._kept) >= METADATA_KEPT_MAX:
                self._kept.clear()
            self._kept[place] = self._loop.time() + METADATA_KEPT_S, body
            return body
        raise failure

    async def _fetch(self, call: Call, name: str, target: TargetState) -> bytes:
        """Raises TargetError where it does not tell, and CallerLeft."""
        if target.problem is not None:
            raise type(target.problem)(target.problem.message)
        origin, timeouts = target.origin, target.target.timeouts
        try:
            connection = await origin.connect(timeouts.connect_s)  # fresh: it can't have gone stale
        except TargetError as error:
            raise type(error)(f"the target {target.target.id} can't be reached", retry_after_s=1) from error
        call.on_left = lambda: connection.fail(CallerLeft("the caller left"))
        try:
            if call.left:
                raise CallerLeft("the caller left")
            total_at = self._loop.time() + timeouts.total_s
            origin.watch(connection, timeouts.first_token_s, timeouts.idle_s, total_at)
            connection.send(_build_head(target), b"", METADATA_MAX_BYTES)
            body = await connection.all()
            return self._read(name, target, connection, body)
        finally:
            call.on_left = None
            connection.release()

    def _read(self, name: str, target: TargetState, connection: Connection, body: bytes) -> bytes:
        refuse_compressed(connection)
        if connection.status != 200:
            error = self._dialect.read_error(body) or b'"without an explanation"'
            if target.secret:
                error = error.replace(target.secret, b"[redacted]")
            told = error.decode("utf-8", "replace")[:1000]
            raise UpstreamError(f"the target {target.target.id} answered {connection.status}: {told}")
        return self._dialect.name_model(body, name)


def _find_route(key: KeyState, name: str) -> RouteState:
    route = key.routes.get(name)
    if route is None or Endpoint.INFER not in route.cells:
        raise ModelNotFound(
            f"the model `{name[:200]}` does not exist, does not serve the Open Inference Protocol, or this "
            "key may not call it"
        )
    return route


def _build_head(target: TargetState) -> bytes:
    """Of a question for the model, beside the path at which it infers."""
    line, _, rest = target.crossings[Endpoint.INFER].heads[0].partition(b"\r\n")
    method, path, version = line.split(b" ")
    assert method == b"POST", line
    return b"GET %b %b\r\n%b\r\n" % (path.removesuffix(b"/infer"), version, rest)
