"""`forebay render`: deployments as objects of Kubernetes or KServe, for whoever applies those by other means.

Reads forebay.yaml alone and asks no cluster anything.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from forebay.app.config import load_config
from forebay.app.deployment_compile import compile_deployments
from forebay.cli.terminal import BadOption, Outcome, print_error, print_line, print_note
from forebay.engines.deployment import Deployment
from forebay.engines.kube_objects import ClusterPlace, Object
from forebay.engines.kube_serving import (
    render_inference_service,
    render_llm_inference_service,
    render_manifests,
)
from forebay.engines.model import LauncherError

FORMS: Final[Mapping[str, Callable[[Deployment, ClusterPlace], Sequence[Object]]]] = {
    "kubernetes": render_manifests,
    "kserve": lambda deployment, place: [render_inference_service(deployment, place)],
    "kserve-llm": lambda deployment, place: [render_llm_inference_service(deployment, place)],
}
#: What some reader of YAML takes for a number, a time or a truth where it stands without quotes.
_AMBIGUOUS: Final = re.compile(r"[-+.0-9].*|y|n|yes|no|on|off|true|false|null|~", re.IGNORECASE)


def render(file: Path | None, names: Sequence[str], form: str) -> Outcome:
    if form not in FORMS:
        raise BadOption(f"no such form: {form}", hint=f"the forms are {', '.join(FORMS)}")
    config = load_config(file, secrets_needed=False)
    known = {each.name: each for each in compile_deployments(config.deployments, config.launchers)}
    if unknown := [name for name in names if name not in known]:
        there = ", ".join(known) or "none: forebay.yaml has no `deployments`"
        raise BadOption(f"no deployment is called {unknown[0]}", hint=f"there are {there}")
    place = config.launchers.kubernetes.compile_place()
    objects: list[Object] = []
    try:
        for name in names or known:
            objects += FORMS[form](known[name], place)
    except LauncherError as error:
        print_error(error.message)
        return Outcome.PROBLEM
    if not objects:
        print_note("forebay.yaml has no `deployments`; docs/deployments.md says how one is written")
    print_line(format_objects(objects).rstrip("\n"))
    return Outcome.OK


def format_objects(objects: Sequence[Object]) -> str:
    """YAML that every reader takes alike."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Quotes what could be taken for anything but text, and writes what is there twice out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "'" if _AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
