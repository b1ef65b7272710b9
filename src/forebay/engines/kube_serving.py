"""What a deployment is for whoever runs KServe: an `InferenceService` or an `LLMInferenceService`; and for
whoever applies objects by other means, all that `kube_objects` renders with an autoscaler.

Pure.  Forebay does not watch what it renders here: KServe runs it, and a target with its address leads there.

Fields: `serving.kserve.io/v1beta1` and `v1alpha2` of KServe 0.21.
"""

from typing import Any, Final

import msgspec

from forebay.engines.deployment import Deployment, Replica
from forebay.engines.kube_objects import (
    CONTAINER,
    MANAGED,
    ClusterPlace,
    Object,
    Plan,
    check_weights,
    render_revision,
    render_scaler,
    render_workload,
)
from forebay.engines.model import LauncherError
from forebay.engines.plan import plan_engine
from forebay.engines.vllm_options import compose_vllm_options

LLM_KIND: Final = "vllm"  #: the engine that an `LLMInferenceService` runs
#: Requests that wait, by kind of engine, as prometheus-adapter names them: without a colon.
WAITING_METRICS: Final = {"vllm": "vllm_num_requests_waiting", "llamacpp": "llamacpp_requests_deferred"}
SCHEMES: Final = ("hf", "s3", "gs", "pvc", "oci", "https")  #: of weights, that KServe fetches


def render_manifests(deployment: Deployment, place: ClusterPlace, plan: Plan = plan_engine) -> list[Object]:
    """A Kubernetes Deployment, all that belongs to it, and an autoscaler where the number of replicas varies.

    Raises:
        LauncherError: it can't be put on a cluster as it is.
    """
    replica = first_replica(deployment)
    found = render_revision(replica, range(max(deployment.replicas_min, 1)), place, plan)
    if deployment.replicas_max > deployment.replicas_min:
        # Two who set the number of replicas would undo each other.
        del found[0]["spec"]["replicas"]
        metric = WAITING_METRICS.get(deployment.spec.kind)
        if metric is None:
            raise LauncherError(
                f"engines of kind {deployment.spec.kind!r} tell no metric that Kubernetes could scale by. "
                "Give `replicas` one number."
            )
        found.append(
            render_scaler(
                deployment.name,
                deployment.revision,
                place,
                replicas_min=deployment.replicas_min,
                replicas_max=deployment.replicas_max,
                waiting_metric=metric,
            )
        )
    return found


def render_inference_service(deployment: Deployment, place: ClusterPlace, plan: Plan = plan_engine) -> Object:
    """KServe's `InferenceService` with the engine as a custom container."""
    check_weights(deployment.spec)
    pod = _render_pod(deployment, place, plan)
    pod["containers"][0]["name"] = "kserve-container"  # by which KServe knows the one that serves
    predictor = {"minReplicas": deployment.replicas_min, "maxReplicas": deployment.replicas_max, **pod}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        # Streams outlive what Knative allows a request, and it counts requests, not tokens.
        "metadata": _name(deployment, place, {"serving.kserve.io/deploymentMode": "Standard"}),
        "spec": {"predictor": predictor},
    }


def render_llm_inference_service(
    deployment: Deployment, place: ClusterPlace, plan: Plan = plan_engine
) -> Object:
    """KServe's `LLMInferenceService`, whose own router Forebay takes the place of.

    Raises:
        LauncherError: the engine is not vLLM, or nobody but this machine has the weights.
    """
    spec = deployment.spec
    if spec.kind != LLM_KIND:
        raise LauncherError(
            f"an LLMInferenceService runs vLLM, and the deployment {deployment.name!r} is one of "
            f"{spec.kind}. Render it as an InferenceService."
        )
    model: dict[str, Any] = {"uri": _find_uri(spec.model, deployment.name), "name": spec.name}
    if spec.adapters:
        adapters = [
            {"name": name, "uri": _find_uri(path, deployment.name)} for name, path in spec.adapters.items()
        ]
        model["lora"] = {"adapters": adapters}
    pod = _render_pod(deployment, place, plan)
    container = pod["containers"][0]
    container["name"] = "main"
    for given in ("command", "ports", "startupProbe", "readinessProbe", "livenessProbe", "env"):
        del container[given]  # KServe's own templates say these
    container["args"] = _list_arguments(deployment)
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": _name(deployment, place, {}),
        "spec": {"model": model, "replicas": max(deployment.replicas_min, 1), "template": pod},
    }


def first_replica(deployment: Deployment) -> Replica:
    return Replica(
        deployment=deployment.name,
        revision=deployment.revision,
        index=0,
        spec=deployment.spec,
        environment=deployment.environment,
        resources=deployment.resources,
    )


def _render_pod(deployment: Deployment, place: ClusterPlace, plan: Plan) -> dict[str, Any]:
    workload = render_workload(first_replica(deployment), (0,), place, plan)
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    assert pod["containers"][0]["name"] == CONTAINER
    return pod


def _list_arguments(deployment: Deployment) -> list[str]:
    """Of vLLM, less what KServe says itself: address, weights, name and adapters."""
    options = compose_vllm_options(msgspec.structs.replace(deployment.spec, adapters={}))
    return [each for each in options if not each.startswith("--served-model-name=")]


def _find_uri(weights: str, name: str) -> str:
    """Raises LauncherError where KServe can't fetch them."""
    scheme, found, _ = weights.partition("://")
    if found and scheme in SCHEMES:
        return weights
    raise LauncherError(
        f"the weights {weights!r} of {name!r} lie on this machine alone. Give their place as an address that "
        f"starts with one of {', '.join(f'{each}://' for each in SCHEMES)}."
    )


def _name(deployment: Deployment, place: ClusterPlace, annotations: dict[str, str]) -> Object:
    labels = {"app.kubernetes.io/name": deployment.name, **MANAGED}
    metadata: Object = {"name": deployment.name, "namespace": place.namespace, "labels": labels}
    return metadata | ({"annotations": annotations} if annotations else {})
