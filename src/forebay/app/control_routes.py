"""How a route is added to the admin API: its role, and the errors that any of them may answer with.

Every route passes here, so that none can be added without saying who may use it.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from fastapi import Depends, FastAPI

from forebay.app.control_gate import BODY_MAX_BYTES
from forebay.app.control_roles import require
from forebay.app.control_schemas import ErrorEnvelope
from forebay.gateway.tenancy import Role

ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorEnvelope, "description": "The request is not valid; `param` says where."},
    401: {"model": ErrorEnvelope, "description": "The token is missing, wrong, expired or revoked."},
    403: {"model": ErrorEnvelope, "description": "The token's role does not suffice."},
    404: {"model": ErrorEnvelope, "description": "There is no such thing."},
    405: {"model": ErrorEnvelope, "description": "The path takes other methods; see `allow`."},
    408: {"model": ErrorEnvelope, "description": "The body did not arrive in time."},
    409: {"model": ErrorEnvelope, "description": "What is there does not allow it; the message says why."},
    413: {"model": ErrorEnvelope, "description": f"The body is larger than {BODY_MAX_BYTES} bytes."},
    500: {"model": ErrorEnvelope, "description": "The control plane failed; its log says why."},
    503: {"model": ErrorEnvelope, "description": "The database or the disk refuses at present."},
}


class Routes(Protocol):
    """A part of the admin API."""

    def install(self, app: FastAPI) -> None:
        """Adds its routes."""
        ...


class RouteAdder:
    """Adds routes below `/admin/v1`."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def __call__(
        self,
        method: str,
        path: str,
        handler: Callable[..., Any],
        summary: str,
        *,
        role: Role = Role.VIEWER,
        status: int = 200,
    ) -> None:
        """Adds one.

        Args:
            path: what follows `/admin/v1`.
            role: the lowest that may use it.
            status: of its answer when all goes well.
        """
        self._app.add_api_route(
            f"/admin/v1{path}",
            handler,
            methods=[method],
            summary=summary,
            status_code=status,
            responses=ERRORS,
            dependencies=[Depends(require(role))],
            openapi_extra={"x-forebay-role": role.value},
        )
