"""The settings of `deployments` and `launchers`: what runs behind the gateway, and where, from one manifest.

A manifest says what a model needs.  What depends on the place (which launcher, which hardware) it may leave
out, and `launchers` of that place's `forebay.yaml` says it; so the same manifest runs on a laptop and on a
cluster.  Pure: it validates what it is given; `config_deployments_checks` looks at the world outside, and
`deployment_compile` makes the engines' nouns of it.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    StrictFloat,
    StrictInt,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from forebay.app.config_engines import AdapterName
from forebay.app.config_launchers import KubernetesConfig, RayConfig
from forebay.app.config_values import (
    Label,
    ModelName,
    ResolvedPath,
    Seconds,
    SecondsOrZero,
    Section,
    Threads,
    Tier,
    Weights,
)
from forebay.core.routes import Endpoint
from forebay.engines.deployment import LauncherKind, Strategy, Unseen
from forebay.engines.model import Argument
from forebay.registry.model import RegistryInvalid
from forebay.registry.reference import PREFIX, parse_reference

OWN_WEIGHTS: Final = "minilm"
REPLICAS_MAX: Final = 256
DEPLOYMENTS_MAX: Final = 500
WHOLE_MAX: Final = (1 << 63) - 1
LIST_MAX: Final = 256
TEXT_MAX: Final = 10_000
Kind = Literal["llamacpp", "minilm", "vllm"]
Modality = Literal["text", "images", "audio"]


def _check_source(value: Any, check_path: ValidatorFunctionWrapHandler) -> Any:
    """A reference to the registry, or what is one of weights otherwise."""
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return check_path(value)
    try:
        return parse_reference(value.removeprefix(PREFIX)).source
    except RegistryInvalid as error:
        raise ValueError(error.message) from None


def _check_argument_name(value: str) -> str:
    if value.startswith("-"):
        raise ValueError("an argument is named without the dashes in front")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError("not the name of an argument: letters, digits and . _ -, without dashes in front")
    return value


def _check_argument(value: Any) -> Argument:
    """What an engine's command line can be told; a list becomes several words."""
    if isinstance(value, list | tuple):
        if len(value) > LIST_MAX or not all(_is_plain(each) and not isinstance(each, bool) for each in value):
            raise ValueError(f"a list of at most {LIST_MAX} texts and numbers")
        return tuple(value)
    if not _is_plain(value):
        raise ValueError(
            "must be true, false, a number of at most 64 bits, a text or a list of these; not a mapping"
        )
    return value  # type: ignore[no-any-return]


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):  # true and false are as well
        return abs(value) <= WHOLE_MAX
    return isinstance(value, str) and len(value) <= TEXT_MAX


def _check_steps(value: tuple[float, ...]) -> tuple[float, ...]:
    if list(value) != sorted(set(value)):
        raise ValueError("the shares must rise from step to step")
    return value


DeploymentName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
Source = Annotated[Weights, WrapValidator(_check_source)]
ArgumentName = Annotated[str, AfterValidator(_check_argument_name)]
ArgumentValue = Annotated[
    Any,  # an `Argument`; pydantic's own way of saying so warns of lists
    PlainValidator(_check_argument),
    WithJsonSchema({"type": ["boolean", "number", "string", "array"]}),
]
Prompt = Annotated[str, Field(min_length=1, max_length=16_384)]
Share = Annotated[StrictFloat, Field(gt=0, lt=1, allow_inf_nan=False)]


class EngineChoice(Section):
    """The software that runs the model, and what it is told."""

    kind: Kind = Field(description="The software: `llamacpp`, `minilm` or `vllm`.")
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$")] | None = Field(
        default=None, description="Its version; null takes the one that is there."
    )
    environment: Label | None = Field(
        default=None,
        description="Environment that it runs in on this machine, as docs/environments.md says: a digest, "
        "its beginning, or a recipe such as `vllm-cpu`. Null takes the recipe of its kind, version and "
        "hardware for `vllm`, and where a `version` is given; else Forebay's own.",
    )
    threads: Threads = Field(default=1, description="CPU threads.")
    slots: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(
        default=4, description="Requests that a replica answers at the same time."
    )
    context_tokens: Annotated[StrictInt, Field(ge=256, le=16_777_216)] = Field(
        default=8192, description="Tokens of one request, prompt and answer together."
    )
    batch_max: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(
        default=32, description="Texts in one run of an embedding model."
    )
    arguments: Annotated[Mapping[ArgumentName, ArgumentValue], Field(max_length=256)] = Field(
        default_factory=dict,
        description="More of its own command line, by names without dashes in front, such as "
        "`max-num-batched-tokens: 4096`. A switch is `true`. Checked against what the version accepts.",
    )


class SpeculationConfig(Section):
    """Tokens that are guessed cheaply, and checked together by the model."""

    method: Literal["ngram", "draft"] = Field(
        description="How they are guessed: `ngram` looks them up in the prompt, `draft` has a small model "
        "(`vllm`)."
    )
    tokens: Annotated[StrictInt, Field(ge=1, le=64)] = Field(default=3, description="Tokens guessed at once.")
    lookup_max: Annotated[StrictInt, Field(ge=1, le=64)] = Field(
        default=3, description="Longest n-gram that is looked up; of `ngram`."
    )
    source: Source | None = Field(default=None, description="Weights of the small model; of `draft`.")

    @model_validator(mode="after")
    def _check_method(self) -> "SpeculationConfig":
        if self.method == "draft" and self.source is None:
            raise ValueError("`method: draft` needs the `source` of the small model")
        if self.method == "ngram" and self.source is not None:
            raise ValueError("`method: ngram` has no model: remove `source`, or set `method: draft`")
        return self


class ReplicasConfig(Section):
    """How many like it run."""

    min: Annotated[StrictInt, Field(ge=0, le=REPLICAS_MAX)] = Field(
        default=1, description="Replicas that run at least; 0 lets it sleep while nobody asks."
    )
    max: Annotated[StrictInt, Field(ge=1, le=REPLICAS_MAX)] | None = Field(
        default=None, description="Replicas that run at most, by load; null: as many as `min`, and one."
    )

    @model_validator(mode="after")
    def _check_order(self) -> "ReplicasConfig":
        if self.max is not None and self.max < self.min:
            raise ValueError(f"`max` ({self.max}) is less than `min` ({self.min})")
        return self

    @property
    def chosen_max(self) -> int:
        return max(1, self.min) if self.max is None else self.max


class ResourcesConfig(Section):
    """What one replica is given."""

    cpus: Annotated[StrictFloat, Field(gt=0, le=1024, allow_inf_nan=False)] = Field(
        default=1.0, description="Cores."
    )
    gpus: Annotated[StrictFloat, Field(ge=0, le=64, allow_inf_nan=False)] = Field(
        default=0.0, description="GPUs; a part of one where the launcher can share it."
    )
    memory_mib: Annotated[StrictInt, Field(ge=16, le=1 << 30)] | None = Field(
        default=None,
        description="Memory in MiB, beyond which the replica is ended as out of memory; null: no limit.",
    )


class RolloutConfig(Section):
    """How a change takes the place of what runs, and what stops it."""

    strategy: Strategy = Field(
        default=Strategy.CANARY,
        description="`canary` lets the share of the new replicas grow in steps; `blue-green` gets all "
        "of them ready first, then gives them everything at once.",
    )
    steps: Annotated[tuple[Share, ...], Field(max_length=20), AfterValidator(_check_steps)] = Field(
        default=(0.05, 0.25, 0.5),
        description="Shares of requests that the new replicas get one after the other, before all; of "
        "`canary`.",
    )
    step_s: SecondsOrZero = Field(default=60.0, description="Seconds that each step lasts at least.")
    requests_min: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = Field(
        default=20, description="Requests that the new replicas have answered in a step before it is judged."
    )
    unseen: Unseen = Field(
        default=Unseen.PASS,
        description="What becomes of a step for which fewer came: after five times `step_s`, `pass` goes "
        "on, and `forebay deployments` and the audit say so; `wait` waits for them.",
    )
    error_share_max: Annotated[StrictFloat, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        default=0.02,
        description="Share of failed requests of the new replicas, beyond that of the old ones, that stops "
        "the change.",
    )
    latency_ratio_max: Annotated[StrictFloat, Field(ge=1, le=1000, allow_inf_nan=False)] = Field(
        default=1.5,
        description="Their median time to the first token against that of the old ones, that stops it.",
    )
    ready_timeout_s: Seconds = Field(
        default=900.0, description="Seconds in which the new replicas have to get ready."
    )


class DeploymentConfig(Section):
    """One version of a model on an engine, as like replicas behind a public name."""

    model: ModelName | None = Field(
        default=None, description="Public name that callers use; null takes the deployment's own."
    )
    version: Label | None = Field(
        default=None,
        description="Version of the model, such as `2026-11-30`. It stands on records, and usage and bills "
        "can be told apart by it. Null takes that of the registry, such as `chat-v3`, where `source` names "
        "one.",
    )
    source: Source | None = Field(
        default=None,
        description="The weights: path of a GGUF file or of a folder as Hugging Face has them, a version of "
        "the registry (`registry:NAME@3`, `registry:NAME@champion`), or `embedded:smollm2-135m`. Null is for "
        "`minilm`, which has its own.",
    )
    engine: EngineChoice = Field(description="The software that runs the model, and what it is told.")
    endpoints: Annotated[tuple[Endpoint, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="What callers may ask of the model; null: all that the engine answers, or what `models` "
        "says of it.",
    )
    adapters: Annotated[Mapping[AdapterName, ResolvedPath], Field(max_length=256)] = Field(
        default_factory=dict,
        description="LoRA adapters, of `vllm`: their paths, by the public names that callers use.",
    )
    speculation: SpeculationConfig | None = Field(
        default=None, description="Speculative decoding; null: none."
    )
    hardware: Label | None = Field(
        default=None,
        description="Class of hardware, such as `cpu` or `h100`, as the version matrix names it; null takes "
        "`launchers.hardware`.",
    )
    precision: Label | None = Field(default=None, description="Of the weights, such as `f16` or `q4`.")
    tier: Tier = Field(
        default="provisioned", description="Kind of capacity, in the order in which load spills."
    )
    region: Label | None = Field(default=None, description="Where it is, such as `eu-west`.")
    modalities: Annotated[tuple[Modality, ...], Field(min_length=1, max_length=3)] = Field(
        default=("text",), description="What it takes: `text`, `images`, `audio`."
    )
    replicas: ReplicasConfig = Field(default=ReplicasConfig(), description="How many like it run.")
    resources: ResourcesConfig | None = Field(
        default=None, description="What one replica is given; null takes `launchers.resources`."
    )
    launcher: LauncherKind | None = Field(
        default=None, description="Who runs the replicas; null takes `launchers.default`."
    )
    warm_up: Annotated[tuple[Prompt, ...], Field(max_length=100)] = Field(
        default=(), description="Prompts that a new replica answers before it gets callers' requests."
    )
    rollout: RolloutConfig = Field(
        default=RolloutConfig(), description="How a change takes the place of what runs."
    )

    @model_validator(mode="after")
    def _check_needs(self) -> "DeploymentConfig":
        if self.source is None and self.engine.kind != OWN_WEIGHTS:
            raise ValueError(f"`{self.engine.kind}` needs the weights: write `source:`")
        if self.source is not None and self.engine.kind == OWN_WEIGHTS:
            raise ValueError(f"`{OWN_WEIGHTS}` has weights of its own: remove `source`")
        return self


class LaunchersConfig(Section):
    """What deployments leave out because it is the same for all in one place."""

    default: LauncherKind = Field(
        default=LauncherKind.LOCAL,
        description="Who runs replicas of deployments that don't say: `local` as processes of this machine, "
        "`ray`, `kubernetes`.",
    )
    hardware: Label = Field(
        default="cpu", description="Class of hardware of deployments that don't say, such as `cpu` or `h100`."
    )
    resources: ResourcesConfig = Field(
        default=ResourcesConfig(), description="What one replica is given, where its deployment doesn't say."
    )
    kubernetes: KubernetesConfig = Field(
        default=KubernetesConfig(), description="The cluster of deployments with `launcher: kubernetes`."
    )
    ray: RayConfig = Field(
        default=RayConfig(), description="The cluster of deployments with `launcher: ray`."
    )


Deployments = Annotated[Mapping[DeploymentName, DeploymentConfig], Field(max_length=DEPLOYMENTS_MAX)]
