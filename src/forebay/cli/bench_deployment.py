"""What `forebay bench` measures of a deployment: its replicas, as the Forebay that runs here knows them.

Only asks that one; the configuration alone does not know where replicas are.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from forebay.app.bench_run import Target
from forebay.app.config import Config
from forebay.app.deployment_views import DeploymentList, DeploymentView
from forebay.cli.admin_client import fetch_admin
from forebay.cli.terminal import BadOption, Failure
from forebay.engines.deployment import ReplicaState

_EMBEDS: Final = "minilm"


def list_deployments(config: Config) -> Sequence[DeploymentView]:
    """All that the Forebay that runs here has; none where nothing answers."""
    with suppress(Failure):
        return DeploymentList.model_validate_json(fetch_admin(config, "/deployments")).data
    return ()


def find_replicas(view: DeploymentView, model: str | None, endpoint: str) -> Target:
    """Those of the revision that was asked for that are ready: all of them are the same.

    Raises:
        Failure: there is none.
        BadOption: its engine answers nothing that can be measured.
    """
    if view.engine.partition(" ")[0] == _EMBEDS:
        raise BadOption(
            f"the deployment {view.name} answers embeddings, and what is measured is tokens of answers",
            hint="name a deployment of a model that generates",
        )
    urls = [
        replica.url.rstrip("/")
        for replica in view.replicas
        if replica.state is ReplicaState.READY and replica.revision == view.revision and replica.url
    ]
    if not urls:
        why = f": {view.message}" if view.message else ""
        raise Failure(
            f"no replica of the deployment {view.name} is ready in revision {view.revision}{why}",
            hint=f"look at `forebay deployments {view.name}`",
        )
    return Target(urls=tuple(urls), model=model or view.model, endpoint=endpoint)
