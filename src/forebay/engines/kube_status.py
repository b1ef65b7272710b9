"""What a cluster says of a revision's pods, as replicas: pure, from the API's JSON to `ReplicaStatus`.

A pod has no number of its own; which replica it is stands in an annotation that the launcher gives it, and
`assign_pods` says which pod gets which.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from forebay.engines.deployment import ExitReason, ReplicaState, ReplicaStatus
from forebay.engines.kube_objects import (
    CONTAINER,
    DEPLOYMENT_LABEL,
    ENGINE_PORT,
    INDEX_ANNOTATION,
    REFUSED_ANNOTATION,
    REVISION_LABEL,
    WANTED_ANNOTATION,
    Object,
    parse_refused,
    parse_wanted,
)
from forebay.engines.model import EXIT_REFUSED, EXIT_STALLED

#: Reasons for which a container waits that no restart mends: somebody has to change something.
REFUSALS: Final = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "InvalidImageName",
        "RunContainerError",
    }
)
PULLING: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})


def assign_pods(pods: Sequence[Object], wanted: Sequence[int]) -> dict[int, Object]:
    """Which pod is which replica.

    A pod keeps the number that it has; the oldest that has none, or one that is not wanted, gets the lowest
    that is free.  Pods that are going get none.
    """
    living = [pod for pod in pods if not is_going(pod)]
    living.sort(key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]))
    found: dict[int, Object] = {}
    rest = []
    for pod in living:
        index = read_index(pod)
        if index is None or index not in wanted or index in found:
            rest.append(pod)
        else:
            found[index] = pod
    for index in sorted(set(wanted) - set(found)):
        if rest:
            found[index] = rest.pop(0)
    return found


def is_going(pod: Object) -> bool:
    """Whether it was asked to end, or has ended for good."""
    return bool(pod["metadata"].get("deletionTimestamp")) or _phase(pod) in ("Succeeded", "Failed")


def read_index(pod: Object) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() else None


def list_statuses(workload: Object, pods: Sequence[Object]) -> list[ReplicaStatus]:
    """All replicas of a revision: those that are to run, and those that are going.

    Args:
        workload: its Deployment.
        pods: of it.
    """
    metadata = workload["metadata"]
    wanted, refused = read_wanted(workload), read_refused(workload)
    if metadata.get("deletionTimestamp"):
        wanted, refused = (), {}
    assigned = assign_pods(pods, [index for index in wanted if index not in refused])
    labels = metadata["labels"]
    trouble = describe_workload(workload)
    statuses = [
        describe_pod(labels, index, assigned[index])
        if index in assigned
        else _status(labels, index, ReplicaState.PENDING, message=trouble or "its pod is not there yet")
        for index in wanted
        if index not in refused
    ]
    for index, why in refused.items():
        facts = {"failures": 1, "reason": ExitReason.REFUSED, "message": why}
        statuses.append(_status(labels, index, ReplicaState.REFUSED, **facts))
    return statuses + [status for status in list_leaving(pods) if status.index not in wanted]


def list_leaving(pods: Sequence[Object]) -> list[ReplicaStatus]:
    """The replicas whose pods were asked to end, and are there yet."""
    statuses = []
    for pod in pods:
        index, labels = read_index(pod), pod["metadata"].get("labels") or {}
        if index is not None and pod["metadata"].get("deletionTimestamp") and REVISION_LABEL in labels:
            facts = {"node": _node(pod), "since_s": parse_time(pod["metadata"]["deletionTimestamp"])}
            statuses.append(_status(labels, index, ReplicaState.STOPPING, **facts))
    return statuses


def read_wanted(workload: Object) -> tuple[int, ...]:
    """Which replicas of a Deployment are to run."""
    return parse_wanted((workload["metadata"].get("annotations") or {}).get(WANTED_ANNOTATION, ""))


def read_refused(workload: Object) -> dict[int, str]:
    """Which of those can't start, and why."""
    refused = parse_refused((workload["metadata"].get("annotations") or {}).get(REFUSED_ANNOTATION, ""))
    return {index: why for index, why in refused.items() if index in read_wanted(workload)}


def describe_workload(workload: Object) -> str:
    """Why no pod comes, such as a quota of the namespace; empty where nothing is wrong."""
    for condition in (workload.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def describe_pod(labels: Mapping[str, str], index: int, pod: Object) -> ReplicaStatus:
    """One replica's pod, which is not going."""
    container = _container(pod)
    restarts = int(container.get("restartCount") or 0)
    state = container.get("state") or {}
    last = (container.get("lastState") or {}).get("terminated") or state.get("terminated") or {}
    reason = classify_exit(last)
    waiting = state.get("waiting") or {}
    why = str(waiting.get("reason") or "")
    said = " ".join(str(last.get("message") or waiting.get("message") or "").split())
    common = {"node": _node(pod), "restarts": restarts, "reason": reason, "since_s": _since(pod)}

    if "running" in state:
        address = (pod.get("status") or {}).get("podIP") or ""
        if container.get("ready") and address:
            host = f"[{address}]" if ":" in address else address
            url = f"http://{host}:{ENGINE_PORT}/v1"
            return _status(labels, index, ReplicaState.READY, url=url, message=said, **common)
        return _status(labels, index, ReplicaState.STARTING, message=said, **common)
    if why in REFUSALS or reason is ExitReason.REFUSED:
        common |= {"restarts": 0, "failures": 1, "reason": ExitReason.REFUSED}
        return _status(labels, index, ReplicaState.REFUSED, message=said or why, **common)
    if why == "CrashLoopBackOff" or state.get("terminated"):
        failures = restarts + (1 if state.get("terminated") else 0)
        return _status(labels, index, ReplicaState.BACKOFF, failures=failures, message=said or why, **common)
    if why in PULLING:
        return _status(
            labels, index, ReplicaState.PENDING, message=f"its image can't be had: {said or why}", **common
        )
    return _status(labels, index, ReplicaState.PENDING, message=_scheduling(pod) or said or why, **common)


def classify_exit(terminated: Mapping[str, object]) -> ExitReason:
    """Why a container ended; `NONE` where it has not."""
    if not terminated:
        return ExitReason.NONE
    if terminated.get("reason") == "OOMKilled":
        return ExitReason.OUT_OF_MEMORY
    code = terminated.get("exitCode")
    if code == EXIT_REFUSED or terminated.get("reason") in ("ContainerCannotRun", "StartError"):
        return ExitReason.REFUSED
    return ExitReason.STALLED if code == EXIT_STALLED else ExitReason.CRASHED


def _scheduling(pod: Object) -> str:
    """What a pod waits for that has no node, as the scheduler says."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _container(pod: Object) -> Object:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == CONTAINER:
            return dict(status)
    return {}


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _since(pod: Object) -> float:
    """When its readiness last changed, else when it was made."""
    times = [pod["metadata"].get("creationTimestamp")]
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready":
            times.append(condition.get("lastTransitionTime"))
    stamps = [parse_time(text) for text in times if text]
    return max(stamps, default=0.0)


def parse_time(text: object) -> float:
    """Unix time of a timestamp of the API; 0 where it is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def _status(labels: Mapping[str, str], index: int, state: ReplicaState, **facts: object) -> ReplicaStatus:
    deployment, revision = labels[DEPLOYMENT_LABEL], labels[REVISION_LABEL]
    values: dict[str, object] = {"url": "", "node": "", **facts}
    return ReplicaStatus(
        id=f"{deployment}-{revision}-{index}",
        deployment=deployment,
        revision=revision,
        index=index,
        state=state,
        **values,  # type: ignore[arg-type]
    )
