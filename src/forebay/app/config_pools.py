"""The settings of `forebay.yaml` that say what a place is and how one is chosen: `pools`, and what a target
and a model say of the same.

What a target says itself goes before what its pool says.  Pure; `config_model` puts it in its place, and
`config_pools_checks` looks at several of them together.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from forebay.app.config_engines import KINDS, AdapterName, LivenessConfig, MetricsPlace, WarmUpConfig
from forebay.app.config_queue import PlaceQueueConfig
from forebay.app.config_timeouts import TimeoutsConfig
from forebay.app.config_values import (
    Label,
    ProxyUrl,
    ResolvedPath,
    SecondsOrZero,
    SecretReference,
    Section,
    TargetUrl,
    Tier,
)
from forebay.core.routes import (
    QUEUE_WAITS_S,
    Affinity,
    Choosing,
    FillerRules,
    ForcedCalls,
    Hedge,
    Masking,
    Order,
    Pool,
)

Capability = Literal["tools", "images", "audio", "documents", "json_schema"]
RequestsAtOnce = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
FillerText = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
TokensAtOnce = Annotated[StrictInt, Field(ge=1, le=1 << 40)]
WAYS = ("tls_ca", "tls_cert", "tls_key", "proxy", "proxy_credentials")  #: of them, how one gets there
FACTS = (
    "tier",
    "region",
    "version",
    "requests_max",
    "tokens_max",
    "context_window",
    "capabilities",
    "distance_s",
    "price_usd_per_mtok",
    "shares_quota",
    "slow_start_s",
    "forced_tools",
    *WAYS,
)  #: what a target takes from its pool where it is silent


class PlaceConfig(Section):
    """What a pool says of its replicas, and a target of itself."""

    tier: Tier | None = Field(
        default=None,
        description="Kind of capacity, in the order in which load spills; null takes the pool's, else "
        "`provisioned` for an engine, `provider` for an address.",
    )
    region: Label | None = Field(
        default=None,
        description="Where it is, such as `eu-west`. Requests of a key that is bound to regions never go to "
        "a target without one.",
    )
    version: Label | None = Field(
        default=None,
        description="Version of the model there, such as `2026-11-30`. It stands on records, and usage and "
        "bills can be told apart by it.",
    )
    requests_max: RequestsAtOnce | None = Field(
        default=None,
        description="Requests that a replica serves well at once; from `spill_at` of it on, requests spill "
        "to the next tier. Null takes an engine's `slots`, and is unknown for an address.",
    )
    tokens_max: TokensAtOnce | None = Field(
        default=None,
        description="Tokens in flight that a replica serves well at once, prompts and answers; likewise.",
    )
    context_window: TokensAtOnce | None = Field(
        default=None,
        description="Tokens of one request, prompt and answer together; longer ones go elsewhere. Null "
        "takes an engine's `context_tokens`, and is unknown for an address.",
    )
    capabilities: Annotated[tuple[Capability, ...], Field(max_length=5)] | None = Field(
        default=None,
        description="What it takes beyond text: `tools`, `images`, `audio`, `documents`, `json_schema`. "
        "Requests that need anything else go elsewhere. Null: nobody knows, so all of it is tried.",
    )
    distance_s: Annotated[StrictFloat, Field(ge=0, le=60, allow_inf_nan=False)] | None = Field(
        default=None, description="The network's share of an answer's time, to there and back."
    )
    price_usd_per_mtok: Annotated[StrictFloat, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = Field(
        default=None,
        description="What a million tokens cost there, roughly, for choosing alone; the bill goes by "
        "`prices`.",
    )
    shares_quota: StrictBool | None = Field(
        default=None,
        description="Whether a 429 of it and what it says of its rate limits hold for all targets at its "
        "address with its `api_key`, whatever their models. Null: in the tier `provider` yes, but for "
        "`dialect: azure`, whose deployments have quotas of their own.",
    )
    slow_start_s: Annotated[StrictFloat, Field(ge=0, le=3600, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Seconds in which a replica that is new, or comes back into service, gets from a tenth "
        "to all of its share of requests; 0 gives it all at once. Null: 10.",
    )
    forced_tools: ForcedCalls | None = Field(
        default=None,
        description="How a request is met that has to call a tool (`tool_choice`): `native` by the engine "
        "itself, `schema` by a JSON schema of the tools that its answer then follows, `refuse` by a 400. "
        "Null: `schema` where the engine is llama.cpp, which does not enforce it, and `dialect` is `openai`; "
        "else `native`.",
    )
    tls_ca: ResolvedPath | None = Field(
        default=None, description="PEM file with the authorities to trust instead of the system's."
    )
    tls_cert: ResolvedPath | None = Field(
        default=None,
        description="PEM file with the certificate to show to a server that asks for one (mutual TLS), with "
        "the authorities between, and its key unless `tls_key` has it.",
    )
    tls_key: ResolvedPath | None = Field(
        default=None, description="PEM file with the key of `tls_cert`, without a passphrase."
    )
    proxy: ProxyUrl | None = Field(
        default=None,
        description="HTTP proxy to go through, such as `http://proxy.example:3128`: it is asked for a tunnel "
        "by `CONNECT`. `direct` goes through none although the pool names one. No variable of the "
        "environment is looked at.",
    )
    proxy_credentials: SecretReference | None = Field(
        default=None,
        description="What the proxy wants, `USER:PASSWORD`, as a reference, `env:NAME` or `file:PATH`.",
    )
    timeouts: TimeoutsConfig | None = Field(
        default=None,
        description="How long the gateway waits for it. Each time that is not said here is the pool's, else "
        "that of the tier in `tiers`, else the default.",
    )


class TierConfig(Section):
    """What holds for all targets of a tier."""

    timeouts: TimeoutsConfig | None = Field(
        default=None, description="How long the gateway waits for a target of it."
    )


class PoolConfig(PlaceConfig):
    """Like replicas in one place."""

    hardware: Label | None = Field(default=None, description="What it runs on, such as `h100`; for people.")
    engine: Label | None = Field(
        default=None,
        description=f"The software that runs the model. Of {KINDS} it is known where they tell their load.",
    )
    precision: Label | None = Field(default=None, description="Of the weights, such as `fp8`; for people.")
    replicas: Annotated[tuple[TargetUrl, ...], Field(max_length=1024)] = Field(
        default=(),
        description="Addresses of its replicas, for targets that name the pool and no place of their own.",
    )
    metrics: MetricsPlace | None = Field(
        default=None,
        description="Where its engines tell their load, once a second: `auto` by `engine`, `off`, a path "
        "such as "
        "`/metrics` or, with another port, `:8002/metrics`, or the address of the page of a single replica. "
        "Null is "
        "`auto`, but `off` for places of tier `provider`.",
    )
    warm_up: WarmUpConfig | None = Field(
        default=None,
        description="Requests that a new replica, or one that comes back, answers before callers' are sent "
        "to it; "
        "null sends to it at once.",
    )
    liveness: LivenessConfig | None = Field(
        default=None,
        description="How its replicas are asked for one token now and then, to see that they generate; null "
        "asks with the defaults where the engine is known, and never places of tier `provider`.",
    )
    adapters: Annotated[tuple[AdapterName, ...], Field(max_length=256)] = Field(
        default=(),
        description="LoRA adapters that its engines serve, by the names that targets have in `model`. "
        "Requests for "
        "one stay with few replicas.",
    )

    def compile(self, name: str) -> Pool:
        return Pool(
            name=name,
            hardware=self.hardware or "",
            engine=self.engine or "",
            precision=self.precision or "",
        )


class FillerConfig(Section):
    """Words of your own with which streams begin that would be silent."""

    text: Annotated[tuple[FillerText, ...], Field(min_length=1, max_length=100)] = Field(
        description="Texts, of which each request has one, chosen by its id. The answer follows right "
        "behind, so end each with a space."
    )
    after_s: Annotated[StrictFloat, Field(ge=0.1, le=60, allow_inf_nan=False)] = Field(
        default=0.5,
        description="Seconds from the request's arrival without content, after which it goes out; up to a "
        "tenth of a second later.",
    )
    when: Literal["always", "asked"] = Field(
        default="always",
        description="`asked`: only for callers that send the header `x-forebay-filler: on`. With `always`, "
        "`x-forebay-filler: off` declines it.",
    )

    def compile(self) -> FillerRules:
        return FillerRules(after_s=self.after_s, texts=self.text, is_asked=self.when == "asked")


EngineWait = Annotated[StrictFloat, Field(gt=0, le=3600, allow_inf_nan=False)]


class QueueWaitConfig(Section):
    """How long requests of a class may wait in the queue of an engine."""

    interactive: EngineWait = Field(default=QUEUE_WAITS_S[0], description="Of keys of this priority.")
    standard: EngineWait = Field(default=QUEUE_WAITS_S[1], description="Of keys of this priority.")
    batch: EngineWait = Field(default=QUEUE_WAITS_S[2], description="Of keys of this priority.")


class HedgeConfig(Section):
    """When a request that is late is sent to a second place as well."""

    after_quantile: Annotated[StrictFloat, Field(ge=0.5, le=0.999, allow_inf_nan=False)] = Field(
        default=0.95,
        description="A request is late without content after the time in which this share of the latest "
        "requests of the model had their first token, or their whole answer where it is not streamed.",
    )
    after_min_s: SecondsOrZero = Field(default=0.0, description="Seconds before which no request is late.")
    max_share: Annotated[StrictFloat, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        default=0.05,
        description="Share of the model's requests that may be sent twice; `gateway.retry_budget` holds "
        "besides.",
    )

    def compile(self) -> Hedge:
        return Hedge(
            after_quantile=self.after_quantile, after_min_s=self.after_min_s, max_share=self.max_share
        )


class ChoosingConfig(Section):
    """How a model's targets are chosen."""

    order: Order | None = Field(
        default=None,
        description="`listed` tries targets in the order of the file, those out of service last; `load` "
        "takes the best place as docs/routing.md says. Null: `load` if a target names one of `pools` or has "
        "a `weight`, else `listed`.",
    )
    affinity: Affinity | None = Field(
        default=None,
        description="Which requests go to the same replica of a pool while it is not much fuller than the "
        "others: those whose prompts begin alike (`prefix`), all those for one LoRA adapter (`adapter`), "
        "those of "
        "one session (the header `x-forebay-session`, else the field `user`), or none. A request with the "
        "header "
        "stays with its replica in any case. Null: `adapter` if a target's `model` is one of its pool's "
        "`adapters`, "
        "else `prefix`.",
    )
    prefix_bytes: Annotated[StrictInt, Field(ge=16, le=65_536)] = Field(
        default=256, description="Bytes of a prompt that count as its beginning."
    )
    spill_at: Annotated[StrictFloat, Field(ge=0.1, le=10, allow_inf_nan=False)] = Field(
        default=0.8,
        description="Share of a tier's capacity in use, from which on a growing share of requests spills to "
        "the next tier; interactive ones a little earlier, batch ones later.",
    )
    queue: PlaceQueueConfig = Field(
        default=PlaceQueueConfig(),
        description="How requests wait where all places that they may use are full.",
    )
    price_s_per_usd: Annotated[StrictFloat, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=0.0,
        description="Seconds of waiting that one USD per million tokens is worth, between pools of a tier; "
        "0 looks at time alone.",
    )
    queue_wait_max_s: QueueWaitConfig = Field(
        default=QueueWaitConfig(),
        description="How long requests may wait in engines that say so; from half of it on they spill.",
    )
    hedge: HedgeConfig | None = Field(
        default=None,
        description="When a request that is late is sent to a second place as well; null: never.",
    )
    keep_alive_s: SecondsOrZero | None = Field(
        default=None,
        description="As `gateway.keep_alive_s`, for streams of this model; null: what the gateway says.",
    )

    filler: FillerConfig | None = Field(
        default=None,
        description="Words that begin a stream of this model while it has said nothing yet, as "
        "docs/gateway.md says; null: none.",
    )

    def compile_masking(self, keep_alive_s: float) -> Masking:
        """
        Args:
            keep_alive_s: the gateway's.
        """
        return Masking(
            keep_alive_s=keep_alive_s if self.keep_alive_s is None else self.keep_alive_s,
            filler=None if self.filler is None else self.filler.compile(),
        )

    def compile(self, *, is_fleet: bool, is_adapter: bool = False) -> Choosing:
        """
        Args:
            is_fleet: whether the targets are described well enough to choose by load unasked.
            is_adapter: whether the model is a LoRA adapter there.
        """
        waits = self.queue_wait_max_s
        order = self.order or (Order.LOAD if is_fleet else Order.LISTED)
        return Choosing(
            affinity=self.affinity or (Affinity.ADAPTER if is_adapter else Affinity.PREFIX),
            order=order,
            queue=self.queue.compile() if order is Order.LOAD else None,
            prefix_bytes=self.prefix_bytes,
            spill_at=self.spill_at,
            price_s_per_usd=self.price_s_per_usd,
            queue_waits_max_s=(waits.interactive, waits.standard, waits.batch),
            hedge=None if self.hedge is None else self.hedge.compile(),
        )


def find_facts(places: Iterable[PlaceConfig | None]) -> dict[str, Any]:
    """What a place is: of each fact what the first says that says anything; without those nobody knows."""
    found: dict[str, Any] = {}
    for place in places:
        for name in FACTS if place is not None else ():
            value = getattr(place, name)
            if value is not None:
                found.setdefault(name, str(value) if isinstance(value, Path) else value)
    return found


def shares_quota(tier: str, dialect: str) -> bool:
    """Whether a target's quota is its account's, where nobody says."""
    return tier == "provider" and dialect != "azure"


def share_weight(weight: float | None, replicas: int) -> float | None:
    """Of one replica of a target."""
    return None if weight is None else weight / replicas


Pools = Mapping[str, PoolConfig]
