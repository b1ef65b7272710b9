"""Runs replicas on Kubernetes, through the official client: one Deployment for each revision.

Carries out what `kube_objects` renders and reads what `kube_status` makes of it.  Which replicas are to run
stands in an annotation of the Deployment, and changes only with its resource version, so that two who change
it at once don't undo each other.  Keeps nothing in memory that it could not read again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from forebay.engines.deployment import LauncherKind, Replica, ReplicaState, ReplicaStatus, split_id
from forebay.engines.kube_client import ClusterAccess, ClusterApi, translating
from forebay.engines.kube_logs import LogKeeper
from forebay.engines.kube_objects import (
    COST_ANNOTATION,
    INDEX_ANNOTATION,
    MANAGED,
    REFUSED_ANNOTATION,
    WANTED_ANNOTATION,
    ClusterPlace,
    Object,
    Plan,
    format_refused,
    format_wanted,
    label_revision,
    name_revision,
    render_revision,
)
from forebay.engines.kube_status import (
    assign_pods,
    is_going,
    list_leaving,
    list_statuses,
    read_index,
    read_refused,
    read_wanted,
)
from forebay.engines.model import LauncherError
from forebay.engines.plan import plan_engine

CONFLICTS_MAX: Final = 8  #: with whoever changes the same object, before a change is given up
LEAVES_FIRST: Final = "-1000"  #: deletion cost of the pod of a replica that is to end

Result = TypeVar("Result")


class KubernetesLauncher:
    """A `Launcher`.

    Args:
        place: where on the cluster.
        access: how its API is reached.
        logs: a folder for the logs of replicas that end: a cluster drops them with their pods.
        plan: how an engine is started.

    Raises:
        LauncherError: the client is not installed, or what it needs is not there.
    """

    kind = LauncherKind.KUBERNETES

    def __init__(
        self, place: ClusterPlace, access: ClusterAccess, logs: Path, plan: Plan = plan_engine
    ) -> None:
        self._place = place
        self._plan = plan
        self._api = ClusterApi(access, place.namespace)
        self._keeper = LogKeeper(self._api, logs)
        self._changing = asyncio.Lock()

    async def start(self, replica: Replica) -> None:
        async with self._changing:
            await self._call(lambda: self._start(replica))

    async def stop(self, replica_id: str) -> None:
        if (parts := split_id(replica_id)) is not None:
            async with self._changing:
                await self._call(lambda: self._stop(*parts))

    async def list(self) -> Sequence[ReplicaStatus]:
        async with self._changing:
            return await self._call(self._list)

    async def logs(self, replica_id: str, lines: int = 100) -> Sequence[str]:
        return await self._call(lambda: self._logs(replica_id, lines))

    async def close(self) -> None:
        await asyncio.to_thread(self._keeper.close)
        await asyncio.to_thread(self._api.close)

    # --- in threads: the client blocks ----------------------------------------------------------------------

    async def _call(self, do: Callable[[], Result]) -> Result:
        return await asyncio.to_thread(translating, do, self._api)

    def _start(self, replica: Replica) -> None:
        def change(found: Object | None) -> Object | None:
            wanted = () if found is None else read_wanted(found)
            if replica.index in wanted:
                return None
            wanted = (*wanted, replica.index)
            workload, service, budget = render_revision(replica, wanted, self._place, self._plan)
            if found is not None:
                return _want(found, wanted, read_refused(found))
            self._api.create("services", service)
            self._api.create("poddisruptionbudgets", budget)
            return workload

        self._change(name_revision(replica.deployment, replica.revision), change)

    def _stop(self, deployment: str, revision: str, index: int) -> None:
        name = name_revision(deployment, revision)

        def change(found: Object | None) -> Object | None:
            if found is None or index not in read_wanted(found):
                return None
            left = [each for each in read_wanted(found) if each != index]
            pods = self._api.list("pods", label_revision(deployment, revision))
            if (pod := assign_pods(pods, _list_running(found)).get(index)) is not None:
                self._annotate(pod, {INDEX_ANNOTATION: str(index), COST_ANNOTATION: LEAVES_FIRST})
                self._keeper.follow(f"{name}-{index}", pod["metadata"]["name"])
            if left:
                return _want(found, left, read_refused(found))
            # The Deployment last: while it is there, somebody will come back for the rest.
            for kind in ("poddisruptionbudgets", "services", "deployments"):
                self._api.delete(kind, name)
            return None

        self._change(name, change)

    def _list(self) -> Sequence[ReplicaStatus]:
        workloads = self._api.list("deployments", MANAGED)
        pods = self._api.list("pods", MANAGED)
        statuses: list[ReplicaStatus] = []
        for workload in workloads:
            labels = workload["spec"]["selector"]["matchLabels"]
            own = [pod for pod in pods if labels.items() <= (pod["metadata"].get("labels") or {}).items()]
            pods = [pod for pod in pods if pod not in own]
            self._number(workload, own)
            found = list_statuses(workload, own)
            self._give_up(workload, own, found)
            statuses += found
        statuses += list_leaving(pods)
        known = {status.id for status in statuses}
        # One whose last words are not kept yet is not gone.
        return statuses + [_leaving(id) for id in sorted(self._keeper.followed - known)]

    def _number(self, workload: Object, pods: Sequence[Object]) -> None:
        """Writes onto the pods which replicas they are, so that each stays the one that it is."""
        for index, pod in assign_pods(pods, _list_running(workload)).items():
            found = pod["metadata"].get("annotations") or {}
            if read_index(pod) != index or COST_ANNOTATION in found:
                self._annotate(pod, {INDEX_ANNOTATION: str(index), COST_ANNOTATION: None})

    def _give_up(self, workload: Object, pods: Sequence[Object], found: Sequence[ReplicaStatus]) -> None:
        """Takes the pods of replicas away that can't start: Kubernetes would start them for ever."""
        known = read_refused(workload)
        refused = {
            status.index: status.message
            for status in found
            if status.state is ReplicaState.REFUSED and status.index not in known
        }
        if not refused:
            return
        assigned = assign_pods(pods, _list_running(workload))
        for index in refused.keys() & assigned.keys():
            self._annotate(assigned[index], {COST_ANNOTATION: LEAVES_FIRST})

        def change(current: Object | None) -> Object | None:
            if current is None:
                return None
            return _want(current, read_wanted(current), read_refused(current) | refused)

        self._change(workload["metadata"]["name"], change)

    def _annotate(self, pod: Object, annotations: dict[str, str | None]) -> None:
        metadata = pod["metadata"]
        self._api.patch("pods", metadata["name"], {"metadata": {"annotations": annotations}})
        kept = (metadata.get("annotations") or {}) | annotations
        metadata["annotations"] = {name: value for name, value in kept.items() if value is not None}

    def _logs(self, replica_id: str, lines: int) -> Sequence[str]:
        parts = split_id(replica_id)
        if parts is None:
            return ()
        deployment, revision, index = parts
        pods = self._api.list("pods", label_revision(deployment, revision))
        named = sorted((pod for pod in pods if read_index(pod) == index), key=is_going)
        workload = self._api.read("deployments", name_revision(deployment, revision))
        if workload is not None and (pod := assign_pods(pods, _list_running(workload)).get(index)):
            named.insert(0, pod)  # it may have no number yet
        for pod in named:
            name = pod["metadata"]["name"]
            said = self._api.read_log(name, lines, previous=False)
            if len(said) < lines:  # it may have been started anew a moment ago
                said = [*self._api.read_log(name, lines - len(said), previous=True), *said]
            if said:
                return said
        return self._keeper.read(replica_id, lines)

    def _change(self, name: str, change: Callable[[Object | None], Object | None]) -> None:
        """Reads a Deployment, and writes what `change` makes of it, again where somebody else was quicker."""
        for _ in range(CONFLICTS_MAX):
            found = self._api.read("deployments", name)
            if found is not None and found["metadata"].get("deletionTimestamp"):
                found = None  # it is going; in its place another can't be made before it is gone
            wanted = change(found)
            if wanted is None:
                return
            written = self._api.create("deployments", wanted) if found is None else self._api.replace(wanted)
            if written:
                return
        raise LauncherError(
            f"the Kubernetes Deployment {name!r} can't be changed: others change it all the time, or it is "
            "still being deleted. Try again, and see that nobody else manages it."
        )


def _list_running(workload: Object) -> list[int]:
    """The replicas for which there is to be a pod."""
    refused = read_refused(workload)
    return [index for index in read_wanted(workload) if index not in refused]


def _want(workload: Object, indexes: Sequence[int], refused: Mapping[int, str]) -> Object:
    """The same Deployment with other replicas.  Its resource version goes along."""
    refused = {index: why for index, why in refused.items() if index in indexes}
    annotations = dict(workload["metadata"].get("annotations") or {})
    annotations[WANTED_ANNOTATION] = format_wanted(indexes)
    annotations[REFUSED_ANNOTATION] = format_refused(refused)
    return workload | {
        "metadata": workload["metadata"] | {"annotations": annotations},
        "spec": workload["spec"] | {"replicas": len(set(indexes) - set(refused))},
    }


def _leaving(replica_id: str) -> ReplicaStatus:
    parts = split_id(replica_id)
    assert parts is not None
    deployment, revision, index = parts
    return ReplicaStatus(
        id=replica_id, deployment=deployment, revision=revision, index=index, state=ReplicaState.STOPPING
    )
