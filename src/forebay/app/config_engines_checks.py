"""What a pool's settings about its engines mean together with those of targets and with the world outside.

Works on the raw values, as `config_checks` does, which calls it.  Looks at files, and changes nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from forebay.app.config_engines import AUTO, KINDS, WARMED_ENDPOINTS, read_prompts
from forebay.app.config_explain import suggest
from forebay.app.config_problems import Severity, format_key
from forebay.app.config_source import KeyPath
from forebay.app.config_values import ConfigOrigin
from forebay.engines.load_names import EngineKind, find_kind

Found = tuple[KeyPath, str, str, Severity, bool]
_WARMED_DIALECT: Final = "openai"


def check_pool_engines(data: Mapping[str, Any], origin: ConfigOrigin) -> Iterator[Found]:
    """Mistakes; settings of a wrong type are passed over, since they are reported already."""
    for name, pool in _mapping(data.get("pools")).items():
        yield from _check_metrics(("pools", name), _mapping(pool))
        yield from _check_prompts(("pools", name, "warm_up"), _mapping(_mapping(pool).get("warm_up")), origin)
    for model_name, model in _mapping(data.get("models")).items():
        targets = _mapping(model).get("targets")
        for index, target in enumerate(targets if isinstance(targets, list) else ()):
            path: KeyPath = ("models", model_name, "targets", index)
            yield from _check_warmth(data, _mapping(model), _mapping(target), path)


def _check_metrics(path: KeyPath, pool: Mapping[str, Any]) -> Iterator[Found]:
    metrics, engine, replicas = pool.get("metrics"), pool.get("engine"), pool.get("replicas")
    is_unknown = isinstance(engine, str) and find_kind(engine) is None
    if metrics is None and is_unknown and (close := suggest(str(engine), list(EngineKind))) is not None:
        message = "no engine of that name is asked for its load"
        yield (*path, "engine"), message, f"did you mean `{close}`?", Severity.WARNING, False
    place = (*path, "metrics")
    if metrics == AUTO and not (isinstance(engine, str) and find_kind(engine)):
        hint = f"say which `engine` it is, of {KINDS}, or give the path of its metrics page"
        yield place, "nobody knows where an engine of that name tells its load", hint, Severity.ERROR, False
    is_address = isinstance(metrics, str) and metrics.startswith(("http:", "https:"))
    if is_address and isinstance(replicas, list) and len(replicas) > 1:
        hint = "give a path, which each replica has at its own address, such as :8002/metrics"
        yield place, "one address can't be the page of several replicas", hint, Severity.ERROR, False


def _check_prompts(path: KeyPath, warm_up: Mapping[str, Any], origin: ConfigOrigin) -> Iterator[Found]:
    file = warm_up.get("prompts_file")
    if not isinstance(file, str) or "\0" in file:
        return
    try:
        read_prompts(origin.folder / Path(file).expanduser())
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "a text file in UTF-8, at most 1 MiB, with a prompt a line"
        yield (*path, "prompts_file"), f"can't be used: {reason}", hint, Severity.ERROR, False


def _check_warmth(
    data: Mapping[str, Any], model: Mapping[str, Any], target: Mapping[str, Any], path: KeyPath
) -> Iterator[Found]:
    name = target.get("pool")
    pool = _mapping(_mapping(data.get("pools")).get(name)) if isinstance(name, str) else {}
    if not isinstance(pool.get("warm_up"), Mapping):
        return
    place: KeyPath = ("pools", str(name), "warm_up")
    dialect, endpoints = target.get("dialect", _WARMED_DIALECT), model.get("endpoints")
    if dialect != _WARMED_DIALECT:
        message = (
            f"{format_key(path)} speaks `{dialect}`, and only servers that speak `openai` can be warmed up"
        )
        yield place, message, "give that target another pool", Severity.ERROR, False
    elif isinstance(endpoints, list) and not any(each in endpoints for each in WARMED_ENDPOINTS):
        listed = ", ".join(WARMED_ENDPOINTS)
        message = (
            f"the model of {format_key(path)} answers none of {listed}, with which a replica is warmed up"
        )
        yield place, message, "give that target another pool", Severity.ERROR, False


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
