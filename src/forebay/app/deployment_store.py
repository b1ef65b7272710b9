"""Which deployments are to run: those of `forebay.yaml` and those that were applied, together.

What it holds is as of the last `poll`, so looking at it costs nothing.  Where a name stands in both, the
file's holds, and `problems` says so; so does a stored manifest that this version can't take.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from forebay.app.config import Config
from forebay.app.config_deployments import DeploymentConfig
from forebay.app.deployment_compile import list_endpoints
from forebay.app.deployment_environments import compile_here, explain
from forebay.app.deployment_records import DeploymentRecord, Manifest
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.model_references import Pin, pin_manifest
from forebay.core.routes import Endpoint
from forebay.engines.deployment import Deployment
from forebay.registry.model import ModelVersionNotFound, RegistryConflict
from forebay.registry.reference import Reference
from forebay.store.errors import StoreError

AGAIN_LOOKS: Final = 8  #: from one look for what is not there, an environment or a version, to the next


class DeploymentStore:
    """See the module.

    Args:
        repo: where applied ones are; None: there are none but those of the file.
        get_config: the file's configuration in force.

    Attributes:
        changed: set after each change; whoever waits for it clears it before looking.
        is_known: whether it has looked at all: until then nobody may take what it lists for all there is.
        problems: why some of what was applied does not run, for people.
        recall: what was asked for last of a deployment whose manifest can't be read.
    """

    def __init__(self, repo: DeploymentRepo | None, get_config: Callable[[], Config]) -> None:
        self.changed = asyncio.Event()
        self.is_known = False
        self.problems: tuple[str, ...] = ()
        self.recall: Callable[[str], Deployment | None] = lambda name: None
        self._repo = repo
        self._get_config = get_config
        self._polling = asyncio.Lock()  # what was read first must not take the place of what was read later
        self._records: tuple[DeploymentRecord, ...] = ()
        self._last_change = -1
        self._waits = False  #: for an environment, or a version of a model
        self._looks = 0
        self._config: Config | None = None
        self._current: tuple[Deployment, ...] = ()
        self._endpoints: Mapping[str, Sequence[Endpoint]] = {}
        self._pins: dict[Reference, Reference] = {}  #: of versions by number; as many as files have named

    def list_current(self) -> tuple[Deployment, ...]:
        """All that are to run, in the order of their names."""
        return self._current

    @property
    def records(self) -> tuple[DeploymentRecord, ...]:
        """What was applied."""
        return self._records

    @property
    def endpoints(self) -> Mapping[str, Sequence[Endpoint]]:
        """What callers may ask of each one's model, where the file does not say."""
        return self._endpoints

    async def prepare(self) -> None:
        """Looks, unless it has.  Raises StoreError while the database refuses."""
        if not self.is_known and self._repo is not None:
            await asyncio.to_thread(self._repo.find_last_change)
        if not self.is_known:
            await self.poll()

    async def poll(self) -> bool:
        """Looks for changes; whether there was one.  While the database refuses, what is known holds."""
        async with self._polling:
            return await self._poll()

    async def _poll(self) -> bool:
        config = self._get_config()
        records = await asyncio.to_thread(self._read)
        self._looks += 1
        is_due = self._waits and self._looks % AGAIN_LOOKS == 0
        if records is None and config is self._config and not is_due:
            return False
        self._config = config
        if records is not None:
            self._records, self.is_known = records, True
        self.is_known = self.is_known or self._repo is None
        try:
            manifests, self.problems = await asyncio.to_thread(
                merge_manifests, config, self._records, self._pin
            )
        except StoreError:
            self._config = None  # so that it looks again
            return False
        current, waiting = await asyncio.to_thread(_compile, manifests, config)
        current = self._keep_unreadable(current, config)
        self.problems = (*self.problems, *waiting)
        self._waits = bool(waiting) or any(name not in manifests for name in config.deployments)
        endpoints = {name: list_endpoints(each) for name, each in manifests.items()}
        if current == self._current and endpoints == self._endpoints:
            return False
        self._current, self._endpoints = current, endpoints
        self.changed.set()
        return True

    def _keep_unreadable(self, current: Sequence[Deployment], config: Config) -> tuple[Deployment, ...]:
        """What can't be read, or names a version that is gone, is not what nobody wants: it runs on as it was
        asked for last."""
        known = {each.name for each in current}
        asked = {*(record.name for record in self._records), *config.deployments}
        kept = filter(None, map(self.recall, asked - known))
        return tuple(sorted((*current, *kept), key=lambda each: each.name))

    def _pin(self, reference: Reference) -> Reference:
        """Of the file, which holds no pins: a version never changes, so it is looked up once.

        Raises ModelVersionNotFound, RegistryConflict, StoreError.
        """
        known = self._pins.get(reference)
        if known is None:
            if self._repo is None:
                raise ModelVersionNotFound("there is no registry without a database")
            known = self._pins[reference] = self._repo.pin(reference)
        return known

    def _read(self) -> tuple[DeploymentRecord, ...] | None:
        """None where nothing has changed."""
        if self._repo is None:
            return None
        try:
            change = self._repo.find_last_change()  # first: what follows is newer
            if change == self._last_change:
                return None
            records = self._repo.list_current()
        except StoreError:
            return None  # the control plane tells of that by its other looks at the database
        self._last_change = change
        return records


def _compile(
    manifests: Mapping[str, DeploymentConfig], config: Config
) -> tuple[tuple[Deployment, ...], tuple[str, ...]]:
    """In the order of their names; and why some of them can't start yet."""
    found = tuple(compile_here(name, manifests[name], config) for name in sorted(manifests))
    told = ((each.name, explain(each, config)) for each in found)
    return found, tuple(f"deployment {name}: {why}" for name, why in told if why)


def merge_manifests(
    config: Config, records: Sequence[DeploymentRecord], pin: Pin | None = None
) -> tuple[dict[str, DeploymentConfig], tuple[str, ...]]:
    """The manifests of all deployments that are to run, by name; and why some of them do not.

    Args:
        pin: for the versions of the registry that the file names; None leaves them as they are written.

    Raises what `pin` does, but for what is not there.
    """
    manifests: dict[str, DeploymentConfig] = {}
    problems = []
    for name, manifest in config.deployments.items():
        try:
            manifests[name] = manifest if pin is None else pin_manifest(manifest, pin)
        except (ModelVersionNotFound, RegistryConflict) as error:
            problems.append(f"deployment {name} does not run: {error.message}")
    for record in records:
        if record.name in config.deployments:
            problems.append(
                f"deployment {record.name} stands in forebay.yaml and was applied too: the file's holds. "
                f"Remove it there, or `forebay delete {record.name}`"
            )
            continue
        try:
            manifests[record.name] = read_manifest(record.manifest or {})
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
            problems.append(
                f"deployment {record.name} was applied with another version of Forebay, which this one can't "
                f"take ({where}): what runs of it goes on; apply it anew"
            )
    return manifests, tuple(problems)


def read_manifest(manifest: Manifest) -> DeploymentConfig:
    """Of plain values, whose paths start at the root.  Raises ValidationError."""
    return DeploymentConfig.model_validate(manifest)
