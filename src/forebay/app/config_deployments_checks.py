"""What concerns deployments together with other settings, with this machine, and with what engines accept.

Works on the raw values, as `config_checks` does, which calls it; so does whoever applies manifests.  Looks at
files and at the machine, and changes nothing.  What only exists where a launcher runs elsewhere (weights in a
container, the GPUs of a cluster) is not looked at.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from forebay.app.config_defaults import ENDPOINTS_BY_KIND
from forebay.app.config_problems import Severity
from forebay.app.config_source import KeyPath
from forebay.app.config_values import ConfigOrigin
from forebay.app.deployment_arguments import find_argument_problems
from forebay.engines.model import EngineRefused
from forebay.engines.weights import EMBEDDED_PREFIX, find_gguf
from forebay.registry.model import RegistryInvalid
from forebay.registry.reference import PREFIX as REGISTRY_PREFIX
from forebay.registry.reference import parse_source

Found = tuple[KeyPath, str, str, Severity, bool]
LOCAL: Final = "local"
KUBERNETES: Final = "kubernetes"
_GPU_FOLDER: Final = Path("/proc/driver/nvidia/gpus")
_MEMINFO: Final = Path("/proc/meminfo")
_MERGE: Final = "merge them into the weights, or run `kind: vllm`"
#: Settings that a kind has no use for: what it lacks, and what to do instead.
_FORBIDDEN: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "minilm": {
        "adapters": ("has no LoRA adapters", "remove it"),
        "speculation": ("has no speculative decoding", "remove it"),
    },
    "llamacpp": {"adapters": ("is started without LoRA adapters here", _MERGE)},
}


def check_deployments(data: Mapping[str, Any], origin: ConfigOrigin) -> Iterator[Found]:
    """Mistakes and warnings; settings of a wrong type are passed over, since they are reported already.

    Args:
        data: `deployments`, and what else of the configuration they lie beside.
    """
    for name, manifest in _mapping(data.get("deployments")).items():
        path: KeyPath = ("deployments", name)
        manifest = _mapping(manifest)
        yield from _check_name(data, path, name)
        yield from _check_kind(path, manifest)
        yield from _check_adapters(path, name, manifest)
        yield from _check_endpoints(data, path, name, manifest)
        yield from _check_arguments(path, manifest)
        yield from _check_references(data, path, manifest)
        if _find_launcher(data, manifest) == LOCAL:
            yield from _check_files(path, manifest, origin.folder)
            yield from _check_machine(path, manifest)


def _check_name(data: Mapping[str, Any], path: KeyPath, name: str) -> Iterator[Found]:
    for section, noun in (("pools", "a pool"), ("engines", "an engine")):
        if name in _mapping(data.get(section)):
            message = f"{noun} has that name too, and a deployment is a pool of its own name"
            yield path, message, f"rename it, or remove {section}.{name}", Severity.ERROR, False


def _check_kind(path: KeyPath, manifest: Mapping[str, Any]) -> Iterator[Found]:
    kind = _mapping(manifest.get("engine")).get("kind")
    for key, (lack, hint) in _FORBIDDEN.get(str(kind), {}).items():
        if manifest.get(key):
            yield (*path, key), f"{kind} {lack}", hint, Severity.ERROR, False
    if kind == "llamacpp" and _mapping(manifest.get("speculation")).get("method") == "draft":
        message = "llamacpp is started without a model that drafts here"
        hint = "set `method: ngram`, or run `kind: vllm`"
        yield (*path, "speculation", "method"), message, hint, Severity.ERROR, False


def _check_adapters(path: KeyPath, name: str, manifest: Mapping[str, Any]) -> Iterator[Found]:
    model = manifest.get("model", name)
    if model in _mapping(manifest.get("adapters")):
        message = "an adapter has the public name of the model itself"
        yield (*path, "adapters", model), message, "give it another name", Severity.ERROR, False


def _check_endpoints(
    data: Mapping[str, Any], path: KeyPath, name: str, manifest: Mapping[str, Any]
) -> Iterator[Found]:
    kind = _mapping(manifest.get("engine")).get("kind")
    able = ENDPOINTS_BY_KIND.get(str(kind))
    if able is None:
        return
    model = manifest.get("model", name)
    of_file = _mapping(_mapping(data.get("models")).get(model)).get("endpoints")
    for place, endpoints in (
        ((*path, "endpoints"), manifest.get("endpoints")),
        (("models", model, "endpoints"), of_file),
    ):
        known = {each for kinds in ENDPOINTS_BY_KIND.values() for each in kinds}
        for index, endpoint in enumerate(endpoints if isinstance(endpoints, list) else ()):
            if endpoint in known and endpoint not in able:
                message = f"{kind}, which deployment `{name}` runs, does not answer this endpoint"
                yield (*place, index), message, f"it answers {', '.join(able)}", Severity.ERROR, False


def _check_arguments(path: KeyPath, manifest: Mapping[str, Any]) -> Iterator[Found]:
    engine = _mapping(manifest.get("engine"))
    arguments = engine.get("arguments")
    if not isinstance(arguments, Mapping):
        return
    version = engine.get("version")
    kind = str(engine.get("kind"))
    given = {str(name): value for name, value in arguments.items()}
    for each in find_argument_problems(kind, version if isinstance(version, str) else "", given):
        place: KeyPath = (*path, "engine", "arguments", *((each.name,) if each.name else ()))
        yield place, each.message, each.hint, Severity(each.severity.value), False


def _check_references(data: Mapping[str, Any], path: KeyPath, manifest: Mapping[str, Any]) -> Iterator[Found]:
    """Whether whoever runs it could find what lies in the registry; what is there is not looked at here."""
    places = _mapping(_mapping(data.get("launchers")).get("kubernetes"))
    if _find_launcher(data, manifest) != KUBERNETES or places.get("models_path"):
        return
    for place, source in _list_sources(path, manifest):
        if isinstance(source, str) and source.startswith(REGISTRY_PREFIX):
            message = "pods can't find versions of the registry: nobody says where they lie on the cluster"
            hint = "set `launchers.kubernetes.models_path`, or give a path there"
            yield place, message, hint, Severity.ERROR, False


def check_file_references(data: Mapping[str, Any]) -> Iterator[Found]:
    """Of forebay.yaml: an alias in it would have what runs follow the alias, since nothing is applied."""
    for name, manifest in _mapping(data.get("deployments")).items():
        for place, source in _list_sources(("deployments", name), _mapping(manifest)):
            if not isinstance(source, str):
                continue
            try:
                reference = parse_source(source)
            except RegistryInvalid:
                continue  # the setting itself reports it
            if reference is not None and reference.alias and reference.pin is None:
                message = "an alias is pinned where a manifest is applied, and forebay.yaml is not"
                hint = f"name the version, such as `registry:{reference.name}@1`, or use `forebay apply`"
                yield place, message, hint, Severity.ERROR, False


def _list_sources(path: KeyPath, manifest: Mapping[str, Any]) -> tuple[tuple[KeyPath, object], ...]:
    draft = _mapping(manifest.get("speculation")).get("source")
    return ((*path, "source"), manifest.get("source")), ((*path, "speculation", "source"), draft)


# --- this machine -------------------------------------------------------------------------------------------


def _find_launcher(data: Mapping[str, Any], manifest: Mapping[str, Any]) -> object:
    return manifest.get("launcher") or _mapping(data.get("launchers")).get("default", LOCAL)


def _check_files(path: KeyPath, manifest: Mapping[str, Any], folder: Path) -> Iterator[Found]:
    kind = str(_mapping(manifest.get("engine")).get("kind"))
    for place, source in _list_sources(path, manifest):
        if not isinstance(source, str) or not source or source.startswith(REGISTRY_PREFIX):
            continue
        if not source.startswith(EMBEDDED_PREFIX):
            yield from _check_weights(place, folder, source, kind)
        elif kind == "vllm":
            hint = "give the path of a folder as Hugging Face has them"
            yield place, "vllm can't read the weights that come with Forebay", hint, Severity.ERROR, False
    for name, adapter in _mapping(manifest.get("adapters")).items():
        if isinstance(adapter, str) and (found := _resolve(folder, adapter)) and not found.exists():
            hint = "relative paths start at the folder of the file that names them"
            yield (*path, "adapters", name), f"there is no adapter at {found}", hint, Severity.ERROR, False


def _check_weights(path: KeyPath, folder: Path, source: str, kind: str) -> Iterator[Found]:
    if "://" in source:
        hint = "give their path, or run it elsewhere: `launcher: kubernetes`"
        yield path, "processes of this machine read weights from its disk", hint, Severity.ERROR, False
        return
    place = _resolve(folder, source)
    if place is None:
        return
    for message, hint in find_weights_problems(place, kind):
        yield path, message, hint, Severity.ERROR, False


def find_weights_problems(place: Path, kind: str) -> Iterator[tuple[str, str]]:
    """What is wrong with weights of this machine for a kind of engine, and how to mend it."""
    if kind == "llamacpp":
        try:
            find_gguf(str(place))
        except EngineRefused as refused:
            yield refused.message.rstrip("."), ""
    elif not place.exists():
        hint = "relative paths start at the folder of the file that names them"
        yield f"there are no weights at {place}", hint
    elif kind == "vllm" and place.is_dir() and not (place / "config.json").is_file():
        hint = "give the folder that holds config.json and the weights"
        yield f"{place} is no model as Hugging Face has them", hint


def _resolve(folder: Path, name: str) -> Path | None:
    try:
        return folder / Path(name).expanduser()
    except (RuntimeError, ValueError):
        return None  # the setting itself reports it


def _check_machine(path: KeyPath, manifest: Mapping[str, Any]) -> Iterator[Found]:
    """Whether one replica fits here at all; whether all do, the launcher knows, and has them wait."""
    resources = _mapping(manifest.get("resources"))
    for key, has, noun in (
        ("cpus", len(os.sched_getaffinity(0)), "cores"),
        ("gpus", _count_gpus(), "GPUs"),
        ("memory_mib", _count_memory_mib(), "MiB of memory"),
    ):
        wanted = resources.get(key)
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or has is None or wanted <= has:
            continue
        message = f"one replica wants {wanted:g}, and this machine has {has} {noun}"
        hint = "ask for less, or run it elsewhere: `launcher: ray` or `launcher: kubernetes`"
        yield (*path, "resources", key), message, hint, Severity.ERROR, False


def _count_gpus() -> int:
    try:
        return len(list(_GPU_FOLDER.iterdir()))
    except OSError:
        return 0


def _count_memory_mib() -> int | None:
    try:
        first = _MEMINFO.read_text().partition("\n")[0].split()
        return int(first[1]) // 1024
    except (OSError, IndexError, ValueError):
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
