"""What a deployment is on Kubernetes: the objects themselves, as the JSON that its API takes.

Each revision of a deployment is a Kubernetes Deployment with a headless Service and a PodDisruptionBudget, so
that two revisions stand beside each other while one takes the other's place.  The gateway sends to pods, not
to the Service: it knows their loads and prefixes, which no Service does.  Pure: it asks no cluster anything.

Fields and their meanings: the Kubernetes API reference of apps/v1, core/v1, policy/v1 and autoscaling/v2.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from forebay.engines.deployment import Replica
from forebay.engines.model import EngineSpec, LauncherError, LaunchPlan
from forebay.engines.plan import Place, plan_engine

Object = dict[str, Any]  #: one object of the Kubernetes API, as JSON
Plan = Callable[[EngineSpec, Place], LaunchPlan]

DOMAIN: Final = "forebay.dev"
DEPLOYMENT_LABEL: Final = f"{DOMAIN}/deployment"
REVISION_LABEL: Final = f"{DOMAIN}/revision"
INDEX_ANNOTATION: Final = f"{DOMAIN}/index"  #: of a pod: which replica it is
WANTED_ANNOTATION: Final = f"{DOMAIN}/replicas"  #: of a Deployment: the replicas that are to run, `0,1,3`
REFUSED_ANNOTATION: Final = f"{DOMAIN}/refused"  #: of those, the ones that can't start, and why: JSON
#: The pod with the lowest cost goes first where a Deployment shrinks.
COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
MANAGER: Final = "forebay"
MANAGED: Final = {"app.kubernetes.io/managed-by": MANAGER}
ENGINE_PORT: Final = 8000
CONTAINER: Final = "engine"
PROBE_PERIOD_S: Final = 5
#: A deployment's: with its revision it is still a label of DNS, and with a pod's suffix too.
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
#: Of every class of hardware with GPUs of one maker; what a node calls them.
GPU_RESOURCE: Final = "nvidia.com/gpu"
SHARED_MEMORY: Final = "/dev/shm"


class ClusterPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where on a cluster, and what it is called there."""

    namespace: str = "default"
    images: Mapping[str, str] = {}  #: by kind of engine; `{version}` stands for the engine's
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    weights_claim: str = (
        ""  #: PersistentVolumeClaim that holds weights and adapters; empty: they are in the image
    )
    weights_path: str = "/models"  #: where it is mounted
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, str], ...] = ()
    gpu_resource: str = GPU_RESOURCE
    user: int = 1000  #: that the engine runs as


def name_revision(deployment: str, revision: str) -> str:
    """The name of all objects of a revision."""
    return f"{deployment}-{revision}"


def label_revision(deployment: str, revision: str) -> dict[str, str]:
    """By which its pods are found."""
    return {DEPLOYMENT_LABEL: deployment, REVISION_LABEL: revision}


def find_image(spec: EngineSpec, place: ClusterPlace) -> str:
    """Raises LauncherError where no image is known for the engine."""
    image = place.images.get(spec.kind)
    if not image:
        raise LauncherError(
            f"no image is known for engines of kind {spec.kind!r}. Give one under "
            f"`launchers.kubernetes.images.{spec.kind}`."
        )
    if "{version}" in image and not spec.version:
        raise LauncherError(
            f"the image {image!r} wants the engine's version, and the deployment names none. "
            "Give `engine.version`."
        )
    return image.replace("{version}", spec.version)


def check_weights(spec: EngineSpec) -> None:
    """Raises LauncherError where nobody would fetch the weights: engines of ours ask nobody for any."""
    for weights in (spec.model, *spec.adapters.values()):
        if weights.startswith("registry:"):
            raise LauncherError(
                f"{weights!r} is a version of the registry, and nobody says where pods find it. Give the "
                "place under `launchers.kubernetes.models_path`, and pin the reference by applying it."
            )
        if "://" in weights:
            raise LauncherError(
                f"{weights!r} is fetched by KServe's LLMInferenceService alone. Put it onto the volume of "
                "`launchers.kubernetes.weights_claim`, and give its path there."
            )


def render_revision(
    replica: Replica, wanted: Sequence[int], place: ClusterPlace, plan: Plan = plan_engine
) -> list[Object]:
    """The objects of a revision: Deployment, Service, PodDisruptionBudget.

    Args:
        replica: any one of it.
        wanted: the indexes of those that are to run.
        plan: how an engine is started.

    Raises:
        LauncherError: the deployment can't be put on a cluster as it is.
    """
    if not _NAME.fullmatch(replica.deployment):
        raise LauncherError(
            f"{replica.deployment!r} can't name anything on Kubernetes. Give the deployment a shorter name: "
            "at most 40 small letters, digits and dashes, a letter first."
        )
    check_weights(replica.spec)
    return [
        render_workload(replica, wanted, place, plan),
        render_service(replica.deployment, replica.revision, place),
        render_budget(replica.deployment, replica.revision, place),
    ]


def render_workload(
    replica: Replica, wanted: Sequence[int], place: ClusterPlace, plan: Plan = plan_engine
) -> Object:
    """The Deployment of a revision."""
    selector = label_revision(replica.deployment, replica.revision)
    # Kubernetes puts the address of the pod in the place of `$(POD_IP)`.
    launch = plan(replica.spec, Place(port=ENGINE_PORT, host="$(POD_IP)", python="python3"))
    metadata = _name(replica.deployment, replica.revision, place)
    metadata["annotations"] = {WANTED_ANNOTATION: format_wanted(wanted)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": len(set(wanted)),
            "selector": {"matchLabels": selector},
            # Replicas of one revision are alike: nothing but a node's end ever replaces one.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "progressDeadlineSeconds": math.ceil(launch.ready_timeout_s) + 60,
            "revisionHistoryLimit": 1,
            "template": {
                "metadata": {"labels": metadata["labels"] | selector},
                "spec": render_pod(replica, launch, place),
            },
        },
    }


def render_pod(replica: Replica, launch: LaunchPlan, place: ClusterPlace) -> Object:
    """The pod's spec."""
    selector = label_revision(replica.deployment, replica.revision)
    volumes: list[Object] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if place.weights_claim:
        claim = {"claimName": place.weights_claim, "readOnly": True}
        volumes.append({"name": "weights", "persistentVolumeClaim": claim})
    pod: Object = {
        "containers": [render_container(replica, launch, place)],
        "volumes": volumes,
        "terminationGracePeriodSeconds": math.ceil(launch.stop_timeout_s),
        "automountServiceAccountToken": False,  # an engine has nothing to ask of the cluster
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": place.user,
            "fsGroup": place.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector},
            }
        ],
    }
    if place.service_account:
        pod["serviceAccountName"] = place.service_account
    if place.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in place.pull_secrets]
    if place.node_selector:
        pod["nodeSelector"] = dict(place.node_selector)
    if place.tolerations:
        pod["tolerations"] = [dict(each) for each in place.tolerations]
    return pod


def render_container(replica: Replica, launch: LaunchPlan, place: ClusterPlace) -> Object:
    """The engine's container."""
    mounts: list[Object] = [{"name": "shared-memory", "mountPath": SHARED_MEMORY}]
    if place.weights_claim:
        mounts.append({"name": "weights", "mountPath": place.weights_path, "readOnly": True})
    resources = render_resources(replica, place)
    path = "/" + launch.health_url.split("/", 3)[3]
    probe = {"httpGet": {"path": path, "port": "http"}, "periodSeconds": PROBE_PERIOD_S}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    starts = math.ceil(launch.ready_timeout_s / PROBE_PERIOD_S)
    return {
        "name": CONTAINER,
        "image": find_image(replica.spec, place),
        "imagePullPolicy": "IfNotPresent",
        "command": list(launch.argv),
        "env": [address, *({"name": name, "value": value} for name, value in sorted(launch.env.items()))],
        "ports": [{"name": "http", "containerPort": ENGINE_PORT}],
        "resources": resources,
        "startupProbe": probe | {"timeoutSeconds": 5, "failureThreshold": starts},
        "readinessProbe": probe | {"timeoutSeconds": 5, "failureThreshold": 2},
        # An engine under full load answers late: only one that has been silent for long is started anew.
        "livenessProbe": probe | {"timeoutSeconds": 30, "failureThreshold": 6},
        "volumeMounts": mounts,
        # What an engine said last is shown where it wrote no message of its own.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def render_resources(replica: Replica, place: ClusterPlace) -> Object:
    """Requests and limits.  Beyond what it asked for of memory, an engine is out of memory."""
    given = replica.resources
    requests: dict[str, str] = {"cpu": f"{round(given.cpus * 1000)}m"}
    limits: dict[str, str] = {}
    if given.memory_mib is not None:
        requests["memory"] = limits["memory"] = f"{given.memory_mib}Mi"
    if given.gpus:
        if given.gpus != int(given.gpus):
            raise LauncherError(
                f"the deployment {replica.deployment!r} asks for {given.gpus:g} GPUs, and Kubernetes gives "
                "whole ones. Give `resources.gpus` a whole number."
            )
        limits[place.gpu_resource] = str(int(given.gpus))  # what is limited is requested
    return {"requests": requests} | ({"limits": limits} if limits else {})


def render_service(deployment: str, revision: str, place: ClusterPlace) -> Object:
    """A headless Service: a name for each pod, and for whoever collects metrics."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _name(deployment, revision, place),
        "spec": {
            "clusterIP": "None",
            "selector": label_revision(deployment, revision),
            "ports": [{"name": "http", "port": ENGINE_PORT, "targetPort": "http"}],
        },
    }


def render_budget(deployment: str, revision: str, place: ClusterPlace) -> Object:
    """Nodes may be drained, one replica at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _name(deployment, revision, place),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": label_revision(deployment, revision)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def render_scaler(
    deployment: str,
    revision: str,
    place: ClusterPlace,
    *,
    replicas_min: int,
    replicas_max: int,
    waiting_metric: str,
    waiting_target: int = 2,
) -> Object:
    """A HorizontalPodAutoscaler, for whoever lets Kubernetes scale instead of Forebay.

    Args:
        waiting_metric: of each pod, the requests that wait in its engine; an adapter such as
            prometheus-adapter has to serve it under `custom.metrics.k8s.io`.
        waiting_target: of them for each pod, on average, from which on one more is wanted.
    """
    calm = {"type": "Pods", "value": 1, "periodSeconds": 60}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _name(deployment, revision, place),
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": name_revision(deployment, revision),
            },
            "minReplicas": max(replicas_min, 1),  # 0 needs a feature gate that few clusters have
            "maxReplicas": replicas_max,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": waiting_metric},
                        "target": {"type": "AverageValue", "averageValue": str(waiting_target)},
                    },
                }
            ],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [calm | {"value": 4}]},
                "scaleDown": {"stabilizationWindowSeconds": 300, "policies": [calm]},
            },
        },
    }


def parse_refused(text: str) -> dict[int, str]:
    """The replicas that can't start, and why; what was not written here is passed over."""
    try:
        found = json.loads(text)
        return {int(index): str(why) for index, why in found.items()}
    except (ValueError, AttributeError):
        return {}


def format_refused(refused: Mapping[int, str]) -> str:
    return json.dumps({str(index): why for index, why in sorted(refused.items())})


def format_wanted(indexes: Sequence[int]) -> str:
    return ",".join(str(index) for index in sorted(set(indexes)))


def parse_wanted(text: str) -> tuple[int, ...]:
    """The indexes of an annotation, in order; what is no index was not written here and is passed over."""
    parts = (part.strip() for part in text.split(","))
    return tuple(sorted({int(part) for part in parts if part.isascii() and part.isdigit()}))


def _name(deployment: str, revision: str, place: ClusterPlace) -> Object:
    labels = {"app.kubernetes.io/name": deployment, "app.kubernetes.io/component": "engine", **MANAGED}
    return {
        "name": name_revision(deployment, revision),
        "namespace": place.namespace,
        "labels": labels | label_revision(deployment, revision),
    }
