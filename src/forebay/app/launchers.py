"""Opens the launchers that deployments name, each when it is first needed.

Reaching for Kubernetes or Ray costs time and may fail, and most installations have neither.
"""

from collections.abc import Callable, Mapping, Sequence

from forebay.app.config import Config
from forebay.app.launcher_local import LocalLauncher
from forebay.app.launcher_ray import RayLauncher
from forebay.app.ray_actor import NodeSettings
from forebay.engines.deployment import Launcher, LauncherKind, Replica, ReplicaStatus
from forebay.engines.kube_launcher import KubernetesLauncher

ENVIRONMENTS_FOLDER = "environments"


def open_launchers(config: Config) -> Mapping[LauncherKind, Launcher]:
    """All kinds.  Nothing is reached for before one is asked something."""
    return {
        LauncherKind.LOCAL: LocalLauncher(config.run_path, config.logs_path),
        LauncherKind.KUBERNETES: LazyLauncher(LauncherKind.KUBERNETES, lambda: _open_kubernetes(config)),
        LauncherKind.RAY: LazyLauncher(LauncherKind.RAY, lambda: _open_ray(config)),
    }


class LazyLauncher:
    """A `Launcher` that is opened when it is first asked, and again where that failed."""

    def __init__(self, kind: LauncherKind, open: Callable[[], Launcher]) -> None:
        self.kind = kind
        self._open = open
        self._opened: Launcher | None = None

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    async def start(self, replica: Replica) -> None:
        await self._reach().start(replica)

    async def stop(self, replica_id: str) -> None:
        await self._reach().stop(replica_id)

    async def list(self) -> Sequence[ReplicaStatus]:
        return await self._reach().list()

    async def logs(self, replica_id: str, lines: int = 100) -> Sequence[str]:
        """Of nobody while nothing of it runs: who asks for logs asks all launchers."""
        return () if self._opened is None else await self._opened.logs(replica_id, lines)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    def _reach(self) -> Launcher:
        if self._opened is None:
            self._opened = self._open()
        return self._opened


def _open_kubernetes(config: Config) -> Launcher:
    settings = config.launchers.kubernetes
    logs = config.logs_path / "kubernetes"
    return KubernetesLauncher(settings.compile_place(), settings.compile_access(), logs)


def _open_ray(config: Config) -> Launcher:
    settings = config.launchers.ray
    environments = settings.environments or str(config.data_path.absolute() / ENVIRONMENTS_FOLDER)
    return RayLauncher(
        settings.compile_access(), config.logs_path / "ray.log", NodeSettings(environments=environments)
    )
