"""What concerns `mirrors` and the models that they name together.

Works on the raw values, as `config_checks` does, which calls it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from forebay.app.config_explain import suggest_hint
from forebay.app.config_pools_checks import list_deployed_models
from forebay.app.config_problems import Severity
from forebay.app.config_source import KeyPath

Found = tuple[KeyPath, str, str, Severity, bool]


def check_mirrors(data: Mapping[str, Any]) -> Iterator[Found]:
    """Mistakes and warnings; settings of a wrong type are passed over, since they are reported already."""
    models = {**list_deployed_models(data), **_mapping(data.get("models"))}
    for name, model in models.items():
        mirrors = _mapping(model).get("mirrors")
        seen: list[str] = []
        for index, mirror in enumerate(mirrors if isinstance(mirrors, list) else ()):
            other = _mapping(mirror).get("model")
            path: KeyPath = ("models", name, "mirrors", index, "model")
            if not isinstance(other, str):
                continue
            if other == name:
                message = "is the model itself: its copies would go where the requests go"
                hint = "make another model of the targets that are to get the copies, and name that"
                yield path, message, hint, Severity.ERROR, False
            elif other not in models:
                hint = suggest_hint(other, models, "the models are")
                yield path, "no model of that name", hint, Severity.ERROR, False
            elif other in seen:
                message = "stands twice in the list"
                yield path, message, "remove one, and raise the other's `share`", Severity.ERROR, False
            else:
                yield from _check_endpoints(path, name, model, models[other])
            seen.append(other)


def _check_endpoints(path: KeyPath, name: str, model: object, other: object) -> Iterator[Found]:
    asked, answered = _mapping(model).get("endpoints"), _mapping(other).get("endpoints")
    if not isinstance(asked, list) or not isinstance(answered, list):
        return
    left_out = [str(each) for each in asked if each not in answered]
    if len(left_out) == len(asked):
        message = f"answers none of the endpoints of `{name}`"
        yield path, message, "name a model that does", Severity.ERROR, False
    elif left_out:
        message = f"does not answer {', '.join(left_out)}, so those requests of `{name}` are not mirrored"
        yield path, message, "add the endpoints to that model if they should be", Severity.WARNING, False


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
