"""What stands before the admin API: tokens, the limit of a body, and no storing of answers.

Runs before any route is looked up, so nothing of the API can be learnt without a token.  It reads a body
whole, up to its limit, and parses nothing.
"""

import asyncio
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.app.control_errors import make_error_response
from forebay.app.control_roles import Doorkeeper
from forebay.core.errors import BodyTooLarge, ForebayError, RequestTimeout

BODY_MAX_BYTES: Final = 64 * 1024
BODY_TIMEOUT_S: Final = 10.0
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/admin/v1/openapi.json"})


class Gate:
    """An ASGI application in front of another.

    Args:
        app: what lies behind; it finds who asks in `request.state.principal`.
        doorkeeper: knows whose token it is.
    """

    def __init__(self, app: ASGIApp, doorkeeper: Doorkeeper) -> None:
        self._app = app
        self._doorkeeper = doorkeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_unstored(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["cache-control"] = "no-store"
            await send(message)

        try:
            if scope["path"] not in OPEN_PATHS:
                authorization = Headers(scope=scope).get("authorization", "")
                scope.setdefault("state", {})["principal"] = await self._doorkeeper.identify(authorization)
            body = await _read_body(Headers(scope=scope), receive)
        except ForebayError as error:
            await make_error_response(error)(scope, receive, send_unstored)
            return
        await self._app(scope, _replay(body, receive), send_unstored)


async def _read_body(headers: Headers, receive: Receive) -> bytes:
    length = headers.get("content-length", "0")
    too_large = BodyTooLarge(f"the body is larger than {BODY_MAX_BYTES} bytes")
    if length.isdecimal() and int(length[:20]) > BODY_MAX_BYTES:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return b"".join(parts)
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > BODY_MAX_BYTES:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
