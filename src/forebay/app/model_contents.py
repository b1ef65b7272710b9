"""Whether the contents that a deployment's references mean are on this machine, and of its engine's kind.

Looks at files and changes nothing.  What lies elsewhere, on nodes of a cluster, is not looked at.
"""

from collections.abc import Iterator

from forebay.app.config import Config
from forebay.app.config_deployments import DeploymentConfig
from forebay.app.config_deployments_checks import find_weights_problems
from forebay.app.model_references import find_models_folder
from forebay.engines.deployment import LauncherKind
from forebay.registry.disk import ContentStore
from forebay.registry.reference import parse_source

Problem = tuple[str, str, str]  #: the setting, what is wrong, and how to mend it


def find_content_problems(manifest: DeploymentConfig, config: Config) -> Iterator[Problem]:
    """Of references that are pinned."""
    launcher = manifest.launcher or config.launchers.default
    is_here = launcher is LauncherKind.LOCAL
    if not is_here and (launcher is not LauncherKind.RAY or config.launchers.ray.models):
        return
    store = ContentStore(find_models_folder(config))
    draft = manifest.speculation.source if manifest.speculation else None
    for key, source in (("source", manifest.source), ("speculation.source", draft)):
        reference = parse_source(source or "")
        if reference is None or reference.pin is None:
            continue
        if not store.has(reference.pin.digest):
            version = f"{reference.name}@{reference.pin.version}"
            message = f"the content of {version} is not on this machine, in {store.folder}"
            yield key, message, f"register it here too: `forebay models register {reference.name} PATH`"
        elif is_here:
            place = store.locate(reference.pin.digest)
            for message, hint in find_weights_problems(place, manifest.engine.kind):
                yield key, message, hint
