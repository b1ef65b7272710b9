"""An engine that says of its load what a test wants: its metrics page, its health, its models, and answers.

    engine = FakeEngine(EngineKind.VLLM, running=3, waiting=1, kv_cache_used=0.5)
    async with ScriptedUpstream(engine.handle) as upstream:
        ...
        engine.waiting = 20

What it shows is read at each request, so it may be changed at any time.  The pages look like the engines'
own, with lines before, between and after that are of no interest, and they are made here: none is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay.engines.load_names import EngineKind
from forebay.testing.answers import answer, json_answer, sse_answer
from forebay.testing.openai import chat_completion, chat_stream, completion, completion_stream, embeddings
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Sleep

STUCK_S = 3600.0  #: until an engine that is stuck answers a generation
_TEXT = [("content-type", "text/plain; version=0.0.4; charset=utf-8")]


@dataclass(slots=True, kw_only=True)
class Waits:
    """What an engine's queue has cost since it began to count."""

    total_s: float = 0.0
    requests: int = 0

    def add(self, *seconds: float) -> None:
        """Requests have left the queue after so long."""
        self.total_s += sum(seconds)
        self.requests += len(seconds)


@dataclass(slots=True)
class FakeEngine:
    """See the module.

    Attributes:
        adapters: that it lists among its models.
        running_adapters: that requests run with at this moment.
        status: of its health; 503 is an engine that has failed, or is `loading`.
        page: the whole page, instead of what the other attributes say.
        generated: how many generations it has answered well.
        fail_generations: so many of the next generations are answered 500.
        answer_s: seconds until a generation is answered.
        is_stuck: whether it answers all but generations.
        counted: tokens that it says it has generated; None where it does not say.
        context_window, version, real_name: what it says of itself, where it says so.
        has_vision: whether llama.cpp's model takes images; None where it does not say.
    """

    kind: EngineKind = EngineKind.VLLM
    model: str = "m"
    running: int = 0
    waiting: int = 0
    kv_cache_used: float | None = 0.0
    waits: Waits = field(default_factory=Waits)
    adapters: Sequence[str] = ()
    running_adapters: Sequence[str] = ()
    status: int = 200
    is_loading: bool = False
    page: str | None = None
    has_metrics: bool = True
    generated: int = 0
    fail_generations: int = 0
    answer_s: float = 0.0
    is_stuck: bool = False
    counted: float | None = None
    context_window: int | None = None
    version: str = ""
    real_name: str = ""
    has_vision: bool | None = None

    def handle(self, request: RecordedRequest) -> Script:
        """The handler for a `ScriptedUpstream`."""
        if self.is_loading:
            words = {"message": "Loading model", "type": "unavailable_error", "code": 503}
            return json_answer({"error": words}, status=503)
        if request.path in ("/health", "/v2/health/ready"):
            return answer(b"", status=self.status)
        if request.path == "/metrics" and self.has_metrics:
            return answer(self.render().encode(), headers=_TEXT)
        if request.path == "/slots" and self.kind is EngineKind.LLAMA_CPP:
            return json_answer([{"id": at, "is_processing": at < self.running} for at in range(4)])
        if request.path.endswith("/models"):
            return json_answer({"object": "list", "data": self._list_models()})
        if request.method == "POST":
            return [Sleep(STUCK_S)] if self.is_stuck else self._generate(request)
        about = self._describe(request.path)
        if about is not None:
            return json_answer(about)
        return json_answer({"error": {"message": "Not Found"}}, status=404)

    def _list_models(self) -> list[dict[str, str | int | None]]:
        listed: list[tuple[str, str | None]] = [(self.model, None)]
        listed += [(name, self.model) for name in self.adapters]
        more: dict[str, str | int | None] = {}
        if self.kind is EngineKind.VLLM and self.context_window is not None:
            more = {"max_model_len": self.context_window, "root": self.real_name or self.model}
        return [{"id": name, "object": "model", "parent": parent, **more} for name, parent in listed]

    def _describe(self, path: str) -> dict[str, object] | None:
        """Pages on which engines say what they are."""
        if path == "/props" and self.kind is EngineKind.LLAMA_CPP and self.context_window is not None:
            said: dict[str, object] = {
                "default_generation_settings": {"n_ctx": self.context_window},
                "total_slots": 4,
                "model_path": f"/models/{self.real_name}",
                "build_info": self.version,
            }
            return said | ({} if self.has_vision is None else {"modalities": {"vision": self.has_vision}})
        if path == "/info" and self.kind is EngineKind.TGI and self.context_window is not None:
            return {
                "model_id": self.real_name,
                "max_total_tokens": self.context_window,
                "version": self.version,
            }
        if path == "/version" and self.kind is EngineKind.VLLM and self.version:
            return {"version": self.version}
        if self.kind is EngineKind.TRITON and self.version:
            if path == "/v2":
                return {"name": "triton", "version": self.version, "extensions": []}
            if path == f"/v2/models/{self.model}":
                return {"name": self.model, "versions": ["1"], "platform": self.real_name}
        return None

    def _generate(self, request: RecordedRequest) -> Script:
        if self.fail_generations > 0:
            self.fail_generations -= 1
            return json_answer({"error": {"message": "CUDA out of memory"}}, status=500)
        self.generated += 1
        asked = request.json()
        model = str(asked.get("model", self.model))
        if asked.get("stream") and request.path.endswith("completions"):
            with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            stream = chat_stream if request.path.endswith("/chat/completions") else completion_stream
            return [Sleep(self.answer_s), *sse_answer(stream(model=model, include_usage=with_usage))]
        if request.path.endswith("/embeddings"):
            made = embeddings([[0.1, 0.2]], model=model)
        elif request.path.endswith("/chat/completions"):
            made = chat_completion(model=model)
        else:
            made = completion(model=model)
        return [Sleep(self.answer_s), *json_answer(made)] if self.answer_s else json_answer(made)

    def render(self) -> str:
        """Its metrics page."""
        if self.page is not None:
            return self.page
        match self.kind:
            case EngineKind.VLLM:
                return self._render_vllm()
            case EngineKind.LLAMA_CPP:
                return self._render_llama_cpp()
            case EngineKind.TRITON:
                return self._render_triton()
            case EngineKind.SGLANG:
                return self._render_sglang()
            case EngineKind.TGI:
                return self._render_tgi()

    def _render_vllm(self) -> str:
        labels = f'engine="0",model_name="{self.model}"'
        parts = [
            _family("python_gc_objects_collected_total", "counter", [('generation="0"', 4012.0)]),
            _family("process_resident_memory_bytes", "gauge", [("", 3.1e9)]),
            _family("vllm:num_requests_running", "gauge", [(labels, self.running)]),
            _family("vllm:num_requests_waiting", "gauge", [(labels, self.waiting)]),
            _family("vllm:prompt_tokens_total", "counter", [(labels, 81234.0)]),
            _histogram("vllm:request_queue_time_seconds", labels, self.waits),
        ]
        if self.counted is not None:
            parts.append(_family("vllm:generation_tokens_total", "counter", [(labels, self.counted)]))
        if self.kv_cache_used is not None:
            parts.append(_family("vllm:kv_cache_usage_perc", "gauge", [(labels, self.kv_cache_used)]))
        if self.adapters or self.running_adapters:
            names = ",".join(self.running_adapters)
            lines = [
                ('max_lora="4",running_lora_adapters="",waiting_lora_adapters=""', 1.7e9),
                (f'max_lora="4",running_lora_adapters="{names}",waiting_lora_adapters=""', 1.7e9 + 60),
            ]
            parts.append(_family("vllm:lora_requests_info", "gauge", lines))
        return "".join(parts)

    def _render_llama_cpp(self) -> str:
        parts = [
            _family("llamacpp:prompt_tokens_total", "counter", [("", 512)]),
            _family("llamacpp:n_busy_slots_per_decode", "counter", [("", 1.5)]),
            _family("llamacpp:requests_processing", "gauge", [("", self.running)]),
            _family("llamacpp:requests_deferred", "gauge", [("", self.waiting)]),
        ]
        if self.kv_cache_used is not None:
            parts.append(_family("llamacpp:kv_cache_usage_ratio", "gauge", [("", self.kv_cache_used)]))
        return "".join(parts)

    def _render_triton(self) -> str:
        labels = f'model="{self.model}",version="1"'
        other = 'model="another",version="3"'
        queue_us = self.waits.total_s * 1e6
        return "".join(
            [
                _family(
                    "nv_inference_request_success", "counter", [(labels, self.waits.requests), (other, 7)]
                ),
                _family("nv_inference_exec_count", "counter", [(labels, self.waits.requests), (other, 7)]),
                _family("nv_inference_queue_duration_us", "counter", [(labels, queue_us), (other, 700)]),
                _family("nv_inference_pending_request_count", "gauge", [(labels, self.waiting), (other, 99)]),
                _family("nv_cpu_utilization", "gauge", [("", 0.25)]),
            ]
        )

    def _render_sglang(self) -> str:
        labels = f'model_name="{self.model}"'
        return "".join(
            [
                _family("sglang:num_running_reqs", "gauge", [(labels, self.running)]),
                _family("sglang:num_queue_reqs", "gauge", [(labels, self.waiting)]),
                _family("sglang:token_usage", "gauge", [(labels, self.kv_cache_used or 0.0)]),
                _histogram("sglang:queue_time_seconds", labels, self.waits),
            ]
        )

    def _render_tgi(self) -> str:
        return "".join(
            [
                _family("tgi_batch_current_size", "gauge", [("", self.running)]),
                _family("tgi_queue_size", "gauge", [("", self.waiting)]),
                _histogram("tgi_request_queue_duration", "", self.waits),
            ]
        )


def _family(name: str, kind: str, samples: Sequence[tuple[str, float]]) -> str:
    lines = [f"# HELP {name} What the engine says of it.", f"# TYPE {name} {kind}"]
    lines += [f"{name}{{{labels}}} {float(value)}".replace("{}", "") for labels, value in samples]
    return "\n".join(lines) + "\n"


def _histogram(name: str, labels: str, waits: Waits) -> str:
    also = f"{labels}," if labels else ""
    plain = f"{{{labels}}}" if labels else ""
    lines = [f"# HELP {name} What the engine says of it.", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{{also}le="{edge}"}} {float(waits.requests)}' for edge in ("0.3", "+Inf")]
    lines += [f"{name}_count{plain} {float(waits.requests)}", f"{name}_sum{plain} {waits.total_s}"]
    return "\n".join(lines) + "\n"
