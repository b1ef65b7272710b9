"""Every error of the admin API, in the one envelope that the gateway uses as well.

Turns exceptions and bare statuses into answers; logs none of their contents and decides nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match

from forebay.core.errors import (
    ForebayError,
    InternalError,
    InvalidJSON,
    InvalidValue,
    MethodNotAllowed,
    MissingField,
    UnknownPath,
)

PROBLEMS_SHOWN_MAX = 5
INPUT_SHOWN_MAX = 200
RETRY_AFTER_S = 5  #: where nobody knows how long a database or a disk will refuse


def make_error_response(error: ForebayError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer for an error; `www-authenticate` and `retry-after` follow from it."""
    found = dict(headers or {})
    if error.status == 401:
        found["www-authenticate"] = "Bearer"
    wait_s = error.retry_after_s
    if wait_s is None and error.status == 503:
        wait_s = RETRY_AFTER_S
    if wait_s is not None:
        found["retry-after"] = str(wait_s)
    return JSONResponse({"error": error.describe()}, status_code=error.status, headers=found)


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ForebayError, _handle_forebay_error)
    app.add_exception_handler(RequestValidationError, _handle_validation)
    app.add_exception_handler(HTTPException, _handle_http)
    app.add_exception_handler(Exception, _handle_unknown)


async def _handle_forebay_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ForebayError)
    return make_error_response(error)


async def _handle_unknown(_: Request, error: Exception) -> JSONResponse:
    """The server logs the traceback; the caller learns nothing of it."""
    return make_error_response(InternalError("the control plane failed; its log says why"))


async def _handle_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    path = request.url.path[:INPUT_SHOWN_MAX]
    if error.status_code == 405:
        allowed = ", ".join(sorted(_find_methods(request)))
        return make_error_response(
            MethodNotAllowed(f"{path} takes {allowed}, not {request.method}"), {"allow": allowed}
        )
    if error.status_code == 404:
        return make_error_response(UnknownPath(f"there is nothing at {path}; see /admin/v1/openapi.json"))
    if error.status_code < 500:
        return make_error_response(InvalidJSON(f"the request can't be read: {error.detail}"))
    return make_error_response(InternalError("the control plane failed; its log says why"))


def _find_methods(request: Request) -> set[str]:
    """What the path takes: one route knows only its own methods."""
    methods: set[str] = set()
    for route in request.app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return methods


async def _handle_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return make_error_response(describe_validation(error.errors()))


def describe_validation(problems: Sequence[Mapping[str, Any]]) -> ForebayError:
    """One error for all problems: `param` names the first, the message all of them up to a limit."""
    first = problems[0]
    param = _name_param(first["loc"])
    if first["type"] == "json_invalid":
        return InvalidJSON("the body is not valid JSON")
    if first["type"] == "model_attributes_type" and param is None:
        return InvalidJSON("the body must be a JSON object, sent with `content-type: application/json`")
    shown = [f"{_name_param(each['loc']) or 'body'}: {each['msg']}" for each in problems[:PROBLEMS_SHOWN_MAX]]
    if len(problems) > PROBLEMS_SHOWN_MAX:
        shown.append(f"and {len(problems) - PROBLEMS_SHOWN_MAX} more")
    kind = MissingField if first["type"] == "missing" else InvalidValue
    return kind("; ".join(shown), param=param)


def _name_param(location: Iterable[str | int]) -> str | None:
    """`models[0]` for `("body", "models", 0)`."""
    text = ""
    for part in list(location)[1:]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:INPUT_SHOWN_MAX] or None
