"""Arguments of engines that a manifest must not give: what Forebay sets itself, and what a version refuses.

Each is told with the setting to use instead.  Pure, and never starts an engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentProblem:
    name: str
    message: str
    hint: str


_BY_FOREBAY: Final = "Forebay chooses it: leave it out"
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
        "ssl-keyfile": _BY_FOREBAY,
        "ssl-certfile": _BY_FOREBAY,
    },
}


def find_argument_problems(
    kind: str, version: str, arguments: Mapping[str, Any]
) -> Iterator[ArgumentProblem]:
    """What is wrong with the arguments of an engine; its kind and their types have been looked at.

    Args:
        version: of the engine; empty: whichever is there.
    """
    own = {**_OWN_EVERYWHERE, **_OWN.get(kind, {})}
    for name in arguments:
        hint = own.get(name.replace("_", "-").lower())
        if hint is not None:
            yield ArgumentProblem(name=name, message="Forebay sets this argument itself", hint=hint)
