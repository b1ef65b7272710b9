"""Deployments in the admin API: what runs, what has become of it, and changes with their history.

What differs from the file's configuration is looked at here; what a change means, `deployment_service` knows.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

from fastapi import FastAPI, Header, Query, Response
from fastapi import Path as InPath
from pydantic import Field

from forebay.app.config import Config
from forebay.app.config_deployments import DeploymentConfig
from forebay.app.config_problems import Severity, format_key
from forebay.app.config_values import ConfigOrigin
from forebay.app.control_roles import CurrentActor
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.deployment_records import DeploymentsRefused, Outcome
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_service import DeploymentService
from forebay.app.deployment_store import DeploymentStore
from forebay.app.deployment_views import (
    ChangeView,
    DeploymentList,
    DeploymentView,
    GenerationList,
    list_views,
    show_change,
    show_generation,
)
from forebay.app.manifest_files import check_manifests
from forebay.core.errors import InvalidValue
from forebay.engines.deployment import DeploymentStatus
from forebay.engines.weights import EMBEDDED_PREFIX
from forebay.gateway.tenancy import Role
from forebay.registry.reference import PREFIX

GENERATION_MAX: Final = 2**31 - 1
Name = Annotated[str, InPath(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
IfMatch = Annotated[
    str,
    Header(
        alias="if-match",
        pattern=r'^("\d{1,9}")?$',
        description='The generation that is to be changed, as `"3"`; `"0"`: there is none yet. With another '
        "one the answer is 409. Without it, whichever there is is changed.",
    ),
]
DryRun = Annotated[bool, Query(description="Says what would change, and changes nothing.")]
Statuses = Mapping[str, DeploymentStatus]


class RollbackRequest(View):
    to: Annotated[int, Field(ge=1, le=GENERATION_MAX)] | None = Field(
        default=None, description="Generation to go back to; null: the last one that was another."
    )


class DeploymentRoutes:
    """See the module.

    Args:
        store: what is to run.
        repo: what was applied.
        service: makes changes.
        get_config: the file's configuration in force.
        get_statuses: what has become of each.
    """

    def __init__(
        self,
        store: DeploymentStore,
        repo: DeploymentRepo,
        service: DeploymentService,
        get_config: Callable[[], Config],
        get_statuses: Callable[[], Statuses],
    ) -> None:
        self._store = store
        self._repo = repo
        self._service = service
        self._get_config = get_config
        self._get_statuses = get_statuses

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        one = "/deployments/{name}"
        add("GET", "/deployments", self.list_deployments, "Deployments, and what has become of them")
        add("GET", one, self.get_deployment, "One deployment, and its replicas")
        add("GET", f"{one}/history", self.get_history, "What was applied under a name")
        add("PUT", one, self.put_deployment, "Apply a manifest", role=Role.OPERATOR)
        add("DELETE", one, self.delete_deployment, "End a deployment", role=Role.OPERATOR)
        add("POST", f"{one}/rollback", self.roll_back, "Go back to an earlier manifest", role=Role.OPERATOR)

    async def list_deployments(self) -> DeploymentList:
        """Those of `forebay.yaml` and those that were applied."""
        return DeploymentList(data=self._list(), problems=list(self._store.problems))

    async def get_deployment(self, name: Name, response: Response) -> DeploymentView:
        """Its generation is the answer's `etag` as well."""
        found = next((view for view in self._list() if view.name == name), None)
        if found is None:
            await asyncio.to_thread(self._repo.get, name)  # which says that there is none
            raise DeploymentsRefused(f"{name} was applied and does not run; the list's `problems` say why")
        if found.generation is not None:
            response.headers["etag"] = f'"{found.generation}"'
        return found

    async def get_history(self, name: Name) -> GenerationList:
        """Each change of it, its deletion as well; those of `forebay.yaml` are not kept."""
        records = await asyncio.to_thread(self._repo.load_history, name)
        return GenerationList(data=[show_generation(record) for record in records])

    async def put_deployment(
        self,
        name: Name,
        manifest: DeploymentConfig,
        actor: CurrentActor,
        dry_run: DryRun = False,
        allow_untested: Annotated[
            bool, Query(description="Whether a combination may run that nobody has tried here.")
        ] = False,
        if_match: IfMatch = "",
    ) -> ChangeView:
        """Made or changed; its replicas are replaced as `rollout` says.  Paths start at the root."""
        await asyncio.to_thread(self._check, name, manifest)
        expected = _read_generation(if_match)
        plan = await asyncio.to_thread(
            lambda: self._service.plan(
                {name: manifest}, expected=None if expected is None else {name: expected}
            )
        )
        unknown = plan.unknown.get(name, ())
        (diff,) = plan.diffs
        if dry_run:
            outcome = Outcome.UNCHANGED if diff.is_empty else Outcome.CHANGED
            if not diff.revision_before:
                outcome = Outcome.CREATED
            return show_change(diff, outcome=outcome.value, generation=None, dry_run=True, unknown=unknown)
        (applied,) = await asyncio.to_thread(
            lambda: self._service.apply(plan, actor, allow_untested=allow_untested)
        )
        await self._store.poll()
        return show_change(
            diff, outcome=applied.outcome.value, generation=applied.record.generation, unknown=unknown
        )

    async def delete_deployment(self, name: Name, actor: CurrentActor, if_match: IfMatch = "") -> ChangeView:
        """Its replicas end once the answers in flight have left.  Its history stays."""
        before = {record.name: record for record in await asyncio.to_thread(self._repo.list_current)}
        record = await asyncio.to_thread(
            lambda: self._service.delete(name, actor, expected=_read_generation(if_match))
        )
        await self._store.poll()
        diff = self._service.compare(before.get(name), record)
        return show_change(diff, outcome=Outcome.DELETED.value, generation=record.generation)

    async def roll_back(
        self,
        name: Name,
        actor: CurrentActor,
        wanted: RollbackRequest | None = None,
        if_match: IfMatch = "",
    ) -> ChangeView:
        """A new generation with the manifest of an earlier one; it is rolled out as any other change."""
        before = {record.name: record for record in await asyncio.to_thread(self._repo.list_current)}
        applied = await asyncio.to_thread(
            lambda: self._service.roll_back(
                name, actor, to=wanted.to if wanted else None, expected=_read_generation(if_match)
            )
        )
        await self._store.poll()
        diff = self._service.compare(before.get(name), applied.record)
        return show_change(diff, outcome=applied.outcome.value, generation=applied.record.generation)

    def _list(self) -> list[DeploymentView]:
        # As of the store's last look: nothing is shown as asked for that is not rolled out yet.
        store = self._store
        return list_views(self._get_config(), store.list_current(), store.records, self._get_statuses())

    def _check(self, name: str, manifest: DeploymentConfig) -> None:
        """Raises InvalidValue."""
        for key, path in _list_paths(manifest):
            if not Path(path).is_absolute():
                raise InvalidValue(
                    f"{key}: {path[:200]!r} is a relative path, and nobody knows where it starts: give "
                    "one from the root",
                    param=key,
                )
        raw = {"deployments": {name: manifest.model_dump(mode="json", exclude_unset=True)}}
        origin = ConfigOrigin(folder=Path("/"), file=None)
        found = [
            each for each in check_manifests(raw, origin, self._get_config()) if each[3] is Severity.ERROR
        ]
        if not found:
            return
        told = [
            f"{format_key(path)}: {message}" + (f" ({hint})" if hint else "")
            for path, message, hint, _, _ in found
        ]
        raise InvalidValue("; ".join(told), param=format_key(found[0][0][2:]) or None)


def _list_paths(manifest: DeploymentConfig) -> list[tuple[str, str]]:
    found = [("source", manifest.source or "/")]
    if manifest.speculation is not None:
        found.append(("speculation.source", manifest.speculation.source or "/"))
    found += [(f"adapters.{name}", str(path)) for name, path in manifest.adapters.items()]
    return [(key, path) for key, path in found if not path.startswith((EMBEDDED_PREFIX, PREFIX))]


def _read_generation(if_match: str) -> int | None:
    return int(if_match.strip('"')) if if_match else None
