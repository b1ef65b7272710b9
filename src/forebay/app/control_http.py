"""The admin API: its routes, and the OpenAPI document that describes them.

Everything below `/admin/v1` but the OpenAPI document needs the admin token (`control_gate`).  A route reads
no file and no table by itself, and shows a new key once.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query
from fastapi.openapi.utils import get_openapi

from forebay.app.applied import load_applied
from forebay.app.control_errors import install_error_handlers
from forebay.app.control_gate import BODY_MAX_BYTES, Gate
from forebay.app.control_plane import ControlPlane, SnapshotUnwritable
from forebay.app.control_schemas import (
    ConfigView,
    ErrorEnvelope,
    Health,
    KeyCreate,
    KeyCreated,
    KeyId,
    KeyList,
    KeyView,
    ModelList,
    StatusView,
)
from forebay.app.control_usage import (
    PAGE_MAX,
    Cursor,
    GroupBy,
    Interval,
    KeyFilter,
    ModelFilter,
    UnixSeconds,
    UsagePage,
    load_usage_page,
    make_query,
)
from forebay.app.control_views import (
    show_config,
    show_config_state,
    show_key,
    show_model,
    show_status,
)
from forebay.app.supervisor_state import load_run_state
from forebay.core.clock import Clock
from forebay.core.errors import Overloaded
from forebay.gateway.repo import KeyRepo
from forebay.store.database import Database
from forebay.version import __version__

ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorEnvelope, "description": "The request is not valid; `param` says where."},
    401: {"model": ErrorEnvelope, "description": "The admin token is missing or wrong."},
    404: {"model": ErrorEnvelope, "description": "There is no such thing."},
    405: {"model": ErrorEnvelope, "description": "The path takes other methods; see `allow`."},
    408: {"model": ErrorEnvelope, "description": "The body did not arrive in time."},
    413: {"model": ErrorEnvelope, "description": f"The body is larger than {BODY_MAX_BYTES} bytes."},
    500: {"model": ErrorEnvelope, "description": "The control plane failed; its log says why."},
    503: {"model": ErrorEnvelope, "description": "The database or the disk refuses at present."},
}


class AdminRoutes:
    """The routes over one control plane.

    Args:
        plane: what is shown and steered.
        keys: the callers' keys.
        database: where usage is read.
        state_path: where the supervisor writes what runs; the workers write in the same folder.
        clock: for how long ago things happened.
    """

    def __init__(
        self, plane: ControlPlane, *, keys: KeyRepo, database: Database, state_path: Path, clock: Clock
    ) -> None:
        self._plane = plane
        self._database = database
        self._keys = keys
        self._state_path = state_path
        self._clock = clock
        self._started_ns = clock.wall_ns()

    def install(self, app: FastAPI) -> None:
        def add(method: str, path: str, handler: Callable[..., Any], summary: str, status: int = 200) -> None:
            app.add_api_route(
                f"/admin/v1{path}", handler, methods=[method], summary=summary, status_code=status,
                responses=ERRORS,
            )  # fmt: skip

        add("GET", "/status", self.get_status, "What runs, and how well")
        add("GET", "/config", self.get_config, "The configuration in force")
        add("GET", "/models", self.get_models, "Public names and their targets")
        add("GET", "/keys", self.list_keys, "Callers' keys")
        add("POST", "/keys", self.create_key, "Make a key", 201)
        add("DELETE", "/keys/{key_id}", self.revoke_key, "Revoke a key")
        add("GET", "/usage", self.get_usage, "Requests and tokens")

    async def get_status(self) -> StatusView:
        """Processes, snapshot, configuration and records.  Always answers, whatever is out of order."""
        state = await asyncio.to_thread(load_run_state, self._state_path)
        applied = await asyncio.to_thread(load_applied, self._state_path.parent)
        return show_status(
            self._plane, state, applied, started_ns=self._started_ns, now_ns=self._clock.wall_ns()
        )

    async def get_config(self) -> ConfigView:
        """Defaults included, secrets as references."""
        return ConfigView(
            state=show_config_state(self._plane), effective=dict(show_config(self._plane.config))
        )

    async def get_models(self) -> ModelList:
        """As the gateway has them at present."""
        written = self._plane.snapshot_state
        routes = written.snapshot.table.routes if written else ()
        return ModelList(data=[show_model(route) for route in routes])

    async def list_keys(
        self, revoked: Annotated[bool, Query(description="Whether revoked keys are listed as well.")] = False
    ) -> KeyList:
        """The oldest first.  Neither a key nor its digest is shown."""
        records = await asyncio.to_thread(self._keys.list)
        shown = [record for record in records if revoked or record.revoked_ns is None]
        return KeyList(data=[show_key(record) for record in shown])

    async def create_key(self, wanted: KeyCreate) -> KeyCreated:
        """The answer holds the key itself, this once.  The gateway takes it within a second."""
        entry, plaintext = await asyncio.to_thread(
            self._keys.create, wanted.name, wanted.project, wanted.team, tuple(wanted.models)
        )
        record = await asyncio.to_thread(self._keys.get, entry.id)
        try:
            await self._plane.refresh_snapshot()
        except SnapshotUnwritable:
            pass  # The key exists and can't be shown again; the status shows why the gateway is late.
        return KeyCreated(**show_key(record).model_dump(), key=plaintext)

    async def revoke_key(self, key_id: KeyId) -> KeyView:
        """The gateway refuses the key within a second.  With 503 the key is revoked, and the gateway could
        not be told yet."""
        record = await asyncio.to_thread(self._keys.revoke, key_id)
        await self._plane.refresh_snapshot()
        return show_key(record)

    async def get_usage(
        self,
        by: Annotated[list[GroupBy], Query(description="What is told apart.", max_length=4)] = [  # noqa: B006
            GroupBy.KEY,
            GroupBy.MODEL,
        ],
        interval: Annotated[Interval | None, Query(description="Told apart by time as well; UTC.")] = None,
        since_s: Annotated[UnixSeconds | None, Query(description="Unix time, inclusive.")] = None,
        until_s: Annotated[UnixSeconds | None, Query(description="Unix time, exclusive.")] = None,
        key: Annotated[KeyFilter | None, Query(description="Only this key's id.")] = None,
        model: Annotated[ModelFilter | None, Query(description="Only this public name.")] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
        cursor: Annotated[Cursor | None, Query(description="`next_cursor` of the page before.")] = None,
    ) -> UsagePage:
        """Sums over finished requests, a group a row.  Records take a second to arrive here."""
        query = make_query(by=by, interval=interval, since_s=since_s, until_s=until_s, key=key, model=model)
        return await asyncio.to_thread(load_usage_page, self._database, query, limit=limit, cursor=cursor)


def create_admin_app(routes: AdminRoutes, plane: ControlPlane, token: str) -> FastAPI:
    """The ASGI application of the control plane."""
    app = FastAPI(
        title="Forebay admin API", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    routes.install(app)
    document = _make_document(app)

    @app.get("/admin/v1/openapi.json", include_in_schema=False)
    async def get_openapi_document() -> dict[str, Any]:
        return document

    @app.get("/healthz", include_in_schema=False)
    async def get_health() -> Health:
        return Health()

    @app.get("/readyz", include_in_schema=False)
    async def get_readiness() -> Health:
        if plane.snapshot_state is None:
            raise Overloaded("no snapshot has been written yet", retry_after_s=1)
        return Health()

    install_error_handlers(app)
    app.add_middleware(Gate, token=token)
    return app


def _make_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with our 400 in the place of its 422, and the token that all routes need."""
    document = get_openapi(
        title=app.title, version=app.version, routes=app.routes,
        description="Bearer token: the file admin.token in the data folder.",
    )  # fmt: skip
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    document["components"]["securitySchemes"] = {"admin_token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"admin_token": []}]
    return document
