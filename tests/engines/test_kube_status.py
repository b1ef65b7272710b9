"""What a cluster says of pods, as replicas: recreated from the API's documentation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.deployment import ExitReason, ReplicaState
from forebay.engines.kube_objects import (
    DEPLOYMENT_LABEL,
    INDEX_ANNOTATION,
    REFUSED_ANNOTATION,
    REVISION_LABEL,
    WANTED_ANNOTATION,
    format_refused,
)
from forebay.engines.kube_status import assign_pods, list_leaving, list_statuses

LABELS = {DEPLOYMENT_LABEL: "chat", REVISION_LABEL: "r1"}
WHEN = "2026-11-30T12:00:00Z"
LAST_WORDS = "no model here\n"


def workload(wanted: str, refused: dict[int, str] | None = None, **status: Any) -> dict[str, Any]:
    annotations = {WANTED_ANNOTATION: wanted, REFUSED_ANNOTATION: format_refused(refused or {})}
    return {"metadata": {"name": "chat-r1", "labels": LABELS, "annotations": annotations}, "status": status}


def pod(name: str, index: int | None = None, *, going: bool = False, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": WHEN, "labels": LABELS}
    if index is not None:
        metadata["annotations"] = {INDEX_ANNOTATION: str(index)}
    if going:
        metadata["deletionTimestamp"] = WHEN
    return {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", **status}}


def container(state: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "engine", "restartCount": 0, "state": state, **facts}]}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": LAST_WORDS}}


RUNS = {"running": {"startedAt": WHEN}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}


@pytest.mark.parametrize(
    ("status", "state", "reason", "message"),
    [
        (container(RUNS, ready=True) | {"podIP": "10.0.0.7"}, ReplicaState.READY, ExitReason.NONE, ""),
        (container(RUNS, ready=False) | {"podIP": "10.0.0.7"}, ReplicaState.STARTING, ExitReason.NONE, ""),
        (
            container(BACK_OFF, lastState=ended(1), restartCount=3),
            ReplicaState.BACKOFF,
            ExitReason.CRASHED,
            "no model here",
        ),
        (
            container(BACK_OFF, lastState=ended(137, "OOMKilled"), restartCount=1),
            ReplicaState.BACKOFF,
            ExitReason.OUT_OF_MEMORY,
            "no model here",
        ),
        (
            container(BACK_OFF, lastState=ended(137)),
            ReplicaState.BACKOFF,
            ExitReason.CRASHED,
            "no model here",
        ),
        (container(BACK_OFF, lastState=ended(3)), ReplicaState.BACKOFF, ExitReason.STALLED, "no model here"),
        (container(ended(2)), ReplicaState.REFUSED, ExitReason.REFUSED, "no model here"),
        (
            container({"waiting": {"reason": "CreateContainerConfigError", "message": "secret not found"}}),
            ReplicaState.REFUSED,
            ExitReason.REFUSED,
            "secret not found",
        ),
        (
            container({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            ReplicaState.PENDING,
            ExitReason.NONE,
            "its image can't be had: no such image",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                    }
                ],
            },
            ReplicaState.PENDING,
            ExitReason.NONE,
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        ),
        ({"phase": "Pending"}, ReplicaState.PENDING, ExitReason.NONE, ""),
    ],
)
def test_a_pod_is_told_as_a_replica(
    status: dict[str, Any], state: ReplicaState, reason: ExitReason, message: str
) -> None:
    (found,) = list_statuses(workload("4"), [pod("a", 4, **status)])
    assert (found.id, found.state, found.reason, found.message) == ("chat-r1-4", state, reason, message)
    assert found.node == "n1"
    assert found.since_s == 1796040000
    assert bool(found.url) == (state is ReplicaState.READY)


def test_an_address_of_ipv6_is_put_in_brackets() -> None:
    ready = container(RUNS, ready=True) | {"podIP": "fd00::7"}
    (found,) = list_statuses(workload("0"), [pod("a", 0, **ready)])
    assert found.url == "http://[fd00::7]:8000/v1"


def test_a_replica_without_a_pod_waits_and_says_for_what() -> None:
    quota = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    (found,) = list_statuses(workload("0", conditions=[quota]), [])
    assert (found.state, found.message) == (ReplicaState.PENDING, "exceeded quota: gpus")


def test_what_was_refused_stays_so_without_a_pod() -> None:
    refused = {1: "the weights are not there", 7: "not wanted any more"}
    found = {each.index: each for each in list_statuses(workload("0,1", refused), [pod("a", 0)])}
    assert set(found) == {0, 1}
    assert (found[1].state, found[1].message) == (ReplicaState.REFUSED, "the weights are not there")


def test_pods_that_are_going_are_told_also_without_their_deployment() -> None:
    leaving = pod("a", 0, going=True)
    assert [each.state for each in list_statuses(workload("1"), [leaving, pod("b", 1)])] == [
        ReplicaState.PENDING,
        ReplicaState.STOPPING,
    ]
    assert [each.id for each in list_leaving([leaving, pod("c", going=True)])] == ["chat-r1-0"]


names = st.text("abcdef", min_size=1, max_size=3)
pods = st.lists(
    st.tuples(names, st.none() | st.integers(0, 5), st.booleans()), max_size=8, unique_by=lambda each: each[0]
)


@given(pods, st.sets(st.integers(0, 5)))
def test_pods_keep_their_numbers_and_no_number_is_given_twice(
    given_: list[tuple[str, int | None, bool]], wanted: set[int]
) -> None:
    found = [pod(name, index, going=going) for name, index, going in given_]
    assigned = assign_pods(found, sorted(wanted))
    assert set(assigned) <= wanted
    chosen = [each["metadata"]["name"] for each in assigned.values()]
    assert len(set(chosen)) == len(chosen)
    living = {name: index for name, index, going in given_ if not going}
    assert set(chosen) <= set(living)
    assert len(assigned) == min(len(wanted), len(living)), "a pod that is there is used"
    for index in wanted & set(living.values()) - {None}:
        assert living[assigned[index]["metadata"]["name"]] == index, "a number that a pod has stays with one"
