"""Which engine environments deployments name, so that none of those is taken for unused.  Only reads."""

from collections.abc import Iterable, Mapping, Sequence

from forebay.app.config import Config
from forebay.app.database import open_database
from forebay.app.deployment_environments import compile_here
from forebay.app.deployment_records import DeploymentRecord
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_store import merge_manifests
from forebay.core.clock import Clock
from forebay.engines.deployment import Deployment
from forebay.store.errors import StoreMissing


def load_wanted(config: Config, clock: Clock) -> Mapping[str, str]:
    """Digests that deployments name, those of the file and those that were applied, and which do.

    Raises StoreError where it can't be known what was applied: then nothing may be taken for unused.
    """
    records: Sequence[DeploymentRecord] = ()
    try:
        database = open_database(config, create=False)
    except StoreMissing:
        pass
    else:
        try:
            database.migrate()
            records = DeploymentRepo(database, clock).list_current()
        finally:
            database.close()
    manifests, _ = merge_manifests(config, records)
    return list_wanted(compile_here(name, manifests[name], config) for name in sorted(manifests))


def list_wanted(deployments: Iterable[Deployment]) -> Mapping[str, str]:
    """Digests that deployments name, or how those begin, and which do."""
    wanted: dict[str, str] = {}
    for deployment in deployments:
        if digest := deployment.environment:
            named = wanted.get(digest)
            wanted[digest] = f"{named}, {deployment.name}" if named else f"deployment {deployment.name}"
    return wanted
