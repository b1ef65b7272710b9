"""The command line of `vllm serve`, and what it is told in its environment: pure, from a specification.

Names are those of vLLM's own arguments.  What a specification says itself (address, name, context, slots,
adapters, speculation) can't be said a second time among its `arguments`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from forebay.engines.model import DRAIN_S, Argument, EngineSpec, Speculation

MODULE: Final = "vllm.entrypoints.cli.main"
#: Arguments that the specification sets itself, and by which of its fields.
OWNED: Final[Mapping[str, str]] = {
    "model": "model",
    "host": "the address that the launcher gives",
    "port": "the address that the launcher gives",
    "uds": "the address that the launcher gives",
    "served-model-name": "the name of the engine",
    "max-model-len": "context_tokens",
    "max-num-seqs": "slots",
    "lora-modules": "adapters",
    "speculative-config": "speculation",
}
#: The embedded processor backend holds these where the specification says nothing of them.
DEFAULTS: Final[Mapping[str, Argument]] = {
    # In flight leaves first: vLLM's own default of 0 ends all answers at SIGTERM.
    "shutdown-timeout": int(DRAIN_S),
}
LORA_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)


def compose_vllm_options(spec: EngineSpec) -> tuple[str, ...]:
    """All options but the address, one string each where a value may start with a dash."""
    return tuple(_list_options(spec))


def _list_options(spec: EngineSpec) -> Iterator[str]:
    yield f"--served-model-name={spec.name}"
    yield f"--max-model-len={spec.context_tokens}"
    yield f"--max-num-seqs={spec.slots}"
    arguments = {**DEFAULTS, **spec.arguments}
    if spec.adapters:
        arguments = {"enable-lora": True, "max-loras": min(len(spec.adapters), 8), **arguments}
    for name, value in arguments.items():
        yield from format_argument(name, value)
    if spec.adapters:
        yield "--lora-modules"
        for name, path in spec.adapters.items():
            yield msgspec.json.encode({"name": name, "path": path}).decode()
    if spec.speculation is not None:
        settings = msgspec.json.encode(describe_speculation(spec.speculation)).decode()
        yield f"--speculative-config={settings}"


def format_argument(name: str, value: Argument) -> tuple[str, ...]:
    """An argument as vLLM's command line takes it: `--name`, `--no-name`, `--name=value`, `--name a b`."""
    match value:
        case True:
            return (f"--{name}",)
        case False:
            return (f"--no-{name}",)
        case tuple():
            return (f"--{name}", *map(str, value))
        case _:
            return (f"--{name}={value}",)


def describe_speculation(speculation: Speculation) -> dict[str, str | int]:
    """In vLLM's words."""
    if speculation.method == "ngram":
        return {
            "method": "ngram",
            "num_speculative_tokens": speculation.tokens,
            "prompt_lookup_max": speculation.lookup_max,
        }
    return {
        "method": "draft_model" if speculation.method == "draft" else speculation.method,
        "model": speculation.model,
        "num_speculative_tokens": speculation.tokens,
    }


def compose_vllm_variables(spec: EngineSpec) -> dict[str, str]:
    """Of its process: nothing is told to anybody, nothing is fetched, no core is taken that was not given."""
    return {
        "OMP_NUM_THREADS": str(spec.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding would lay all replicas on the same first cores
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
