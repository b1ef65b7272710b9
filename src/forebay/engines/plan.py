"""Decides how each kind of engine is launched: pure, from a specification to a plan.

Never starts a process and never looks at the disk: whether the weights are there is the engine's to say.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from forebay.engines.model import DRAIN_S, EngineKindUnknown, EngineSpec, LaunchPlan
from forebay.engines.vllm_options import MODULE, compose_vllm_options, compose_vllm_variables

STOP_MARGIN_S: Final = 5.0
VLLM_STOP_MARGIN_S: Final = 30.0  #: several processes that end one after the other
Options = Mapping[str, str | int | float]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine is to listen."""

    port: int
    host: str = "127.0.0.1"
    python: str = sys.executable


def plan_engine(spec: EngineSpec, place: Place) -> LaunchPlan:
    """The plan of an engine of any known kind.

    Raises:
        EngineKindUnknown
    """
    try:
        plan = PLANS[spec.kind]
    except KeyError:
        known = ", ".join(sorted(PLANS))
        raise EngineKindUnknown(
            f"engine {spec.name}: no kind {spec.kind!r}. The kinds are {known}.", param="kind"
        ) from None
    return plan(spec, place)


def _plan_llamacpp(spec: EngineSpec, place: Place) -> LaunchPlan:
    options: Options = {
        "--model": spec.model or "embedded:smollm2-135m",
        "--alias": spec.name,
        "--threads": spec.threads,
        "--slots": spec.slots,
        "--context-tokens": spec.context_tokens,
        **_list_speculation(spec),
        **{f"--{name}": str(value) for name, value in spec.arguments.items()},
    }
    url = _format_url(place)
    return LaunchPlan(
        argv=_compose_argv("forebay.engines.llamacpp", spec, place, options),
        env={},
        health_url=f"{url}/health",
        probe_url=f"{url}/v1/completions",
        probe_body=msgspec.json.encode({"model": spec.name, "prompt": "Hello", "max_tokens": 1}),
        ready_timeout_s=300.0,  # weights of tens of gigabytes are read from a disk first
        stop_timeout_s=DRAIN_S + STOP_MARGIN_S,
    )


def _list_speculation(spec: EngineSpec) -> Options:
    """Of n-grams alone: a draft model is not loaded beside the model here, and the check of the configuration
    refuses one.
    """
    speculation = spec.speculation
    if speculation is None or speculation.method != "ngram":
        return {}
    return {"--ngram-tokens": speculation.tokens, "--ngram-lookup": speculation.lookup_max}


def _plan_minilm(spec: EngineSpec, place: Place) -> LaunchPlan:
    options: Options = {"--threads": spec.threads, "--batch-max": spec.batch_max}
    url = _format_url(place)
    return LaunchPlan(
        argv=_compose_argv("forebay.engines.embeddings", spec, place, options),
        env={"PROMETHEUS_DISABLE_CREATED_SERIES": "true"},  # half of /metrics, and read by nobody
        health_url=f"{url}/health",
        probe_url=f"{url}/v1/embeddings",
        probe_body=msgspec.json.encode({"model": spec.name, "input": "Hello"}),
        ready_timeout_s=60.0,
        stop_timeout_s=DRAIN_S + STOP_MARGIN_S,
    )


def _plan_vllm(spec: EngineSpec, place: Place) -> LaunchPlan:
    """Needs the interpreter of an environment of vLLM as the place's Python."""
    url = _format_url(place)
    address = (f"--host={place.host}", f"--port={place.port}")
    return LaunchPlan(
        argv=(
            *(place.python, "-m", MODULE, "serve", f"--model={spec.model}"),
            *address,
            *compose_vllm_options(spec),
        ),
        env=compose_vllm_variables(spec),
        health_url=f"{url}/health",
        probe_url=f"{url}/v1/completions",
        probe_body=msgspec.json.encode({"model": spec.name, "prompt": "Hello", "max_tokens": 1}),
        # Its imports alone are two minutes of processor time on a slow machine; large weights come on top.
        ready_timeout_s=1800.0,
        stop_timeout_s=DRAIN_S + VLLM_STOP_MARGIN_S,
    )


PLANS: Final[Mapping[str, Callable[[EngineSpec, Place], LaunchPlan]]] = {
    "llamacpp": _plan_llamacpp,
    "minilm": _plan_minilm,
    "vllm": _plan_vllm,
}


def _format_url(place: Place) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"http://{host}:{place.port}"


def _compose_argv(module: str, spec: EngineSpec, place: Place, options: Options) -> tuple[str, ...]:
    """One `--option=value` each, so that a value that starts with a dash stays a value."""
    everywhere: Options = {"--name": spec.name, "--host": place.host, "--port": place.port}
    values = [f"{option}={value}" for option, value in {**everywhere, **options}.items()]
    return (place.python, "-m", module, *values)
