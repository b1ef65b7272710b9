"""Replicas and deployments for Prometheus, as the deployer saw them last.  Nothing is kept twice."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay.engines.deployment import DeploymentPhase, DeploymentStatus, ExitReason, ReplicaState


class DeploymentCollector(Collector):
    """See the module.

    Args:
        get_statuses: of all deployments, by name.
        get_exits: how often replicas ended by themselves since this process began, by deployment and reason.
    """

    def __init__(
        self,
        get_statuses: Callable[[], Mapping[str, DeploymentStatus]],
        get_exits: Callable[[], Counter[tuple[str, ExitReason]]],
    ) -> None:
        self._get_statuses = get_statuses
        self._get_exits = get_exits

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        replicas = GaugeMetricFamily(
            "forebay_replicas", "Replicas of a deployment by their state.", labels=("deployment", "state")
        )
        phases = GaugeMetricFamily(
            "forebay_deployment_phase", "1 for the phase it is in.", labels=("deployment", "phase")
        )
        share = GaugeMetricFamily(
            "forebay_deployment_share_ratio",
            "Share of its requests of the revision that was asked for.",
            labels=("deployment",),
        )
        for name, status in self._get_statuses().items():
            counts = Counter(each.state for each in status.replicas)
            for state in ReplicaState:
                replicas.add_metric((name, state.value), counts[state])
            for phase in DeploymentPhase:
                phases.add_metric((name, phase.value), float(status.phase is phase))
            share.add_metric((name,), status.share)
        exits = CounterMetricFamily(
            "forebay_replica_exits",
            "Replicas that ended by themselves, by the reason.",
            labels=("deployment", "reason"),
        )
        for (name, reason), count in self._get_exits().items():
            exits.add_metric((name, reason.value), count)
        yield from (replicas, phases, share, exits)
