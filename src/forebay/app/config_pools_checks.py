"""What concerns `pools`, the targets that name them, and `fallbacks` together.

Works on the raw values, as `config_checks` does, which calls it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from forebay.app.config_explain import suggest_hint
from forebay.app.config_problems import Severity
from forebay.app.config_source import KeyPath

#: Endpoints whose streams may begin with a filler.
FILLED = frozenset({"chat/completions", "completions", "messages", "responses"})
#: Settings of `routing` that mean something only where a place is chosen by load.
_FLEET_ONLY = frozenset(
    {"affinity", "prefix_bytes", "price_s_per_usd", "queue", "queue_wait_max_s", "spill_at"}
)
Found = tuple[KeyPath, str, str, Severity, bool]


def check_pools(data: Mapping[str, Any]) -> Iterator[Found]:
    """Mistakes and warnings; settings of a wrong type are passed over, since they are reported already."""
    pools = {**_list_deployed(data), **_mapping(data.get("pools"))}
    named = set()
    for target, path in _list_targets(data):
        pool = target.get("pool")
        if not isinstance(pool, str):
            continue
        named.add(pool)
        if "engine" not in target and "url" not in target:
            yield from _check_replicas((*path, "pool"), pools, pool)
        elif pools and pool not in pools:
            hint = suggest_hint(pool, pools, "the pools are")
            yield (*path, "pool"), "stands not under `pools`", hint, Severity.WARNING, False
    for name, pool in _mapping(data.get("pools")).items():
        if "models" in data and name not in named:
            yield ("pools", name), "no target names this pool", "name it in one", Severity.WARNING, False
        replicas = _mapping(pool).get("replicas")
        urls = replicas if isinstance(replicas, list) else []
        for index, url in enumerate(urls):
            if url in urls[:index]:
                place: KeyPath = ("pools", name, "replicas", index)
                yield place, "stands twice in the list", "remove one", Severity.ERROR, False
    yield from _check_weights(data, pools)
    yield from _check_fallbacks(data)
    yield from _check_fillers(data)
    yield from _check_idle_settings(data, pools)


def _list_deployed(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What deployments are as pools: their replicas come and go."""
    return {
        name: {"tier": _mapping(each).get("tier", "provisioned"), "replicas": [f"those of {name}"]}
        for name, each in _mapping(data.get("deployments")).items()
    }


def has_place(target: Mapping[str, Any]) -> bool:
    """Whether a target says where it is."""
    return any(key in target for key in ("engine", "url", "pool"))


def _check_replicas(path: KeyPath, pools: Mapping[str, Any], pool: str) -> Iterator[Found]:
    if pool not in pools:
        if not pools:
            hint = "name an engine of this file or an address, or describe the pool under `pools`"
            yield path, "the target has neither `engine` nor `url`", hint, Severity.ERROR, False
        else:
            hint = suggest_hint(pool, pools, "the pools are")
            yield path, "no pool of that name", hint, Severity.ERROR, False
    elif not _mapping(pools[pool]).get("replicas"):
        hint = f"give the target an `engine` or a `url`, or `pools.{pool}` its `replicas`"
        yield path, "the target names no place, and the pool no replicas", hint, Severity.ERROR, False


def _check_weights(data: Mapping[str, Any], pools: Mapping[str, Any]) -> Iterator[Found]:
    """Who gives one target of a tier a weight, and forgets the others, sends it everything."""
    weighted = set()
    bare = []
    for target, path in _list_targets(data):
        pool = target.get("pool")
        own = _mapping(pools.get(pool)) if isinstance(pool, str) else {}
        tier = target.get("tier") or own.get("tier") or ("provisioned" if "engine" in target else "provider")
        if not isinstance(tier, str):
            continue
        if target.get("weight") is None:
            bare.append(((path[1], tier), path))
        elif target["weight"] != 0:
            weighted.add((path[1], tier))
    for kind, path in bare:
        if kind in weighted:
            message = f"has no `weight`, though others of the tier `{kind[1]}` have: it is sent nothing first"
            yield path, message, "give each target of the tier a `weight`", Severity.WARNING, False


def _check_fallbacks(data: Mapping[str, Any]) -> Iterator[Found]:
    models = {**list_deployed_models(data), **_mapping(data.get("models"))}
    for name, model in models.items():
        fallbacks = _mapping(model).get("fallbacks")
        names = fallbacks if isinstance(fallbacks, list) else []
        for index, other in enumerate(names):
            path: KeyPath = ("models", name, "fallbacks", index)
            if not isinstance(other, str):
                continue
            if other == name:
                yield path, "is the model itself", "remove it", Severity.ERROR, False
            elif other not in models:
                hint = suggest_hint(other, models, "the models are")
                yield path, "no model of that name", hint, Severity.ERROR, False
            elif other in names[:index]:
                yield path, "stands twice in the list", "remove one", Severity.ERROR, False
            elif not _shares_endpoint(model, models[other]):
                message = f"answers none of the endpoints of `{name}`"
                yield path, message, "name a model that does", Severity.ERROR, False


def list_deployed_models(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The public names that there are because of deployments; what they answer is not looked at."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, each in _mapping(data.get("deployments")).items():
        model = _mapping(each).get("model", name)
        if isinstance(model, str):
            found[model] = {}
        found.update({adapter: {} for adapter in _mapping(_mapping(each).get("adapters"))})
    return found


def _check_fillers(data: Mapping[str, Any]) -> Iterator[Found]:
    for name, model in _mapping(data.get("models")).items():
        endpoints = _mapping(model).get("endpoints")
        filler = _mapping(_mapping(model).get("routing")).get("filler")
        if filler is None or not isinstance(endpoints, list) or FILLED.intersection(map(str, endpoints)):
            continue
        path: KeyPath = ("models", name, "routing", "filler")
        message = f"no answer of `{name}` can begin with it: its endpoints give no streams of text"
        yield path, message, "remove it", Severity.WARNING, False


def _check_idle_settings(data: Mapping[str, Any], pools: Mapping[str, Any]) -> Iterator[Found]:
    """Settings of a fleet in a model whose targets are tried in the order of the file."""
    for name, model in _mapping(data.get("models")).items():
        routing, targets = _mapping(_mapping(model).get("routing")), _mapping(model).get("targets")
        if routing.get("order") == "load" or not isinstance(targets, list):
            continue
        is_fleet = any(_is_of_fleet(_mapping(target), pools) for target in targets)
        if is_fleet and routing.get("order") != "listed":
            continue
        for setting in sorted(_FLEET_ONLY.intersection(map(str, routing))):
            path: KeyPath = ("models", name, "routing", setting)
            message = f"has no effect: the targets of `{name}` are tried in the order of the file"
            hint = "let them name one of `pools`, or set `order: load`"
            yield path, message, hint, Severity.WARNING, False


def _is_of_fleet(target: Mapping[str, Any], pools: Mapping[str, Any]) -> bool:
    return "weight" in target or str(target.get("pool")) in pools


def _shares_endpoint(model: object, other: object) -> bool:
    """Whether a model may stand in for another; True where one of them has no list, which is told already."""
    asked, answered = _mapping(model).get("endpoints"), _mapping(other).get("endpoints")
    if not isinstance(asked, list) or not isinstance(answered, list):
        return True
    return any(each in answered for each in asked)


def _list_targets(data: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], KeyPath]]:
    for name, model in _mapping(data.get("models")).items():
        targets = _mapping(model).get("targets")
        for index, target in enumerate(targets if isinstance(targets, list) else ()):
            if isinstance(target, Mapping):
                yield target, ("models", name, "targets", index)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
