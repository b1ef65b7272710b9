"""What applies where `forebay.yaml` is silent about engines and models.  Pure, and knows no pydantic."""

from collections.abc import Mapping
from typing import Any, Final

from forebay.core.routes import Endpoint
from forebay.engines.weights import EMBEDDED_GGUF, EMBEDDED_PREFIX

EMBEDDED_MODELS: Final = tuple(EMBEDDED_GGUF)  #: what `model: embedded:NAME` of a llama.cpp engine may name

#: What is on this machine without a word in the file.  A target may name these engines in any file.
EMBEDDED_ENGINES: Final[Mapping[str, Mapping[str, str]]] = {
    "smollm2-135m": {"kind": "llamacpp", "model": f"{EMBEDDED_PREFIX}smollm2-135m"},
    "minilm-l6-v2": {"kind": "minilm"},
}
ENDPOINTS_BY_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "llamacpp": (Endpoint.CHAT.value, Endpoint.COMPLETIONS.value),
    "minilm": (Endpoint.EMBEDDINGS.value,),
    "vllm": (Endpoint.CHAT.value, Endpoint.COMPLETIONS.value),
}


def fill_engines_and_models(data: Mapping[str, Any]) -> dict[str, Any]:
    """The rule for what the file leaves out.

    Engines of the file are always started, and embedded ones when a target names them.  Without `models`,
    every engine answers under its own name; without `engines` and `deployments` as well, both embedded ones
    do.
    """
    filled = {"data": {}, **data}
    if "models" not in filled:
        if filled.get("deployments"):
            filled.setdefault("engines", {})
        engines = filled.setdefault("engines", dict(EMBEDDED_ENGINES))
        filled["models"] = _name_models_after(engines)
    elif isinstance(filled["models"], Mapping) and isinstance(filled.get("engines", {}), Mapping):
        listed = filled.get("engines", {})
        named = _engines_named(filled["models"])
        extra = {name: EMBEDDED_ENGINES[name] for name in EMBEDDED_ENGINES if name in named - set(listed)}
        filled["engines"] = {**listed, **extra}
    return filled


def drop_left_out(data: Mapping[str, Any]) -> dict[str, Any]:
    """The values without the keys that have none: they count as left out.

    A name below `engines`, `models` or `deployments` stays, as an empty section, so that what it lacks is
    reported.
    """
    kept: dict[str, Any] = _drop_nulls(data)
    for section in ("engines", "models", "deployments"):
        names = data.get(section)
        if isinstance(names, Mapping):
            kept[section] = {name: kept[section].get(name, {}) for name in names}
    return kept


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _drop_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_drop_nulls(inner) for inner in value] if isinstance(value, list) else value


def _name_models_after(engines: object) -> dict[str, Any]:
    if not isinstance(engines, Mapping):
        return {}
    models: dict[str, Any] = {}
    for name, engine in engines.items():
        kind = engine.get("kind") if isinstance(engine, Mapping) else None
        if isinstance(kind, str) and kind in ENDPOINTS_BY_KIND:
            models[name] = {"endpoints": ENDPOINTS_BY_KIND[kind], "targets": [{"engine": name}]}
    return models


def _engines_named(models: Mapping[str, Any]) -> set[str]:
    named: set[str] = set()
    for model in models.values():
        targets = model.get("targets") if isinstance(model, Mapping) else None
        for target in targets if isinstance(targets, list | tuple) else ():
            if isinstance(target, Mapping) and isinstance(engine := target.get("engine"), str):
                named.add(engine)
    return named
