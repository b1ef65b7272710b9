"""Kubernetes alone: what the contract of launchers does not say, over the official client."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_scenes import validate_object

from forebay.engines.deployment import Replica, ReplicaState
from forebay.engines.kube_client import ClusterAccess
from forebay.engines.kube_launcher import KubernetesLauncher
from forebay.engines.kube_objects import (
    COST_ANNOTATION,
    INDEX_ANNOTATION,
    WANTED_ANNOTATION,
    ClusterPlace,
)
from forebay.engines.model import EngineSpec, LauncherError
from forebay.testing.answers import json_answer
from forebay.testing.cluster import FakeCluster, Refusal
from forebay.testing.threaded import ThreadedUpstream

PLACE = ClusterPlace(images={"llamacpp": "registry.example/engine:1"})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    """One whose pods are never run: what is looked at here are the objects."""
    with FakeCluster(tmp_path / "cluster", validate=validate_object, page=2, runs=False) as cluster:
        yield cluster


def connect(url: str, folder: Path, place: ClusterPlace = PLACE) -> KubernetesLauncher:
    return KubernetesLauncher(place, ClusterAccess(url=url), folder / "logs")


def replica(index: int = 0, revision: str = "r1") -> Replica:
    spec = EngineSpec(name="m", kind="llamacpp")
    return Replica(deployment="chat", revision=revision, index=index, spec=spec)


def put_pod(cluster: FakeCluster, name: str, index: int | None = None, revision: str = "r1") -> None:
    labels = {
        "app.kubernetes.io/managed-by": "forebay",
        "forebay.dev/deployment": "chat",
        "forebay.dev/revision": revision,
    }
    annotations = {} if index is None else {INDEX_ANNOTATION: str(index)}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    cluster.make("pods", {"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})


def annotations(cluster: FakeCluster, kind: str, name: str) -> dict[str, str]:
    found: dict[str, str] = cluster.objects[kind, name]["metadata"]["annotations"]
    return found


def test_replicas_of_a_revision_are_one_deployment(cluster: FakeCluster, tmp_path: Path) -> None:
    async def run() -> None:
        launcher = connect(cluster.url, tmp_path)
        await asyncio.gather(*(launcher.start(replica(index)) for index in (3, 0, 1)))
        await connect(cluster.url, tmp_path).start(replica(2, "r2"))
        assert {name for kind, name in cluster.objects if kind == "deployments"} == {"chat-r1", "chat-r2"}
        workload = cluster.objects["deployments", "chat-r1"]
        assert workload["spec"]["replicas"] == 3
        assert annotations(cluster, "deployments", "chat-r1")[WANTED_ANNOTATION] == "0,1,3"
        found = {status.id: status.state for status in await launcher.list()}
        assert found == dict.fromkeys(
            ["chat-r1-0", "chat-r1-1", "chat-r1-3", "chat-r2-2"], ReplicaState.PENDING
        )

    asyncio.run(run())


def test_the_pod_of_a_replica_that_ends_leaves_first(cluster: FakeCluster, tmp_path: Path) -> None:
    async def run() -> None:
        launcher = connect(cluster.url, tmp_path)
        for index in range(3):
            await launcher.start(replica(index))
        for name in ("a", "b", "c"):
            put_pod(cluster, name)
        await launcher.list()
        numbered = {annotations(cluster, "pods", name)[INDEX_ANNOTATION]: name for name in ("a", "b", "c")}
        assert set(numbered) == {"0", "1", "2"}
        await launcher.stop("chat-r1-1")
        assert annotations(cluster, "pods", numbered["1"])[COST_ANNOTATION] == "-1000"
        assert cluster.objects["deployments", "chat-r1"]["spec"]["replicas"] == 2
        # Had Kubernetes taken another one, this one would stand in for that, and not be the first to go.
        cluster.remove("pods", numbered["0"])
        await launcher.list()
        assert COST_ANNOTATION not in annotations(cluster, "pods", numbered["1"])
        for index in (0, 2):
            await launcher.stop(f"chat-r1-{index}")
        assert not [key for key in cluster.objects if key[0] != "pods"], "nothing is left of the revision"

    asyncio.run(run())


def test_who_changes_a_deployment_beside_us_is_not_undone(cluster: FakeCluster, tmp_path: Path) -> None:
    async def run() -> None:
        launcher = connect(cluster.url, tmp_path)
        await launcher.start(replica(0))
        met = 0

        def interfere(request: str) -> None:
            nonlocal met
            if request.startswith("PUT ") and met < 3:
                met += 1
                workload = cluster.objects["deployments", "chat-r1"]
                workload["metadata"]["annotations"]["example.com/note"] = f"mine {met}"
                cluster.put("deployments", workload)

        cluster.before = interfere
        await launcher.start(replica(1))
        assert met == 3
        noted = annotations(cluster, "deployments", "chat-r1")
        assert (noted["example.com/note"], noted[WANTED_ANNOTATION]) == ("mine 3", "0,1")

    asyncio.run(run())


def test_a_start_that_was_cut_off_is_carried_on(cluster: FakeCluster, tmp_path: Path) -> None:
    async def run() -> None:
        launcher = connect(cluster.url, tmp_path)

        def refuse(request: str) -> None:
            if request == "POST /apis/apps/v1/namespaces/default/deployments":
                raise Refusal(500, "InternalError", "etcd is away")

        cluster.before = refuse
        with pytest.raises(LauncherError, match="500: etcd is away"):
            await launcher.start(replica(0))
        cluster.before = lambda request: None
        await launcher.start(replica(0))
        assert ("deployments", "chat-r1") in cluster.objects

    asyncio.run(run())


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (Refusal(401, "Unauthorized", "Unauthorized"), "Renew the kubeconfig"),
        (Refusal(403, "Forbidden", 'deployments.apps is forbidden: User "x"'), "the rights that are needed"),
        (Refusal(429, "TooManyRequests", "slow down"), "answers 429: slow down"),
        (Refusal(422, "Invalid", "spec.replicas: must be more"), "refuses the object: spec.replicas"),
    ],
)
def test_what_the_api_refuses_is_put_in_words(
    cluster: FakeCluster, tmp_path: Path, refusal: Refusal, said: str
) -> None:
    def refuse(request: str) -> None:
        raise refusal

    cluster.before = refuse
    for do in ("start", "list", "stop", "logs"):

        async def run(do: str = do) -> None:
            launcher = connect(cluster.url, tmp_path)
            match do:
                case "start":
                    await launcher.start(replica())
                case "list":
                    await launcher.list()
                case "stop":
                    await launcher.stop("chat-r1-0")
                case _:
                    await launcher.logs("chat-r1-0")

        with pytest.raises(LauncherError, match=said):
            asyncio.run(run())


def test_an_object_that_the_schema_refuses_is_refused(cluster: FakeCluster, tmp_path: Path) -> None:
    place = ClusterPlace(images=PLACE.images, tolerations=({"effekt": "NoSchedule"},))
    with pytest.raises(LauncherError, match="effekt"):
        asyncio.run(connect(cluster.url, tmp_path, place).start(replica()))


def test_a_namespace_that_is_not_there_is_named(cluster: FakeCluster, tmp_path: Path) -> None:
    place = ClusterPlace(images=PLACE.images, namespace="nowhere")
    with pytest.raises(LauncherError, match="no namespace 'nowhere'"):
        asyncio.run(connect(cluster.url, tmp_path, place).start(replica()))


def test_a_cluster_that_is_away_is_told_from_one_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="can't be reached"):
        asyncio.run(connect("http://127.0.0.1:9", tmp_path).list())
    with (
        ThreadedUpstream(json_answer(["not", "an", "object"])) as upstream,
        pytest.raises(LauncherError, match="no whole Kubernetes API"),
    ):
        asyncio.run(connect(upstream.url.removesuffix("/v1"), tmp_path).list())


def test_a_kubeconfig_that_says_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{}")
    for access in (
        ClusterAccess(kubeconfig=str(tmp_path / "config")),
        ClusterAccess(kubeconfig=str(tmp_path / "missing")),
        ClusterAccess(kubeconfig=str(tmp_path / "config"), context="nobody"),
    ):
        with pytest.raises(LauncherError, match="no way to the Kubernetes API is known"):
            KubernetesLauncher(PLACE, access, tmp_path / "logs")
