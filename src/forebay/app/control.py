"""The control plane's process: wires the database, the loops and the admin API together, and serves.

Started as `python -m forebay.app.control --config PATH|- [--no-config-yet] --data DIR --engines-json FILE
[--started-json FILE] [--listen-fd FD]`.  It may be killed at any time: the gateway goes on with the last
snapshot, and records wait in their segments.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.alert_setup import AlertParts
from forebay.app.board_server import BoardServer
from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.config_model import list_secrets
from forebay.app.config_running import SAVED_CONFIG
from forebay.app.config_values import ConfigOrigin
from forebay.app.control_explain import ExplainRoutes
from forebay.app.control_fleet import FleetRoutes
from forebay.app.control_http import AdminRoutes, create_admin_app
from forebay.app.control_inventory import InventoryRoutes
from forebay.app.control_limits import LimitRoutes
from forebay.app.control_matrix import MatrixRoutes
from forebay.app.control_oidc import OidcDoor
from forebay.app.control_plane import ControlPlane, SnapshotUnwritable
from forebay.app.control_registry import RegistryRoutes
from forebay.app.control_replicas import ReplicaRoutes
from forebay.app.control_roles import Doorkeeper
from forebay.app.control_server import AdminServer
from forebay.app.control_setup import ensure_local_key, load_admin_token
from forebay.app.control_signals import SignalRoutes
from forebay.app.control_tenancy import TenancyRoutes
from forebay.app.control_watch import ConfigWatch, load_saved_config
from forebay.app.database import open_database
from forebay.app.deployer_setup import DeployerParts
from forebay.app.deployment_setup import make_deployment_routes
from forebay.app.engine_probe import EngineProbe
from forebay.app.engine_watch import EngineWatch, load_known
from forebay.app.environments import open_environments
from forebay.app.live_amounts import LiveAmounts
from forebay.app.matrix import MatrixRepo
from forebay.app.model_registry import open_registry
from forebay.app.price_books import PriceBooks
from forebay.app.quota_opening import open_authority, open_fleet
from forebay.app.quota_server import QuotaServer
from forebay.app.redaction import log_to_stderr, redactor
from forebay.app.retention import Keeper
from forebay.app.secret_refs import keep_from_logs
from forebay.app.supervisor_socket import open_listener
from forebay.core.errors import ConfigInvalid, ForebayError
from forebay.gateway.repo_signals import SignalRepo
from forebay.gateway.repos import Repos
from forebay.ledger.ingest import Ingester, IngestLimits
from forebay.store.errors import StoreNewer

logger = logging.getLogger("forebay.control")

REFUSED: Final = 2  #: exit status of a start that can't succeed before somebody changes something
LAST_INGEST_S: Final = 5.0


class Control:
    """The parts of one control plane and their common life.

    Args:
        watch: the configuration.
        started: what the supervisor started with; it says where data lies.
        engine_urls: the engines that were started, by name.
        listen_fd: an inherited listening socket; None binds the configured address.
    """

    def __init__(
        self, watch: ConfigWatch, started: Config, engine_urls: Mapping[str, str], listen_fd: int | None
    ) -> None:
        clock, config = SystemClock(), started
        self._database = open_database(config)
        self._database.migrate()
        repos = Repos.open(self._database, clock)
        ensure_local_key(config.local_key_path, repos.keys)
        token = load_admin_token(config.admin_token_path)
        redactor.learn(token)
        keep_from_logs(list_secrets(watch.config))
        keep_from_logs(webhook.secret for webhook in watch.config.alerts.webhooks)
        self._quota = QuotaServer(config.run_path / "quota.sock", open_authority(config, clock), clock)
        self.board = BoardServer(config.run_path / "board.sock", open_fleet(config))
        signals = SignalRepo(self._database, clock)
        live = LiveAmounts(signals, self._quota, clock)
        limits = IngestLimits(keep_segments_s=config.ledger.keep_segments_s)
        books = PriceBooks(config.ledger_path)
        known = load_known(config.snapshot_path, config.run_path)
        engines = EngineWatch(self.board, EngineProbe(clock), config.run_path, known)
        self.deployments = DeployerParts(config, lambda: watch.config, self._database, clock)
        self._plane = ControlPlane(
            watch,
            started=started,
            keys=repos.keys,
            ingester=Ingester(
                self._database,
                config.ledger_path,
                clock,
                limits,
                get_prices=lambda: books.in_force(watch.config.prices.price_book),
                get_rollups=lambda: watch.config.ledger.rollups,
            ),
            engine_urls=engine_urls,
            snapshot_path=config.snapshot_path,
            created_s=int(config.admin_token_path.stat().st_mtime),
            clock=clock,
            quota=self._quota,
            live=live,
            books=books,
            keeper=Keeper(self._database, clock, lambda: watch.config.ledger),
            engines=engines,
            effective=self.deployments.effective,
        )
        self.deployments.attach(self._plane, engines, self.board.read)
        self._alerts = AlertParts(self._quota, self._database, lambda: watch.config.alerts, clock)
        fleet = FleetRoutes(engines, self.board, self.deployments.collector)
        matrix = MatrixRepo(self._database, clock)
        inventory = InventoryRoutes(
            fleet,
            self.deployments.store.list_current,
            self.deployments.deployer.statuses,
            matrix,
            open_environments(config),
        )
        parts = (
            AdminRoutes(self._plane, database=self._database, state_path=config.state_path, clock=clock),
            TenancyRoutes(self._plane, repos, clock),
            LimitRoutes(self._quota, clock, live),
            SignalRoutes(live, signals),
            ExplainRoutes(self._plane, self.board.read),
            fleet,
            ReplicaRoutes(lambda: self.deployments.deployer),
            MatrixRoutes(matrix),
            RegistryRoutes(
                open_registry(config, self._database, clock), self._database, lambda: watch.config
            ),
            inventory,
            self._alerts.routes,
            make_deployment_routes(
                self._database,
                self.deployments.repo,
                self.deployments.store,
                get_config=lambda: watch.config,
                get_statuses=self.deployments.deployer.statuses,
            ),
        )
        foreign = OidcDoor(lambda: watch.config.control.oidc, clock)
        app = create_admin_app(parts, self._plane, Doorkeeper(token, repos.tokens, foreign.identify))
        if listen_fd is None:
            listen_fd = open_listener(config.control.host, config.control.port, section="control").detach()
        self._server = AdminServer(app, listen_fd)

    async def run(self) -> None:
        """Until SIGTERM; then takes in what was recorded to the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._server.stop_accepting)
        await self.deployments.start()
        try:
            await self._plane.refresh_snapshot()
        except SnapshotUnwritable as error:
            logger.error("%s", error.message)
        await self.board.start()
        await self._quota.start()  # after that: it takes no worker in before it knows the limits
        async with asyncio.TaskGroup() as group:
            parts = self._plane, self._alerts, self.deployments
            loops = [group.create_task(part.run()) for part in parts]
            await self._server.serve()
            for task in loops:
                task.cancel()
        try:
            async with asyncio.timeout(LAST_INGEST_S):
                await self._plane.ingest_now()
        except TimeoutError:
            logger.warning("not all records were taken in; the next start does it")
        await self.board.say_goodbye()
        self._quota.close()
        self.board.close()
        self._database.close()


def load_configs(
    file: Path | None, data: Path, started_json: Path | None, *, is_expected: bool = True
) -> tuple[ConfigWatch, Config]:
    """The configuration to watch, and the one that everything was started with.

    Args:
        is_expected: whether the file was there when everything was started.

    Raises:
        ConfigInvalid: there is none that is valid.
    """
    origin = ConfigOrigin(folder=data.parent, file=None)
    defaults = Config.model_validate({"data": {"dir": str(data)}}, context=origin)
    started = None if started_json is None else load_saved_config(started_json, file)
    watch = ConfigWatch(
        file,
        saved=defaults.run_path / SAVED_CONFIG,
        defaults=defaults,
        is_expected=is_expected,
        started=started,
    )
    started = started or watch.config
    data_config = started.data.model_copy(update={"dir": defaults.data.dir})
    return watch, started.model_copy(update={"data": data_config})


def load_engine_urls(path: Path) -> dict[str, str]:
    """Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, str])


def main() -> int:
    parser = argparse.ArgumentParser(prog="forebay.app.control", description=__doc__)
    parser.add_argument("--config", required=True, help="forebay.yaml, or - for the defaults")
    parser.add_argument("--no-config-yet", action="store_true", help="it was not there at the start")
    parser.add_argument("--data", type=Path, required=True, help="the data folder, which exists")
    parser.add_argument("--engines-json", type=Path, required=True, help="engine names and their base URLs")
    parser.add_argument("--started-json", type=Path, help="the configuration that all was started with")
    parser.add_argument("--listen-fd", type=int, default=None)
    args = parser.parse_args()
    log_to_stderr()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    os.umask(0o077)
    try:
        file = None if args.config == "-" else Path(args.config)
        watch, started = load_configs(
            file, args.data.absolute(), args.started_json, is_expected=not args.no_config_yet
        )
        control = Control(watch, started, load_engine_urls(args.engines_json), args.listen_fd)
        gc.freeze()  # what is made by now stays: the collector looks at it no more, not even at the end
        asyncio.run(control.run())
    except (OSError, msgspec.MsgspecError, ForebayError) as error:
        print(redactor.redact(f"the control plane can't start: {error}"), file=sys.stderr)
        return REFUSED if isinstance(error, ConfigInvalid | StoreNewer) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
