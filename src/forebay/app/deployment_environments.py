"""Which environment of an engine a deployment runs in, where its manifest does not name one by its digest.

For replicas of this machine alone: elsewhere a container or a node has what it needs.  It looks at what is
built, and builds nothing.
"""

import msgspec

from forebay.app.config import Config
from forebay.app.config_deployments import DeploymentConfig
from forebay.app.deployment_compile import compile_deployment
from forebay.app.environments import open_environments, resolve_environment
from forebay.app.model_references import find_models_folder
from forebay.engines.deployment import Deployment, LauncherKind
from forebay.engines.environment import BuiltEnvironment, EnvironmentInvalid

_NEVER_OURS = frozenset({"vllm"})  #: kinds that Forebay's own environment does not hold


def compile_here(name: str, manifest: DeploymentConfig, config: Config) -> Deployment:
    """What is to run, with its environment; without one where that is not built, which `explain` says."""
    return complete(compile_deployment(name, manifest, config.launchers, find_models_folder(config)), config)


def complete(deployment: Deployment, config: Config) -> Deployment:
    """With the digest of its environment and the engine's version there, so far as that is known."""
    if not needs_environment(deployment):
        return deployment
    try:
        built = _find(deployment, config)
    except (EnvironmentInvalid, OSError):
        return deployment
    spec = msgspec.structs.replace(deployment.spec, version=built.version)
    return msgspec.structs.replace(deployment, environment=built.digest, spec=spec)


def explain(deployment: Deployment, config: Config) -> str:
    """Why it has no environment to run in, and how to mend that; empty where it has, or needs none."""
    if not needs_environment(deployment):
        return ""
    try:
        _find(deployment, config)
    except EnvironmentInvalid as error:
        return error.message
    except OSError as error:
        return f"its environment can't be read: {error}"
    return ""


def needs_environment(deployment: Deployment) -> bool:
    """Whether it does not run in Forebay's own."""
    if deployment.launcher is not LauncherKind.LOCAL:
        return False
    spec = deployment.spec
    return bool(deployment.environment or spec.version) or spec.kind in _NEVER_OURS


def _find(deployment: Deployment, config: Config) -> BuiltEnvironment:
    return resolve_environment(
        open_environments(config),
        deployment.environment,
        engine=deployment.spec.kind,
        version=deployment.spec.version,
        hardware=deployment.hardware,
    )
