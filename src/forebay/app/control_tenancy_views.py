"""How the admin API shows teams, projects, keys, tokens and the audit.  Pure: records in, views out."""

import msgspec

from forebay.app.control_tenancy_schemas import (
    ActorView,
    AuditEventView,
    KeyDetail,
    KeyView,
    ProjectView,
    ReachView,
    RightsView,
    TeamView,
    TokenView,
)
from forebay.core.keys import KeyEntry, Rights
from forebay.core.routes import RouteTable
from forebay.gateway.repo_audit import AuditEvent
from forebay.gateway.tenancy import KeyRecord, ProjectRecord, TeamRecord, TokenRecord


def show_team(record: TeamRecord) -> TeamView:
    return TeamView(name=record.name, created_at_s=record.created_ns / 1e9)


def show_rights(rights: Rights) -> RightsView:
    return RightsView.model_validate(msgspec.to_builtins(rights))


def show_project(record: ProjectRecord) -> ProjectView:
    return ProjectView(
        **show_rights(record.rights).model_dump(),
        team=record.team,
        name=record.name,
        created_at_s=record.created_ns / 1e9,
    )


def show_key(record: KeyRecord) -> KeyView:
    entry = record.entry
    return KeyView(
        **show_rights(record.rights).model_dump(),
        id=entry.id,
        name=entry.name,
        prefix=entry.prefix,
        project=entry.project,
        team=entry.team,
        priority=entry.priority,
        created_at_s=record.created_ns / 1e9,
        expires_at_s=_seconds(entry.expires_ns),
        revoked_at_s=_seconds(record.revoked_ns),
        rotated_from=record.rotated_from,
    )


def show_key_detail(
    record: KeyRecord, project: ProjectRecord, table: RouteTable | None, now_ns: int
) -> KeyDetail:
    """A key with what it may call.

    Args:
        table: the routes that the gateway has; None before the first snapshot.
    """
    live = record.is_live(now_ns)
    return KeyDetail(
        **show_key(record).model_dump(),
        live=live,
        project_rights=show_rights(project.rights),
        reach=find_reach(record.entry, table) if live and table is not None else [],
    )


def find_reach(entry: KeyEntry, table: RouteTable) -> list[ReachView]:
    """What a key may call in any way, as the workers decide it."""
    found = []
    for route in table.routes:
        endpoints = [each.value for each in route.endpoints if entry.allows_endpoint(each)]
        targets = [each.id for each in route.targets if entry.allows_target(each.tier, each.region)]
        if entry.allows(route.model) and endpoints and targets:
            found.append(ReachView(model=route.model, endpoints=endpoints, targets=targets))
    return found


def show_token(record: TokenRecord) -> TokenView:
    return TokenView(
        id=record.id,
        name=record.name,
        prefix=record.prefix,
        role=record.role,
        created_at_s=record.created_ns / 1e9,
        expires_at_s=_seconds(record.expires_ns),
        revoked_at_s=_seconds(record.revoked_ns),
    )


def show_audit_event(event: AuditEvent) -> AuditEventView:
    return AuditEventView(
        id=event.id,
        at_s=event.at_ns / 1e9,
        actor=ActorView(id=event.actor.id, name=event.actor.name, issuer=event.actor.issuer),
        action=event.action,
        subject=event.subject,
        before=None if event.before is None else dict(event.before),
        after=None if event.after is None else dict(event.after),
    )


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
