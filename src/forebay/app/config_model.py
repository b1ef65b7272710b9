"""The shape of `forebay.yaml`: every setting with its type, its limits, its default and what it means.

Descriptions here are the single source for the JSON schema and for `docs/configuration.md`.  The models are
frozen and refuse unknown keys.  This module reads no file and no environment and reports nothing: it
validates what it is given.  What concerns several settings at once lies in `config_checks`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, PrivateAttr, StrictBool, StrictFloat, StrictInt, model_validator

from forebay.app.config_alerts import AlertsConfig
from forebay.app.config_batch import BatchConfig
from forebay.app.config_defaults import fill_engines_and_models
from forebay.app.config_deployments import Deployments, LaunchersConfig
from forebay.app.config_ledger import LedgerConfig
from forebay.app.config_limits import LimitsConfig
from forebay.app.config_mirrors import MIRRORS_MAX, MirrorConfig
from forebay.app.config_oidc import OidcConfig
from forebay.app.config_pools import ChoosingConfig, PlaceConfig, PoolConfig, TierConfig
from forebay.app.config_prices import PricesConfig
from forebay.app.config_usage import RULES_MAX, UsageRuleConfig
from forebay.app.config_values import (
    Bytes,
    ConfigOrigin,
    Count,
    DatabasePlace,
    Dialect,
    EngineName,
    Host,
    Label,
    ModelName,
    Port,
    ResolvedPath,
    Seconds,
    SecondsOrZero,
    SecretReference,
    Section,
    TargetUrl,
    Threads,
    Tier,
    Weights,
)
from forebay.core.routes import Endpoint

# --- sections -----------------------------------------------------------------------------------------------


class DataConfig(Section):
    """Where Forebay keeps what it must remember."""

    dir: ResolvedPath = Field(
        default=Path(".forebay"),
        description="Folder of database, ledger, keys and logs; created with mode 0700.",
    )
    database: DatabasePlace | None = Field(
        default=None,
        description="Another place for the database: the path of an SQLite file, or a reference (`env:NAME`, "
        "`file:PATH`) to an address like `postgresql://user:password@host/name`; null is `forebay.db` in the "
        "folder.",
    )


class DrainConfig(Section):
    """How the gateway ends."""

    grace_s: SecondsOrZero = Field(
        default=0.0,
        description="After SIGTERM, seconds with `/readyz` at 503 while new requests are still taken, "
        "so that a load balancer can look away.",
    )
    deadline_s: Seconds = Field(default=30.0, description="Seconds that requests in flight get to finish.")


class GatewayConfig(Section):
    """The door for callers."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to listen on. Anything but a loopback address is open to the network.",
    )
    port: Port = Field(default=8080, description="TCP port; 0 takes any free one.")
    workers: Threads | None = Field(
        default=None, description="Worker processes; null takes one for each core."
    )
    connections_max: Count = Field(default=8192, description="Callers' connections for each worker.")
    body_max_bytes: Bytes = Field(
        default=33_554_432, description="Largest request body; a larger one is answered 413."
    )
    answer_max_bytes: Bytes = Field(default=67_108_864, description="Largest answer that is not streamed.")
    memory_max_bytes: Bytes = Field(
        default=536_870_912,
        description="For each worker, what it holds for callers, all together: request bodies, answers that "
        "are not streamed, what callers have not taken; beyond it requests are answered 503.",
    )
    event_max_bytes: Bytes = Field(
        default=16_777_216, description="Largest single server-sent event from a target."
    )
    record_backlog_max: Count = Field(
        default=10_000,
        description="Records that a worker keeps in memory while the disk refuses them; "
        "beyond it new requests are answered 503.",
    )
    attempts_max: Annotated[StrictInt, Field(ge=1, le=10)] = Field(
        default=3, description="Targets that are tried for one request, the first included."
    )
    keep_alive_s: SecondsOrZero = Field(
        default=15.0,
        description="Seconds of silence in a stream, before its first content and between events, after "
        "which its caller is sent an event that says nothing, so that no proxy cuts the line: a comment, or "
        "Anthropic's `ping`. 0 never sends any.",
    )
    retry_budget: Annotated[StrictFloat, Field(ge=0, le=10, allow_inf_nan=False)] = Field(
        default=0.2,
        description="Attempts beyond requests' first, hedged ones included, as a share of the requests of "
        "the last 10 seconds. When it is spent, a caller gets the error at once. Where no target has seen "
        "the request yet, the next attempt is free.",
    )
    retry_budget_min_per_s: Annotated[StrictFloat, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=10.0,
        description="Such attempts a second that may be made besides, by all workers of this machine "
        "together, so that a gateway with few requests can retry.",
    )
    explain_routes: StrictBool = Field(
        default=False,
        description="Answers a request with the header `x-forebay-debug: route` with where it would go and "
        "why, addresses excepted, instead of sending it; to any key.",
    )
    drain: DrainConfig = Field(default=DrainConfig(), description="How the gateway ends.")


class ControlConfig(Section):
    """The control plane: admin API, records, snapshots."""

    host: Host = Field(
        default="127.0.0.1", description="Address to listen on; keep it on a loopback address."
    )
    port: Port = Field(default=8081, description="TCP port; 0 takes any free one.")
    oidc: OidcConfig | None = Field(
        default=None,
        description="Identity provider whose tokens open the admin API as well; null asks none.",
    )


class LlamaCppEngine(Section):
    """llama.cpp as a process on this machine, with continuous batching."""

    kind: Literal["llamacpp"] = Field(description="The software that runs the model.")
    model: Weights = Field(
        default="embedded:smollm2-135m",
        description="Path of a GGUF file, or `embedded:smollm2-135m` for the weights that come with Forebay.",
    )
    threads: Threads = Field(default=1, description="CPU threads; more than the free cores makes it slower.")
    slots: Annotated[StrictInt, Field(ge=1, le=256)] = Field(
        default=4, description="Requests answered at the same time."
    )
    context_tokens: Annotated[StrictInt, Field(ge=256, le=16_777_216)] = Field(
        default=8192,
        description="Tokens of context for each slot: prompt and answer of one request together.",
    )


class MiniLMEngine(Section):
    """Embeddings (384 dimensions) from all-MiniLM-L6-v2 on ONNX Runtime as a process on this machine."""

    kind: Literal["minilm"] = Field(description="The software that runs the model.")
    threads: Threads = Field(default=1, description="CPU threads.")
    batch_max: Annotated[StrictInt, Field(ge=1, le=4096)] = Field(
        default=32, description="Texts in one run of the model."
    )


EngineConfig = Annotated[LlamaCppEngine | MiniLMEngine, Field(discriminator="kind")]


class TargetConfig(PlaceConfig):
    """What answers a model: an engine of this file, an address, or all replicas of a pool."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["engine"]},
                {"required": ["url"]},
                {
                    "required": ["pool"],
                    "not": {"anyOf": [{"required": ["engine"]}, {"required": ["url"]}]},
                },
            ]
        }
    )

    engine: EngineName | None = Field(
        default=None, description="Name of an engine on this machine; exclusive with `url`."
    )
    url: TargetUrl | None = Field(
        default=None,
        description="Base address of a server; of an OpenAI-compatible one up to and including `/v1`.",
    )
    dialect: Dialect = Field(
        default="openai",
        description="What the server at `url` speaks. Requests and answers are translated where their "
        "callers speak something else.",
    )
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description="The model's name there; null takes the engine's name, or the public name for a `url`.",
    )
    api_key: SecretReference | None = Field(
        default=None,
        description="Credential as a reference, `env:NAME` or `file:PATH`; never the key itself.",
    )
    pool: Label | None = Field(
        default=None,
        description="Name for like replicas in metrics and records; null takes the engine or the host. What "
        "`pools` says of that name holds for the target where it is silent itself.",
    )
    weight: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1_000_000)] | None = Field(
        default=None,
        description="Its share among the targets of its tier, instead of what their load says; 0 is for when "
        "no other is left.",
    )
    connections_max: Count = Field(
        default=1024,
        description="Connections to this target for each worker; others at its address have their own.",
    )
    usage: Annotated[tuple[UsageRuleConfig, ...], Field(max_length=RULES_MAX)] = Field(
        default=(),
        description="Rules by which its answers are counted, where it reports what the dialect does not "
        "know.",
    )
    _replica: str = PrivateAttr("")

    @property
    def replica(self) -> str:
        """Id of the replica of a deployment that it stands for; empty for a target of the file."""
        return self._replica

    def stand_for(self, replica: str) -> Self:
        """The same, as a replica of a deployment.  For one that has just been made."""
        self._replica = replica
        return self

    @property
    def chosen_tier(self) -> str:
        """Unless its pool says another."""
        return self.tier or ("provisioned" if self.engine else "provider")

    @property
    def chosen_pool(self) -> str:
        return self.pool or self.engine or urlsplit(self.url or "").hostname or "default"

    def chosen_model(self, public_name: str) -> str:
        """The model's name at the target."""
        return self.model or self.engine or public_name


class ModelConfig(Section):
    """A public name that callers use."""

    endpoints: Annotated[tuple[Endpoint, ...], Field(min_length=1)] = Field(
        description="What callers may ask of it: `chat/completions`, `completions`, `embeddings`, "
        "`messages`, `responses`, `rerank`, `score`, `infer`, `audio/transcriptions`, "
        "`audio/translations`, `audio/speech`, `images/generations`, `images/edits`, "
        "`images/variations`. A model that answers `chat/completions` answers `messages` and "
        "`responses` as well."
    )
    targets: Annotated[tuple[TargetConfig, ...], Field(min_length=1, max_length=256)] = Field(
        description="Where it is answered; without `pools` and weights, in the order in which the targets "
        "are tried."
    )
    fallbacks: Annotated[tuple[ModelName, ...], Field(max_length=8)] = Field(
        default=(),
        description="Other models that answer, in this order, where none of the targets does; the last of "
        "`gateway.attempts_max` attempts is kept for them.",
    )
    mirrors: Annotated[tuple[MirrorConfig, ...], Field(max_length=MIRRORS_MAX)] = Field(
        default=(), description="Models that get copies of a share of the requests, for comparison."
    )
    routing: ChoosingConfig = Field(
        default=ChoosingConfig(), description="How a target is chosen for each request."
    )


class Config(Section):
    """All of `forebay.yaml`."""

    version: Literal[1] = Field(default=1, description="Version of this file's shape.")
    data: DataConfig = Field(default=DataConfig(), description="Where Forebay keeps what it must remember.")
    gateway: GatewayConfig = Field(default=GatewayConfig(), description="The door for callers.")
    control: ControlConfig = Field(default=ControlConfig(), description="The control plane.")
    ledger: LedgerConfig = Field(
        default=LedgerConfig(), description="The append-only record of what was done."
    )
    limits: LimitsConfig = Field(
        default=LimitsConfig(), description="How much teams, projects and keys may use."
    )
    engines: Mapping[EngineName, EngineConfig] = Field(
        default_factory=dict,
        description="Engine processes on this machine, by name. Default: the embedded ones in use.",
    )
    models: Mapping[ModelName, ModelConfig] = Field(
        default_factory=dict,
        description="Public names that callers use. Default: every engine under its own name.",
    )
    pools: Mapping[Label, PoolConfig] = Field(
        default_factory=dict, description="Like replicas, by the name that targets give as their `pool`."
    )
    tiers: Mapping[Tier, TierConfig] = Field(
        default_factory=dict,
        description="What holds for all targets of a tier, by its name, where neither they nor their pools "
        "say anything else.",
    )
    deployments: Deployments = Field(
        default_factory=dict,
        description="What runs behind the gateway, and is changed without downtime, by name; "
        "docs/deployments.md says how. Those that `forebay apply` makes are beside these.",
    )
    launchers: LaunchersConfig = Field(
        default=LaunchersConfig(), description="What deployments leave out because it is the same for all."
    )
    prices: PricesConfig = Field(default=PricesConfig(), description="What requests cost, for the bill.")
    batch: BatchConfig = Field(default=BatchConfig(), description="OpenAI's files and batches.")
    alerts: AlertsConfig = Field(
        default=AlertsConfig(), description="Who is told when limits are nearly or wholly used."
    )

    _origin: ConfigOrigin | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _fill_engines_and_models(cls, data: Any) -> Any:
        return fill_engines_and_models(data) if isinstance(data, dict) else data

    def model_post_init(self, context: object, /) -> None:
        self._origin = context if isinstance(context, ConfigOrigin) else None

    @property
    def file(self) -> Path | None:
        """The file it was read from, None when the defaults apply."""
        return self._origin.file if self._origin else None

    @property
    def data_path(self) -> Path:
        return self.data.dir

    @property
    def database_path(self) -> Path:
        return self.data_path / "forebay.db"

    @property
    def ledger_path(self) -> Path:
        return self.data_path / "ledger"

    @property
    def batch_path(self) -> Path:
        return self.data_path / "batch"

    @property
    def run_path(self) -> Path:
        return self.data_path / "run"

    @property
    def snapshot_path(self) -> Path:
        return self.run_path / "snapshot.msgpack"

    @property
    def metrics_path(self) -> Path:
        return self.run_path / "metrics"

    @property
    def state_path(self) -> Path:
        return self.run_path / "state.json"

    @property
    def logs_path(self) -> Path:
        return self.data_path / "logs"

    @property
    def lock_path(self) -> Path:
        return self.data_path / "lock"

    @property
    def local_key_path(self) -> Path:
        return self.data_path / "local.key"

    @property
    def admin_token_path(self) -> Path:
        return self.data_path / "admin.token"

    @classmethod
    def embedded(cls, origin: ConfigOrigin | None = None) -> Self:
        """What applies without a file."""
        return cls.model_validate({}, context=origin)


def list_secrets(config: Config) -> Iterator[str | None]:
    """The references to what is sent to places, and to proxies on the way there."""
    for model in config.models.values():
        for target in model.targets:
            yield from (target.api_key, target.proxy_credentials)
    for pool in config.pools.values():
        yield pool.proxy_credentials
