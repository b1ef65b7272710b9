"""What engines call their load on their metrics pages, and where those pages and their health are.  Pure.

One row for each engine; names are from the engines' own documentation.  A quantity that an engine has renamed
has several names, of which the first on a page counts.  Nothing here reads a page.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class EngineKind(StrEnum):
    """Software that runs models, as far as its load can be read."""

    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    TRITON = "triton"
    SGLANG = "sglang"
    TGI = "tgi"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadNames:
    """Where an engine says what.

    Attributes:
        metrics: the page's place: a path, with a port before it where that is not the API's.
        health: path that tells whether the engine serves.
        model_label: names the model of a sample, where the page tells them apart.
        running, waiting, kv_cache_used: gauges; the last is a share from 0 to 1.
        queue_sum, queue_count: counters: time spent in the engine's queue, and by how many requests.
        generated: a counter that rises while the engine generates.
        queue_unit_s: what one of `queue_sum` is, in seconds.
        interval_s: between two looks.
    """

    metrics: str = "/metrics"
    health: str = "/health"
    model_label: str = ""
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_cache_used: tuple[str, ...] = ()
    queue_sum: str = ""
    queue_count: tuple[str, ...] = ()
    queue_unit_s: float = 1.0
    generated: tuple[str, ...] = ()
    interval_s: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        single = (self.queue_sum,) if self.queue_sum else ()
        return (
            *self.running,
            *self.waiting,
            *self.kv_cache_used,
            *single,
            *self.queue_count,
            *self.generated,
        )


LOAD_NAMES: Final[Mapping[EngineKind, LoadNames]] = {
    EngineKind.VLLM: LoadNames(
        model_label="model_name",
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_cache_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        queue_sum="vllm:request_queue_time_seconds_sum",
        queue_count=("vllm:request_queue_time_seconds_count",),
        generated=("vllm:generation_tokens_total",),
    ),
    EngineKind.LLAMA_CPP: LoadNames(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_cache_used=("llamacpp:kv_cache_usage_ratio",),  # of older builds; newer ones do not say
        # Tokens are counted when a request has ended, runs of the model at once.
        generated=("llamacpp:n_decode_total", "llamacpp:tokens_predicted_total"),
        # Each look wakes whatever waits for a result there, and only after a second of silence a caller who
        # has left is noticed.
        interval_s=3.0,
    ),
    EngineKind.TRITON: LoadNames(
        metrics=":8002/metrics",
        health="/v2/health/ready",
        model_label="model",
        waiting=("nv_inference_pending_request_count",),
        queue_sum="nv_inference_queue_duration_us",
        # Of requests, as the durations are: several may be in one of `nv_inference_exec_count`.
        queue_count=("nv_inference_request_success",),
        queue_unit_s=1e-6,
        generated=("nv_inference_request_success",),
    ),
    EngineKind.SGLANG: LoadNames(
        model_label="model_name",
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_cache_used=("sglang:token_usage",),
        queue_sum="sglang:queue_time_seconds_sum",
        queue_count=("sglang:queue_time_seconds_count",),
        generated=("sglang:generation_tokens_total",),
    ),
    EngineKind.TGI: LoadNames(
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        queue_sum="tgi_request_queue_duration_sum",
        queue_count=("tgi_request_queue_duration_count",),
        generated=("tgi_request_success",),
    ),
}

#: Of vLLM: which adapters requests run with or wait for.  Its value is the time at which that was so, and the
#: lines of earlier times stay on the page.
ADAPTERS_INFO: Final = "vllm:lora_requests_info"
ADAPTER_LABELS: Final = ("running_lora_adapters", "waiting_lora_adapters")

_ALIASES: Final = {
    "llamacpp": EngineKind.LLAMA_CPP,
    "llama-cpp": EngineKind.LLAMA_CPP,
    "llama-server": EngineKind.LLAMA_CPP,
    "text-generation-inference": EngineKind.TGI,
}


def find_kind(label: str) -> EngineKind | None:
    """The engine that a pool's `engine` names; None for one whose load nobody can read."""
    name = label.lower()
    known = _ALIASES.get(name)
    if known is None and name in EngineKind._value2member_map_:
        known = EngineKind(name)
    return known
