"""Changes of applied deployments: what would change, whether it may, and the change itself.

The command line and the admin API both come here, so that both hold to the same rules.  What a plan is made
from is noted in it, and applying it is refused where somebody else has changed that meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ValidationError

from forebay.app.config import Config
from forebay.app.config_deployments import DeploymentConfig
from forebay.app.deployment_diff import DeploymentDiff, compute_diff
from forebay.app.deployment_environments import compile_here
from forebay.app.deployment_records import Applied, DeploymentRecord, DeploymentsRefused, WantedManifest
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_store import read_manifest
from forebay.app.manifest_files import dump_manifest
from forebay.app.model_contents import find_content_problems
from forebay.app.model_references import pin_manifest
from forebay.core.errors import CallerError, InvalidValue
from forebay.engines.matrix import Trial, combine, explain_unknown
from forebay.gateway.tenancy import Actor
from forebay.registry.model import ModelVersionNotFound, RegistryConflict

LoadTrials = Callable[[], Iterable[Trial]]


class Untested(CallerError):
    """Nobody has tried a combination of model, engine, hardware and precision.  The message says what."""

    status: ClassVar[int] = 409
    type: ClassVar[str] = "conflict_error"
    code: ClassVar[str] = "untested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What applying would do.

    Attributes:
        diffs: of every deployment that was named, in the order of their names.
        wanted: what is applied, with the generations that it was compared with.
        unknown: for each deployment that runs an untested combination, what is not known of it.
    """

    diffs: tuple[DeploymentDiff, ...]
    wanted: tuple[WantedManifest, ...]
    unknown: Mapping[str, tuple[str, ...]]

    @property
    def is_empty(self) -> bool:
        return all(diff.is_empty for diff in self.diffs)

    def check_tested(self) -> None:
        """Raises Untested."""
        if not self.unknown:
            return
        lines = [line for name in sorted(self.unknown) for line in self.unknown[name]]
        raise Untested(
            "nobody has tried this here: " + "; ".join(lines) + ". Allow it "
            "(`forebay apply --allow-untested`, `allow_untested=true`); `forebay bench NAME` then tries it"
        )


class DeploymentService:
    """See the module.

    Args:
        repo: where applied ones are.
        get_config: the file's configuration in force.
        load_trials: what has been tried here.
    """

    def __init__(
        self, repo: DeploymentRepo, get_config: Callable[[], Config], load_trials: LoadTrials
    ) -> None:
        self._repo = repo
        self._get_config = get_config
        self._load_trials = load_trials

    def plan(
        self, wanted: Mapping[str, DeploymentConfig], *, expected: Mapping[str, int] | None = None
    ) -> Plan:
        """What applying these would do.

        Args:
            wanted: by name; they have been checked.
            expected: generations that somebody has looked at; else those of now.

        References to the registry are pinned by it: they mean from then on what they mean now.

        Raises InvalidValue, StoreError.
        """
        config = self._get_config()
        wanted = {name: self._pin(name, manifest, config) for name, manifest in wanted.items()}
        current = {record.name: record for record in self._repo.list_current()}
        diffs = tuple(
            compute_diff(name, _read(current.get(name)), wanted[name], self._name_revision)
            for name in sorted(wanted)
        )
        new = [diff.name for diff in diffs if diff.rolls]
        trials = tuple(self._load_trials()) if new else ()
        unknown = {}
        for name in new:
            found = explain_unknown(combine(compile_here(name, wanted[name], config)), trials)
            if found is not None:
                unknown[name] = found.describe()
        return Plan(
            diffs=diffs,
            wanted=tuple(
                WantedManifest(
                    name=name,
                    manifest=dump_manifest(wanted[name]),
                    expected=(expected or {}).get(name, _find_generation(current.get(name))),
                )
                for name in sorted(wanted)
            ),
            unknown=unknown,
        )

    def compare(self, before: DeploymentRecord | None, after: DeploymentRecord | None) -> DeploymentDiff:
        """From one generation to another of the same name; None: there is none."""
        named = before or after
        assert named is not None
        return compute_diff(named.name, _read(before), _read(after), self._name_revision)

    def apply(self, plan: Plan, actor: Actor, *, allow_untested: bool = False) -> Sequence[Applied]:
        """Raises Untested, GenerationConflict, DeploymentsRefused, StoreError."""
        if not allow_untested:
            plan.check_tested()
        return self._repo.apply(plan.wanted, actor)

    def delete(self, name: str, actor: Actor, *, expected: int | None = None) -> DeploymentRecord:
        """Raises DeploymentsRefused, DeploymentNotFound, GenerationConflict, StoreError."""
        self._refuse_of_file(name, "remove it there")
        return self._repo.delete(name, actor, expected=expected)

    def roll_back(
        self, name: str, actor: Actor, *, to: int | None = None, expected: int | None = None
    ) -> Applied:
        """Raises DeploymentsRefused, DeploymentNotFound, GenerationConflict, StoreError."""
        self._refuse_of_file(name, "put its earlier content back there")
        return self._repo.roll_back(name, actor, to=to, expected=expected)

    def _pin(self, name: str, manifest: DeploymentConfig, config: Config) -> DeploymentConfig:
        """Raises InvalidValue, StoreError."""
        try:
            pinned = pin_manifest(manifest, self._repo.pin)
        except (ModelVersionNotFound, RegistryConflict) as error:
            raise InvalidValue(f"deployments.{name}: {error.message}", param="source") from None
        for key, message, hint in find_content_problems(pinned, config):
            raise InvalidValue(
                f"deployments.{name}.{key}: {message}" + (f" ({hint})" if hint else ""), param=key
            )
        return pinned

    def _name_revision(self, name: str, manifest: DeploymentConfig) -> str:
        return compile_here(name, manifest, self._get_config()).revision

    def _refuse_of_file(self, name: str, hint: str) -> None:
        is_applied = any(record.name == name for record in self._repo.list_current())
        if name in self._get_config().deployments and not is_applied:
            raise DeploymentsRefused(f"{name} stands in forebay.yaml, and was not applied: {hint}")


def _read(record: DeploymentRecord | None) -> DeploymentConfig | None:
    """None also for one that another version of Forebay has kept, which says nothing to this one."""
    if record is None or record.manifest is None:
        return None
    try:
        return read_manifest(record.manifest)
    except ValidationError:
        return None


def _find_generation(record: DeploymentRecord | None) -> int:
    return 0 if record is None else record.generation
