"""What the tests of the control plane stand on: one in a folder without sockets, and one as a process."""

import asyncio
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from forebay.app.alert_setup import AlertParts
from forebay.app.board_server import BoardServer
from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.config_expand import Serving
from forebay.app.config_values import ConfigOrigin
from forebay.app.control_explain import ExplainRoutes
from forebay.app.control_fleet import FleetRoutes
from forebay.app.control_http import AdminRoutes, create_admin_app
from forebay.app.control_inventory import InventoryRoutes
from forebay.app.control_limits import LimitRoutes
from forebay.app.control_matrix import MatrixRoutes
from forebay.app.control_oidc import OidcDoor
from forebay.app.control_plane import ControlPlane
from forebay.app.control_registry import RegistryRoutes
from forebay.app.control_roles import Doorkeeper
from forebay.app.control_signals import SignalRoutes
from forebay.app.control_tenancy import TenancyRoutes
from forebay.app.control_watch import ConfigWatch
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_setup import make_deployment_routes
from forebay.app.deployment_store import DeploymentStore
from forebay.app.effective_config import EffectiveConfig
from forebay.app.engine_probe import EngineProbe
from forebay.app.engine_watch import EngineWatch
from forebay.app.environments import open_environments
from forebay.app.live_amounts import LiveAmounts
from forebay.app.matrix import MatrixRepo
from forebay.app.model_registry import open_registry
from forebay.app.quota_server import QuotaServer
from forebay.app.quota_state import QuotaState
from forebay.core.events import Finished, Outcome, Tokens, encode_event
from forebay.engines.deployment import Deployment, DeploymentStatus
from forebay.gateway.policy.news import News
from forebay.gateway.repo_signals import SignalRepo
from forebay.gateway.repos import Repos
from forebay.ledger.ingest import Ingester
from forebay.ledger.segment import SegmentWriter
from forebay.store.database import Database

TOKEN = "fba-0123456789"
AUTH = {"authorization": f"Bearer {TOKEN}"}
ENGINE_URLS = {
    "smollm2-135m": "http://127.0.0.1:20001/v1",
    "minilm-l6-v2": "http://127.0.0.1:20002/v1",
}
HOUR_S = 3600
BASE_S = 1_790_000_000 // HOUR_S * HOUR_S


@functools.cache
def make_empty_database() -> bytes:
    """The file of a migrated database: made once, because every test wants one."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database.open(Path(folder) / "empty.db")
        database.migrate()
        database.close()
        return (Path(folder) / "empty.db").read_bytes()


class LeapingClock(SystemClock):
    """The machine's, which a test may have leap ahead instead of waiting."""

    def __init__(self) -> None:
        self._ahead_ns = 0
        self.monotonic_ns = lambda: time.monotonic_ns() + self._ahead_ns  # type: ignore[method-assign]
        self.wall_ns = lambda: time.time_ns() + self._ahead_ns  # type: ignore[method-assign]

    def leap(self, seconds: float) -> None:
        self._ahead_ns += round(seconds * 1e9)


class Scene:
    """One data folder, its database, and the application over them."""

    def __init__(self, folder: Path, yaml: str | None = None) -> None:
        self.folder = folder
        file = None
        if yaml is not None:
            file = folder / "forebay.yaml"
            file.write_text(yaml)
        origin = ConfigOrigin(folder=folder, file=None)
        self.defaults = Config.model_validate({"data": {"dir": ".forebay"}}, context=origin)
        self.defaults.run_path.mkdir(parents=True, exist_ok=True)
        self.clock = LeapingClock()
        if not self.defaults.database_path.exists():
            self.defaults.database_path.write_bytes(make_empty_database())
        self.database = Database.open(self.defaults.database_path)
        self.repos = Repos.open(self.database, self.clock)
        self.keys = self.repos.keys
        self.watch = ConfigWatch(file, saved=self.saved_path, defaults=self.defaults)
        self.quota = QuotaServer(
            self.defaults.run_path / "quota.sock", QuotaState(self.defaults.run_path / "quota"), self.clock
        )
        self.board = BoardServer(self.defaults.run_path / "board.sock")
        self.news: News | None = None  #: instead of what is on the board
        self.signals = SignalRepo(self.database, self.clock)
        self.live = LiveAmounts(self.signals, self.quota, self.clock)
        self.engines = EngineWatch(self.board, EngineProbe(self.clock), self.defaults.run_path)
        self.serving: Serving = {}
        self.statuses: dict[str, DeploymentStatus] = {}
        self.deployments = DeploymentRepo(self.database, self.clock)
        self.store = DeploymentStore(self.deployments, lambda: self.watch.config)
        self.plane = ControlPlane(
            self.watch,
            started=self.watch.config,
            keys=self.keys,
            ingester=Ingester(self.database, self.defaults.ledger_path, self.clock),
            engine_urls=ENGINE_URLS,
            snapshot_path=self.defaults.snapshot_path,
            created_s=1,
            clock=self.clock,
            quota=self.quota,
            live=self.live,
            engines=self.engines,
            effective=EffectiveConfig(self.store, lambda: self.serving),
        )
        self.alerts = AlertParts(self.quota, self.database, lambda: self.watch.config.alerts, self.clock)
        fleet, matrix = FleetRoutes(self.engines, self.board), MatrixRepo(self.database, self.clock)
        self.asked: tuple[Deployment, ...] = ()  #: instead of those of the store, for the inventory
        parts = (
            AdminRoutes(
                self.plane,
                database=self.database,
                state_path=self.defaults.state_path,
                clock=self.clock,
            ),
            TenancyRoutes(self.plane, self.repos, self.clock),
            LimitRoutes(self.quota, self.clock, self.live),
            SignalRoutes(self.live, self.signals),
            ExplainRoutes(self.plane, self.read_board),
            fleet,
            MatrixRoutes(matrix),
            RegistryRoutes(
                open_registry(self.defaults, self.database, self.clock),
                self.database,
                lambda: self.watch.config,
            ),
            InventoryRoutes(
                fleet,
                lambda: self.asked or self.store.list_current(),
                lambda: self.statuses,
                matrix,
                open_environments(self.defaults),
            ),
            self.alerts.routes,
            make_deployment_routes(
                self.database,
                self.deployments,
                self.store,
                get_config=lambda: self.watch.config,
                get_statuses=lambda: self.statuses,
            ),
        )
        foreign = OidcDoor(lambda: self.watch.config.control.oidc, self.clock)
        doorkeeper = Doorkeeper(TOKEN, self.repos.tokens, foreign.identify)
        self.app: FastAPI = create_admin_app(parts, self.plane, doorkeeper)

    def read_board(self) -> News:
        return self.news or self.board.read()

    @property
    def saved_path(self) -> Path:
        return self.defaults.run_path / "config.json"

    def refresh(self) -> None:
        asyncio.run(self.plane.refresh_snapshot())

    def record(self, *events: Finished) -> None:
        """Writes events as a worker does, and takes them in."""
        writer = SegmentWriter(self.defaults.ledger_path, "w0", 1 << 20, self.clock)
        for event in events:
            writer.append(encode_event(event))
        writer.close()
        assert asyncio.run(self.plane.ingest_now())

    def close(self) -> None:
        self.database.close()


KEY_ID = "key_0000000000000001"


def make_event(number: int, *, key: str = KEY_ID, model: str = "m", hour: int = 0) -> Finished:
    return Finished(
        request_id=f"r{number}",
        at_ns=(BASE_S + hour * HOUR_S) * 10**9 + number,
        key=key,
        model=model,
        target=f"{model}@pool",
        status=200,
        outcome=Outcome.OK,
        attempts=1,
        tokens=Tokens(input=10, output=number),
        duration_ns=2 * 10**9,
        overhead_ns=10**6,
    )


class LiveControl:
    """`python -m forebay.app.control` on a socket of ours, which stays open when the process dies."""

    def __init__(self, folder: Path, yaml: str | None = None, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.file = folder / "forebay.yaml"
        if yaml is not None:
            self.file.write_text(yaml)
        self._config = [str(self.file)] if yaml is not None else [str(self.file), "--no-config-yet"]
        self.data = folder / ".forebay"
        (self.data / "run").mkdir(parents=True, exist_ok=True)
        (folder / "engines.json").write_text(json.dumps(ENGINE_URLS))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._env = {**os.environ, **(env or {})}
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.log = folder / "control.log"
        self.process = self.start()

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "forebay.app.control", "--config", *self._config]
        command += ["--data", str(self.data), "--engines-json", str(self.folder / "engines.json")]
        descriptor = self._socket.fileno()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--listen-fd", str(descriptor), *arguments],
                pass_fds=(descriptor,),
                stdout=log,
                stderr=log,
                env=self._env,
            )
        self.wait_for(self._is_ready, 60)
        return self.process

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process.returncode}: {self.log.read_text()}")
        try:
            return httpx.get(self.url + "/readyz", timeout=30).status_code == 200
        except httpx.TimeoutException:
            return False

    @property
    def token(self) -> str:
        return (self.data / "admin.token").read_text().strip()

    def get(self, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}"} if path.startswith("/admin") else {}
        return httpx.get(self.url + path, headers=headers, timeout=60)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/admin/v1/status").json()
        return found

    def model_names(self) -> list[str]:
        return [model["name"] for model in self.get("/admin/v1/models").json()["data"]]

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._socket.close()
