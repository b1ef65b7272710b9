"""The admin API's routes for teams, projects, keys, tokens and the audit.

Each change is told to the gateway before it is answered.  A new key or token is shown once.
"""

import asyncio
from typing import Annotated

from fastapi import FastAPI, Query

from forebay.app.control_plane import ControlPlane, SnapshotUnwritable
from forebay.app.control_roles import CurrentActor
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import KeyId
from forebay.app.control_tenancy_schemas import (
    AuditPage,
    KeyChange,
    KeyCreate,
    KeyCreated,
    KeyDetail,
    KeyList,
    KeyRotate,
    KeyView,
    Owner,
    ProjectChange,
    ProjectList,
    ProjectPut,
    ProjectView,
    TeamList,
    TeamPut,
    TeamView,
    TokenCreate,
    TokenCreated,
    TokenId,
    TokenList,
    TokenView,
)
from forebay.app.control_tenancy_views import (
    show_audit_event,
    show_key,
    show_key_detail,
    show_project,
    show_team,
    show_token,
)
from forebay.core.clock import Clock
from forebay.gateway.repos import Repos
from forebay.gateway.tenancy import KeyRecord, NewKey, Role

AUDIT_PAGE_MAX = 1000
Subject = Annotated[str, Query(pattern=r"^[!-~]{1,250}$", description="Only events about this id or name.")]


class TenancyRoutes:
    """See the module."""

    def __init__(self, plane: ControlPlane, repos: Repos, clock: Clock) -> None:
        self._plane = plane
        self._repos = repos
        self._clock = clock

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        project = "/teams/{team}/projects/{project}"
        add("GET", "/teams", self.list_teams, "Teams")
        add("PUT", "/teams/{team}", self.put_team, "Make a team", role=Role.OPERATOR)
        add("GET", "/projects", self.list_projects, "Projects")
        add("GET", project, self.get_project, "One project")
        add("PUT", project, self.put_project, "Make or change a project", role=Role.OPERATOR)
        add("PATCH", project, self.change_project, "Change a project", role=Role.OPERATOR)
        add("GET", "/keys", self.list_keys, "Callers' keys")
        add("POST", "/keys", self.create_key, "Make a key", role=Role.OPERATOR, status=201)
        add("GET", "/keys/{key_id}", self.get_key, "One key, and what it may call")
        add("PATCH", "/keys/{key_id}", self.change_key, "Change a key", role=Role.OPERATOR)
        add("DELETE", "/keys/{key_id}", self.revoke_key, "Revoke a key", role=Role.OPERATOR)
        add("POST", "/keys/{key_id}/rotate", self.rotate_key, "Rotate a key", role=Role.OPERATOR, status=201)
        add("GET", "/tokens", self.list_tokens, "Tokens of this API", role=Role.OWNER)
        add("POST", "/tokens", self.create_token, "Make a token", role=Role.OWNER, status=201)
        add("DELETE", "/tokens/{token_id}", self.revoke_token, "Revoke a token", role=Role.OWNER)
        add("GET", "/audit", self.get_audit, "Who changed what")

    # --- teams and projects ---------------------------------------------------------------------------------

    async def list_teams(self) -> TeamList:
        """In the order of their names."""
        records = await asyncio.to_thread(self._repos.teams.list_teams)
        return TeamList(data=[show_team(record) for record in records])

    async def put_team(self, team: Owner, actor: CurrentActor, wanted: TeamPut | None = None) -> TeamView:
        """One that exists stays as it is.  None is ever renamed or removed: records bear its name.  A team
        has nothing but its name, so the body is empty, or an object without fields."""
        return show_team(await asyncio.to_thread(self._repos.teams.create_team, team, actor))

    async def list_projects(self) -> ProjectList:
        """In the order of their teams' names and their own."""
        records = await asyncio.to_thread(self._repos.teams.list_projects)
        return ProjectList(data=[show_project(record) for record in records])

    async def get_project(self, team: Owner, project: Owner) -> ProjectView:
        """With the rights that bound its keys."""
        return show_project(await asyncio.to_thread(self._repos.teams.get_project, team, project))

    async def put_project(
        self, team: Owner, project: Owner, wanted: ProjectPut, actor: CurrentActor
    ) -> ProjectView:
        """Rights that are left out are unlimited.  The gateway holds keys to them within a second."""
        record = await asyncio.to_thread(
            self._repos.teams.put_project, team, project, wanted.make_rights(), actor
        )
        await self._plane.refresh_snapshot()
        return show_project(record)

    async def change_project(
        self, team: Owner, project: Owner, wanted: ProjectChange, actor: CurrentActor
    ) -> ProjectView:
        """What is left out stays; null lifts a limit.  The gateway holds keys to it within a second."""
        record = await asyncio.to_thread(
            self._repos.teams.change_project, team, project, wanted.apply_rights, actor
        )
        await self._plane.refresh_snapshot()
        return show_project(record)

    # --- keys -----------------------------------------------------------------------------------------------

    async def list_keys(
        self, revoked: Annotated[bool, Query(description="Whether revoked keys are listed as well.")] = False
    ) -> KeyList:
        """The oldest first.  Neither a key nor its digest is shown."""
        records = await asyncio.to_thread(self._repos.keys.list)
        shown = [record for record in records if revoked or record.revoked_ns is None]
        return KeyList(data=[show_key(record) for record in shown])

    async def get_key(self, key_id: KeyId) -> KeyDetail:
        """Its own rights, those of its project, and the models and targets that both together leave."""
        record = await asyncio.to_thread(self._repos.keys.get, key_id)
        project = await asyncio.to_thread(
            self._repos.teams.get_project, record.entry.team, record.entry.project
        )
        written = self._plane.snapshot_state
        table = written.snapshot.table if written else None
        return show_key_detail(record, project, table, self._clock.wall_ns())

    async def create_key(self, wanted: KeyCreate, actor: CurrentActor) -> KeyCreated:
        """The answer holds the key itself, this once.  The gateway takes it within a second."""
        new = NewKey(
            name=wanted.name,
            project=wanted.project,
            team=wanted.team,
            rights=wanted.make_rights(),
            priority=wanted.priority,
            expires_ns=self._find_end(wanted.expires_in_s),
        )
        record, plaintext = await asyncio.to_thread(self._repos.keys.create, new, actor)
        return await self._show_once(record, plaintext)

    async def change_key(self, key_id: KeyId, wanted: KeyChange, actor: CurrentActor) -> KeyView:
        """What is left out stays; null lifts a limit, and lets the key live for ever.  Its project bounds it
        as before.  The gateway holds it to the change within a second; with 503 the key is changed, and the
        gateway could not be told yet."""
        now_ns = self._clock.wall_ns()
        record = await asyncio.to_thread(
            self._repos.keys.change, key_id, lambda terms: wanted.apply(terms, now_ns), actor
        )
        await self._plane.refresh_snapshot()
        return show_key(record)

    async def rotate_key(self, key_id: KeyId, wanted: KeyRotate, actor: CurrentActor) -> KeyCreated:
        """A new key with the same rights, shown this once; the old one ends with the overlap."""
        record, plaintext = await asyncio.to_thread(
            lambda: self._repos.keys.rotate(
                key_id,
                actor,
                overlap_s=wanted.overlap_s,
                expires_ns=self._find_end(wanted.expires_in_s),
            )
        )
        return await self._show_once(record, plaintext)

    async def revoke_key(self, key_id: KeyId, actor: CurrentActor) -> KeyView:
        """The gateway refuses the key within a second.  With 503 the key is revoked, and the gateway could
        not be told yet."""
        record = await asyncio.to_thread(self._repos.keys.revoke, key_id, actor)
        await self._plane.refresh_snapshot()
        return show_key(record)

    async def _show_once(self, record: KeyRecord, plaintext: str) -> KeyCreated:
        try:
            await self._plane.refresh_snapshot()
        except SnapshotUnwritable:
            pass  # The key exists and can't be shown again; the status shows why the gateway is late.
        return KeyCreated(**show_key(record).model_dump(), key=plaintext)

    def _find_end(self, expires_in_s: int | None) -> int | None:
        return None if expires_in_s is None else self._clock.wall_ns() + expires_in_s * 10**9

    # --- tokens and the audit -------------------------------------------------------------------------------

    async def list_tokens(self) -> TokenList:
        """All there ever were, the oldest first.  That of the file admin.token is not among them."""
        records = await asyncio.to_thread(self._repos.tokens.list)
        return TokenList(data=[show_token(record) for record in records])

    async def create_token(self, wanted: TokenCreate, actor: CurrentActor) -> TokenCreated:
        """The answer holds the token itself, this once."""
        record, plaintext = await asyncio.to_thread(
            lambda: self._repos.tokens.create(
                wanted.name, wanted.role, actor, expires_ns=self._find_end(wanted.expires_in_s)
            )
        )
        return TokenCreated(**show_token(record).model_dump(), token=plaintext)

    async def revoke_token(self, token_id: TokenId, actor: CurrentActor) -> TokenView:
        """It opens nothing from now on."""
        return show_token(await asyncio.to_thread(self._repos.tokens.revoke, token_id, actor))

    async def get_audit(
        self,
        limit: Annotated[int, Query(ge=1, le=AUDIT_PAGE_MAX)] = 100,
        cursor: Annotated[
            int | None, Query(ge=1, le=1 << 53, description="`next_cursor` of the page before.")
        ] = None,
        subject: Subject | None = None,
    ) -> AuditPage:
        """Every change that was made through this API or the command line, the newest first."""
        events = await asyncio.to_thread(
            lambda: self._repos.audit.load_page(limit=limit + 1, before_id=cursor, subject=subject)
        )
        page = events[:limit]
        return AuditPage(
            data=[show_audit_event(event) for event in page],
            next_cursor=page[-1].id if len(events) > limit else None,
        )
