"""The admin API: what it shows of the control plane, and the OpenAPI document that describes all routes.

Everything below `/admin/v1` but the OpenAPI document needs a token (`control_gate`) with the role that the
route asks for (`control_routes`).  A route reads no file and no table by itself.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.openapi.utils import get_openapi

from forebay.app.applied import load_applied
from forebay.app.control_bill import BillRoutes
from forebay.app.control_errors import install_error_handlers
from forebay.app.control_gate import Gate
from forebay.app.control_mirrors import MirrorRoutes
from forebay.app.control_plane import ControlPlane
from forebay.app.control_roles import Doorkeeper
from forebay.app.control_routes import RouteAdder, Routes
from forebay.app.control_schemas import (
    ConfigView,
    Health,
    ModelList,
    StatusView,
)
from forebay.app.control_usage import (
    PAGE_MAX,
    Cursor,
    Filters,
    GroupBy,
    Interval,
    TagName,
    UnixSeconds,
    UsagePage,
    load_usage_page,
    make_query,
)
from forebay.app.control_views import (
    show_config,
    show_config_state,
    show_model,
    show_status,
)
from forebay.app.supervisor_state import load_run_state
from forebay.core.clock import Clock
from forebay.core.errors import Overloaded
from forebay.store.database import Database
from forebay.version import __version__


class AdminRoutes:
    """The routes over one control plane.

    Args:
        plane: what is shown and steered.
        database: where usage is read.
        state_path: where the supervisor writes what runs; the workers write in the same folder.
        clock: for how long ago things happened.
    """

    def __init__(self, plane: ControlPlane, *, database: Database, state_path: Path, clock: Clock) -> None:
        self._plane = plane
        self._database = database
        self._state_path = state_path
        self._clock = clock
        self._started_ns = clock.wall_ns()

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        add("GET", "/status", self.get_status, "What runs, and how well")
        add("GET", "/config", self.get_config, "The configuration in force")
        add("GET", "/models", self.get_models, "Public names and their targets")
        add("GET", "/usage", self.get_usage, "Requests and tokens")
        BillRoutes(self._database, self._clock).install(app)
        MirrorRoutes(self._database, self._clock).install(app)

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

    async def get_usage(
        self,
        where: Filters,
        by: Annotated[list[GroupBy], Query(description="What is told apart.", max_length=12)] = [  # noqa: B006
            GroupBy.KEY,
            GroupBy.MODEL,
        ],
        interval: Annotated[Interval | None, Query(description="Told apart by time as well; UTC.")] = None,
        since_s: Annotated[UnixSeconds | None, Query(description="Unix time, inclusive.")] = None,
        until_s: Annotated[UnixSeconds | None, Query(description="Unix time, exclusive.")] = None,
        tag: Annotated[TagName | None, Query(description="Told apart by this tag as well.")] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
        cursor: Annotated[Cursor | None, Query(description="`next_cursor` of the page before.")] = None,
    ) -> UsagePage:
        """Sums over finished requests, a group a row.  Records take a second to arrive here."""
        query = make_query(by=by, interval=interval, since_s=since_s, until_s=until_s, tag=tag, where=where)
        return await asyncio.to_thread(load_usage_page, self._database, query, limit=limit, cursor=cursor)


def create_admin_app(parts: Iterable[Routes], plane: ControlPlane, doorkeeper: Doorkeeper) -> FastAPI:
    """The ASGI application of the control plane, made of these parts."""
    app = FastAPI(
        title="Forebay admin API", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    for part in parts:
        part.install(app)
    document: list[dict[str, Any]] = []

    # Made for the first who asks: it takes longer than all else of a start, and most never ask.
    @app.get("/admin/v1/openapi.json", include_in_schema=False)
    async def get_openapi_document() -> dict[str, Any]:
        if not document:
            document.append(await asyncio.to_thread(_make_document, app))
        return document[0]

    @app.get("/healthz", include_in_schema=False)
    async def get_health() -> Health:
        return Health()

    @app.get("/readyz", include_in_schema=False)
    async def get_readiness() -> Health:
        if plane.snapshot_state is None:
            raise Overloaded("no snapshot has been written yet", retry_after_s=1)
        return Health()

    install_error_handlers(app)
    app.add_middleware(Gate, doorkeeper=doorkeeper)
    return app


def _make_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with our 400 in the place of its 422, and the token that all routes need."""
    document = get_openapi(
        title=app.title, version=app.version, routes=app.routes,
        description="Bearer token: the file admin.token in the data folder, one made with `POST /tokens`, or "
        "one of the identity provider that `control.oidc` names. "
        "`x-forebay-role` is the lowest role that may use a route.",
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
