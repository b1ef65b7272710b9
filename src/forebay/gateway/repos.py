"""All that is kept about who may do what, and was told of it, over one database."""

from dataclasses import dataclass

from forebay.core.clock import Clock
from forebay.gateway.repo import KeyRepo
from forebay.gateway.repo_alerts import AlertRepo
from forebay.gateway.repo_audit import AuditRepo
from forebay.gateway.repo_signals import SignalRepo
from forebay.gateway.repo_teams import TeamRepo
from forebay.gateway.repo_tokens import TokenRepo
from forebay.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Repos:
    keys: KeyRepo
    teams: TeamRepo
    tokens: TokenRepo
    audit: AuditRepo
    alerts: AlertRepo
    signals: SignalRepo

    @classmethod
    def open(cls, database: Database, clock: Clock) -> "Repos":
        return cls(
            keys=KeyRepo(database, clock),
            teams=TeamRepo(database, clock),
            tokens=TokenRepo(database, clock),
            audit=AuditRepo(database),
            alerts=AlertRepo(database),
            signals=SignalRepo(database, clock),
        )
