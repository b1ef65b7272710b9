"""Wires the admin API's routes about deployments to what they stand on."""

from collections.abc import Callable

from forebay.app.config import Config
from forebay.app.control_deployments import DeploymentRoutes, Statuses
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_service import DeploymentService
from forebay.app.deployment_store import DeploymentStore
from forebay.app.matrix import load_trials
from forebay.store.database import Database


def make_deployment_routes(
    database: Database,
    repo: DeploymentRepo,
    store: DeploymentStore,
    *,
    get_config: Callable[[], Config],
    get_statuses: Callable[[], Statuses],
) -> DeploymentRoutes:
    """
    Args:
        repo: what was applied, in the database.
        store: what is to run.
        get_config: the file's configuration in force.
        get_statuses: what has become of each deployment.
    """
    service = DeploymentService(repo, get_config, lambda: load_trials(database))
    return DeploymentRoutes(store, repo, service, get_config, get_statuses)
