"""The settings of `launchers.kubernetes` and `launchers.ray`: where replicas run that don't run here.

Pure; `config_deployments` puts them in their place, and `launchers` opens what they name.
"""

import sys
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from forebay.app.config_values import ResolvedPath, Section, Url
from forebay.app.launcher_ray import RayAccess
from forebay.engines.kube_client import ClusterAccess
from forebay.engines.kube_objects import GPU_RESOURCE, ClusterPlace

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Text = Annotated[str, Field(min_length=1, max_length=512)]
LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9./_-]{1,317}$")]
LabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,63}$")]
EngineKindName = Literal["llamacpp", "minilm", "vllm"]


class TolerationConfig(Section):
    """A taint of nodes that replicas put up with, as Kubernetes defines it."""

    key: LabelKey | None = Field(default=None, description="Of the taint; null with `Exists` means all.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="`Exists` asks for no `value`.")
    value: LabelValue | None = Field(default=None, description="Of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Of the taint; null means all."
    )

    def compile(self) -> Mapping[str, str]:
        return {name: str(value) for name, value in self.model_dump().items() if value is not None}


class KubernetesConfig(Section):
    """The cluster of deployments with `launcher: kubernetes`."""

    context: Text | None = Field(
        default=None,
        description="Of the kubeconfig; null takes its current one, or the cluster around it.",
    )
    kubeconfig: ResolvedPath | None = Field(
        default=None, description="Its path; null takes `KUBECONFIG`, else `~/.kube/config`."
    )
    url: Url | None = Field(
        default=None, description="Address of the API without a kubeconfig, as `kubectl proxy` gives one."
    )
    namespace: DnsLabel = Field(default="default", description="Where the objects are; it must be there.")
    images: Mapping[EngineKindName, Text] = Field(
        default_factory=dict,
        description="Image of each kind of engine, such as `vllm: vllm/vllm-openai:v{version}`, where "
        "`{version}` stands for the engine's version. `forebay env dockerfile` writes what makes one.",
    )
    pull_secrets: Annotated[tuple[DnsLabel, ...], Field(max_length=16)] = Field(
        default=(), description="Secrets with which images are fetched."
    )
    service_account: DnsLabel | None = Field(
        default=None, description="That the pods run as; null takes the namespace's own."
    )
    weights_claim: DnsLabel | None = Field(
        default=None,
        description="PersistentVolumeClaim with weights and adapters, mounted read-only; null where images "
        "have them.",
    )
    weights_path: Annotated[str, Field(pattern=r"^/[^:]{1,255}$")] = Field(
        default="/models", description="Where it is mounted; `source` and `adapters` name paths below it."
    )
    models_path: Annotated[str, Field(pattern=r"^/[^:]{1,255}$")] | None = Field(
        default=None,
        description="Where pods find the registry's contents, such as `/models` where the claim holds what "
        "`models` of the data folder does; null: `source` can't name a version of the registry.",
    )
    node_selector: Mapping[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a node must have."
    )
    tolerations: Annotated[tuple[TolerationConfig, ...], Field(max_length=32)] = Field(
        default=(), description="Taints of nodes that replicas put up with."
    )
    gpu_resource: LabelKey = Field(default=GPU_RESOURCE, description="What nodes call their GPUs.")
    user: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        default=1000, description="Number of the user that engines run as; never root."
    )

    def compile_place(self) -> ClusterPlace:
        return ClusterPlace(
            namespace=self.namespace,
            images={str(kind): image for kind, image in self.images.items()},
            pull_secrets=self.pull_secrets,
            service_account=self.service_account or "",
            weights_claim=self.weights_claim or "",
            weights_path=self.weights_path,
            node_selector=dict(self.node_selector),
            tolerations=tuple(each.compile() for each in self.tolerations),
            gpu_resource=self.gpu_resource,
            user=self.user,
        )

    def compile_access(self) -> ClusterAccess:
        return ClusterAccess(
            context=self.context or "",
            kubeconfig=str(self.kubeconfig or ""),
            url=self.url or "",
        )


class RayConfig(Section):
    """The cluster of deployments with `launcher: ray`."""

    address: Text = Field(
        default="auto",
        description="As `ray.init` takes it: `auto` for the one that runs on this machine, `HOST:6379`, or "
        "`ray://HOST:10001`.",
    )
    namespace: DnsLabel = Field(default="forebay", description="In which replicas have their names.")
    python: ResolvedPath | None = Field(
        default=None, description="Python that has Ray and Forebay; null takes the one that Forebay runs on."
    )
    environments: Annotated[str, Field(pattern=r"^/.{1,1023}$")] | None = Field(
        default=None,
        description="Folder of engines' environments on all nodes; null takes that of this data folder, "
        "which nodes then have to share.",
    )
    models: Annotated[str, Field(pattern=r"^/.{1,1023}$")] | None = Field(
        default=None,
        description="Folder of the registry's contents on all nodes; null takes `models` of this data "
        "folder, which nodes then have to share.",
    )

    def compile_access(self) -> RayAccess:
        return RayAccess(
            address=self.address,
            namespace=self.namespace,
            python=str(self.python or sys.executable),
        )
