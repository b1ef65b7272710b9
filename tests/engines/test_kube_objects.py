"""What is rendered for Kubernetes and KServe is what their published schemas take, whatever is deployed."""

from typing import Any

import kubernetes_validate
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kserve_shapes import check_llm_spec, check_pod, check_shape

from forebay.engines.deployment import Deployment, Replica, Resources
from forebay.engines.kube_objects import (
    WANTED_ANNOTATION,
    ClusterPlace,
    format_refused,
    format_wanted,
    parse_refused,
    parse_wanted,
    render_revision,
)
from forebay.engines.kube_serving import (
    render_inference_service,
    render_llm_inference_service,
    render_manifests,
)
from forebay.engines.model import EngineSpec, LauncherError, LaunchPlan
from forebay.engines.plan import Place

PLACE = ClusterPlace(images={"llamacpp": "registry.example/engine:1", "vllm": "vllm/vllm-openai:v{version}"})
LLAMA = EngineSpec(name="m", kind="llamacpp")
VLLM = EngineSpec(
    name="m",
    kind="vllm",
    version="0.32.0",
    model="hf://example/model",
    arguments={"enforce-eager": True, "stop": ("a", "b"), "quiet": False},
    adapters={"polite": "hf://example/polite"},
)
VERSIONS = ("1.30", "1.34", "1.37")


def plan_any(spec: EngineSpec, place: Place) -> LaunchPlan:
    url = f"http://{place.host}:{place.port}"
    return LaunchPlan(
        argv=("python3", "serve.py", f"--host={place.host}"),
        env={"B": "2", "A": "1"},
        health_url=f"{url}/health",
        probe_url=url,
        probe_body=b"",
        ready_timeout_s=61.0,
        stop_timeout_s=35.0,
    )


def make(**facts: Any) -> Replica:
    return Replica(**{"deployment": "chat", "revision": "0e12345678", "index": 0, "spec": LLAMA, **facts})


def check(found: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(found, version, strict=True)


labels = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
resources = st.builds(
    Resources,
    cpus=st.floats(0.001, 512),
    gpus=st.integers(0, 8).map(float),
    memory_mib=st.none() | st.integers(1, 1 << 22),
)
places = st.builds(
    ClusterPlace,
    namespace=labels,
    images=st.just(PLACE.images),
    pull_secrets=st.lists(labels, max_size=2).map(tuple),
    service_account=st.just("") | labels,
    weights_claim=st.just("") | labels,
    node_selector=st.dictionaries(labels, labels, max_size=2),
    tolerations=st.just(({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},)) | st.just(()),
)


@settings(max_examples=10, deadline=None)
@given(name=labels, given_=resources, place=places, wanted=st.sets(st.integers(0, 50), min_size=1))
def test_every_deployment_is_what_the_published_schemas_take(
    name: str, given_: Resources, place: ClusterPlace, wanted: set[int]
) -> None:
    objects = render_revision(make(deployment=name, resources=given_), sorted(wanted), place, plan_any)
    assert [each["kind"] for each in objects] == ["Deployment", "Service", "PodDisruptionBudget"]
    for each in objects:
        kubernetes_validate.validate(each, "1.34", strict=True)
    workload, service, budget = objects
    template = workload["spec"]["template"]
    for selector in (workload["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert selector.items() <= template["metadata"]["labels"].items()
    assert budget["spec"]["selector"] == workload["spec"]["selector"]
    assert parse_wanted(workload["metadata"]["annotations"][WANTED_ANNOTATION]) == tuple(sorted(wanted))
    assert workload["spec"]["replicas"] == len(wanted)
    # Kubernetes itself adds what tells pods apart, and cuts what is too long.
    assert len(workload["metadata"]["name"]) <= 63


def test_all_objects_are_valid_in_every_version_that_is_supported() -> None:
    deployment = Deployment(name="chat", model="chat", spec=LLAMA, replicas_min=1, replicas_max=4)
    objects = render_manifests(deployment, PLACE, plan_any)
    assert [each["kind"] for each in objects][-1] == "HorizontalPodAutoscaler"
    for each in objects:
        check(each)
    workload, scaler = objects[0], objects[-1]
    assert "replicas" not in workload["spec"], "who scales must be one alone"
    assert scaler["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 4)
    fixed = render_manifests(msgspec.structs.replace(deployment, replicas_max=1), PLACE, plan_any)
    assert [each["kind"] for each in fixed] == ["Deployment", "Service", "PodDisruptionBudget"]


def test_a_container_is_watched_limited_and_given_its_address() -> None:
    place = msgspec.structs.replace(PLACE, weights_claim="weights")
    replica = make(resources=Resources(cpus=1.5, gpus=2, memory_mib=2048))
    pod = render_revision(replica, (0,), place, plan_any)[0]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["command"] == ["python3", "serve.py", "--host=$(POD_IP)"]
    assert [each["name"] for each in container["env"]] == ["POD_IP", "A", "B"]
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] >= 61
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert container["resources"] == {
        "requests": {"cpu": "1500m", "memory": "2048Mi"},
        "limits": {"memory": "2048Mi", "nvidia.com/gpu": "2"},
    }
    assert pod["terminationGracePeriodSeconds"] == 35
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert mounts["weights"] == {"name": "weights", "mountPath": "/models", "readOnly": True}


@pytest.mark.parametrize(
    ("facts", "place", "wrong"),
    [
        ({"deployment": "Chat"}, PLACE, "shorter name"),
        ({"deployment": "c" * 41}, PLACE, "shorter name"),
        ({"resources": Resources(gpus=0.5)}, PLACE, "whole ones"),
        ({}, ClusterPlace(), "launchers.kubernetes.images.llamacpp"),
        ({"spec": EngineSpec(name="m", kind="vllm")}, PLACE, "engine.version"),
        ({"spec": VLLM}, PLACE, "LLMInferenceService alone"),
    ],
)
def test_what_can_not_be_put_on_a_cluster_is_said(
    facts: dict[str, Any], place: ClusterPlace, wrong: str
) -> None:
    with pytest.raises(LauncherError, match=wrong):
        render_revision(make(**facts), (0,), place, plan_any)


def test_the_version_of_an_engine_names_its_image() -> None:
    spec = msgspec.structs.replace(VLLM, model="/models/m", adapters={})
    workload = render_revision(make(spec=spec), (0,), PLACE, plan_any)[0]
    image = workload["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "vllm/vllm-openai:v0.32.0"


def test_an_inference_service_has_the_shape_that_kserve_gives_it() -> None:
    deployment = Deployment(name="chat", model="chat", spec=LLAMA, replicas_min=0, replicas_max=3)
    found = render_inference_service(deployment, PLACE, plan_any)
    check_shape(found, "V1beta1InferenceService")
    predictor = found["spec"]["predictor"]
    check_pod({key: value for key, value in predictor.items() if key not in ("minReplicas", "maxReplicas")})
    assert predictor["containers"][0]["name"] == "kserve-container"
    with pytest.raises(AssertionError, match="no field"):
        check_shape({"spec": {"predictor": {"minReplica": 1}}}, "V1beta1InferenceService")
    with pytest.raises(AssertionError, match="is no int"):
        check_shape({"spec": {"predictor": {"minReplicas": "1"}}}, "V1beta1InferenceService")


def test_an_llm_inference_service_names_model_adapters_and_arguments() -> None:
    deployment = Deployment(name="chat", model="chat", spec=VLLM, replicas_min=2, replicas_max=2)
    found = render_llm_inference_service(deployment, PLACE, plan_any)
    check_shape({**found, "spec": {}}, "V1alpha2LLMInferenceService")
    check_llm_spec(found["spec"])
    assert found["spec"]["model"] == {
        "uri": "hf://example/model",
        "name": "m",
        "lora": {"adapters": [{"name": "polite", "uri": "hf://example/polite"}]},
    }
    container = found["spec"]["template"]["containers"][0]
    assert container["name"] == "main"
    assert container["args"][:2] == ["--max-model-len=8192", "--max-num-seqs=4"]
    assert not [each for each in container["args"] if "served-model-name" in each or "lora" in each]
    assert container["args"][-5:] == ["--enforce-eager", "--stop", "a", "b", "--no-quiet"]


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (LLAMA, "InferenceService"),
        (msgspec.structs.replace(VLLM, model="/models/x"), "lie on this machine alone"),
        (msgspec.structs.replace(VLLM, adapters={"a": "/models/a"}), "lie on this machine alone"),
    ],
)
def test_what_kserve_can_not_run_is_said(spec: EngineSpec, wrong: str) -> None:
    deployment = Deployment(name="chat", model="chat", spec=spec)
    with pytest.raises(LauncherError, match=wrong):
        render_llm_inference_service(deployment, PLACE, plan_any)


@given(st.sets(st.integers(0, 10**6)), st.dictionaries(st.integers(0, 99), st.text(max_size=20)))
def test_annotations_are_read_as_they_were_written(wanted: set[int], refused: dict[int, str]) -> None:
    assert parse_wanted(format_wanted(sorted(wanted, reverse=True))) == tuple(sorted(wanted))
    assert parse_refused(format_refused(refused)) == refused


@given(st.text(max_size=20))
def test_annotations_of_others_are_passed_over(text: str) -> None:
    assert all(index >= 0 for index in parse_wanted(text))
    assert isinstance(parse_refused(text), dict)
