"""What differs between two manifests, setting by setting, with defaults as they apply.  Pure.

A list is one value, so that its order counts; of mappings each key is looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay.app.config_deployments import DeploymentConfig
from forebay.app.config_problems import format_key

_ABSENT: Final = object()
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One setting that differs.  Of a key that is only on one side, the other has no value."""

    path: Path
    before: Any = None
    after: Any = None
    was_there: bool = True
    is_there: bool = True

    @property
    def key(self) -> str:
        return format_key(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentDiff:
    """Of one deployment.  A revision is empty where there is none."""

    name: str
    changes: tuple[FieldChange, ...]
    revision_before: str = ""
    revision_after: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.changes and bool(self.revision_before) == bool(self.revision_after)

    @property
    def rolls(self) -> bool:
        """Whether replicas have to be replaced."""
        return self.revision_before != self.revision_after


def compute_diff(
    name: str,
    before: DeploymentConfig | None,
    after: DeploymentConfig | None,
    name_revision: Callable[[str, DeploymentConfig], str],
) -> DeploymentDiff:
    """From one manifest to another; None: there is none, and of the other only what it says itself counts.

    Args:
        name_revision: names what the replicas of a deployment are.
    """
    with_defaults = before is not None and after is not None
    return DeploymentDiff(
        name=name,
        changes=tuple(_compare((), _dump(before, with_defaults), _dump(after, with_defaults))),
        revision_before="" if before is None else name_revision(name, before),
        revision_after="" if after is None else name_revision(name, after),
    )


def _dump(manifest: DeploymentConfig | None, with_defaults: bool) -> Any:
    return {} if manifest is None else manifest.model_dump(mode="json", exclude_unset=not with_defaults)


def _compare(path: Path, before: Any, after: Any) -> Iterator[FieldChange]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _compare((*path, key), before.get(key, _ABSENT), after.get(key, _ABSENT))
    elif before is _ABSENT and isinstance(after, Mapping) and after:
        for key, value in after.items():
            yield from _compare((*path, key), _ABSENT, value)
    elif after is _ABSENT and isinstance(before, Mapping) and before:
        for key, value in before.items():
            yield from _compare((*path, key), value, _ABSENT)
    elif before is _ABSENT or after is _ABSENT or type(before) is not type(after) or before != after:
        yield FieldChange(
            path=path,
            before=None if before is _ABSENT else before,
            after=None if after is _ABSENT else after,
            was_there=before is not _ABSENT,
            is_there=after is not _ABSENT,
        )
