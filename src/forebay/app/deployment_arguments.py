"""Arguments of engines that a manifest must not give: what Forebay sets itself, and what a version refuses.

The first is told with the setting to use instead.  Never starts an engine: what a version accepts has been
written down.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from forebay.app.config_deployments import ArgumentValue
from forebay.engines.arguments import ArgumentProblem, check_arguments

_VALUE: Final[TypeAdapter[Any]] = TypeAdapter(ArgumentValue)
_BY_FOREBAY: Final = "Forebay chooses it: leave it out"
#: Manifests are kept, shown and audited as they are written.
_SECRET: Final = "a manifest must hold no secret: set the variable HF_TOKEN where `forebay up` is started"
#: Arguments that Forebay sets itself, with the setting to use instead.
_OWN_EVERYWHERE: Final[Mapping[str, str]] = {
    "model": "use `source`",
    "host": _BY_FOREBAY,
    "port": _BY_FOREBAY,
    "api-key": _BY_FOREBAY,
    "max-loras": "use `adapters`",
}
_OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "llamacpp": {
        "name": "use `model`",
        "alias": "use `model`",
        "threads": "use `engine.threads`",
        "slots": "use `engine.slots`",
        "parallel": "use `engine.slots`",
        "context-tokens": "use `engine.context_tokens`",
        "ctx-size": "use `engine.context_tokens`",
        "lora": "use `adapters`",
        "model-draft": "use `speculation`",
        "ngram-tokens": "use `speculation`",
        "ngram-lookup": "use `speculation`",
        "draft-max": "use `speculation`",
    },
    "minilm": {
        "name": "use `model`",
        "threads": "use `engine.threads`",
        "batch-max": "use `engine.batch_max`",
    },
    "vllm": {
        "model-tag": "use `source`",
        "served-model-name": "use `model`",
        "max-model-len": "use `engine.context_tokens`",
        "max-num-seqs": "use `engine.slots`",
        "enable-lora": "use `adapters`",
        "lora-modules": "use `adapters`",
        "max-loras": "use `adapters`",
        "speculative-config": "use `speculation`",
        "uds": _BY_FOREBAY,
        "root-path": _BY_FOREBAY,
        "hf-token": _SECRET,
        "ssl-keyfile": _BY_FOREBAY,
        "ssl-certfile": _BY_FOREBAY,
    },
}


def find_argument_problems(
    kind: str, version: str, arguments: Mapping[str, Any]
) -> Iterator[ArgumentProblem]:
    """What is wrong with the arguments of an engine; those of a wrong type are passed over.

    Args:
        version: of the engine; empty: whichever is there.
    """
    own = {**_OWN_EVERYWHERE, **_OWN.get(kind, {})}
    others = {}
    for name, value in arguments.items():
        hint = own.get(name.replace("_", "-").lower())
        if hint is not None:
            yield ArgumentProblem(name=name, message="Forebay sets this argument itself", hint=hint)
            continue
        try:
            others[name] = _VALUE.validate_python(value)
        except ValidationError:
            continue  # which the setting itself reports
    yield from check_arguments(kind, version, others)
