"""Reported load at rest: the last report of each signal of each project.

A report is one small transaction: applications send one a second.  So the audit tells of the first report
of a signal and of its removal, and not of the values between.
"""

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select

from forebay.core.clock import Clock
from forebay.gateway.repo_audit import Change, append_audit
from forebay.gateway.repo_signal_tables import signals
from forebay.gateway.repo_tables import audit
from forebay.gateway.repo_teams import check_project_exists, make_or_find
from forebay.gateway.signals import (
    PER_PROJECT_MAX,
    Report,
    SignalNotFound,
    SignalRecord,
    TooManySignals,
    check_signal_name,
    describe_signal,
)
from forebay.gateway.tenancy import Actor
from forebay.store.database import Database


class SignalRepo:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def report(self, team: str, project: str, name: str, report: Report, actor: Actor) -> SignalRecord:
        """The signal has this value from now on.

        Raises InvalidValue, TeamNotFound, ProjectNotFound, TooManySignals.
        """
        check_signal_name(name)
        return make_or_find(lambda: self._report(team, project, name, report, actor))

    def _report(self, team: str, project: str, name: str, report: Report, actor: Actor) -> SignalRecord:
        place = _at(team, project, name)
        now_ns = self._clock.wall_ns()
        with self._database.begin() as connection:
            change = signals.update().where(place)
            version = connection.execute(
                change.values(
                    value_micro=report.value_micro,
                    reported_ns=now_ns,
                    ttl_ns=report.ttl_ns,
                    version=signals.c.version + 1,
                ).returning(signals.c.version)
            ).scalar()
            record = SignalRecord(
                team=team,
                project=project,
                name=name,
                value_micro=report.value_micro,
                reported_ns=now_ns,
                ttl_ns=report.ttl_ns,
                version=version or 1,
            )
            if version is None:
                self._create(connection, record, actor)
        return record

    def _create(self, connection: Connection, record: SignalRecord, actor: Actor) -> None:
        # Of many first reports of a project, one at a time counts and adds.
        check_project_exists(connection, record.team, record.project, to_change=True)
        of_project = (signals.c.team == record.team) & (signals.c.project == record.project)
        count = connection.execute(select(func.count()).select_from(signals).where(of_project)).scalar_one()
        if count >= PER_PROJECT_MAX:
            raise TooManySignals(
                f"the project {record.team}/{record.project} has {count} signals, which is the most: "
                "delete one that is not used any more"
            )
        connection.execute(
            signals.insert().values(
                team=record.team,
                project=record.project,
                name=record.name,
                value_micro=record.value_micro,
                reported_ns=record.reported_ns,
                ttl_ns=record.ttl_ns,
                version=record.version,
            )
        )
        change = Change(action="signal.create", subject=_name(record), after=describe_signal(record))
        append_audit(connection, actor, change, record.reported_ns)

    def list(self, team: str | None = None, project: str | None = None) -> tuple[SignalRecord, ...]:
        """Of one project, or of all, in the order of their teams', projects' and own names.

        Raises TeamNotFound, ProjectNotFound.
        """
        query = select(signals)
        with self._database.read() as connection:
            if team is not None and project is not None:
                check_project_exists(connection, team, project)
                query = query.where((signals.c.team == team) & (signals.c.project == project))
            rows = connection.execute(query).mappings().all()
        return tuple(sorted(map(_make_record, rows), key=lambda record: record.place))

    def delete(self, team: str, project: str, name: str, actor: Actor) -> SignalRecord:
        """The signal is as if it had never been reported.

        Raises TeamNotFound, ProjectNotFound, SignalNotFound.
        """
        place = _at(team, project, name)
        with self._database.begin() as connection:
            # Of two removals at once, the second finds nothing.
            row = connection.execute(select(signals).where(place).with_for_update()).mappings().one_or_none()
            if row is None:
                check_project_exists(connection, team, project)
                raise SignalNotFound(
                    f"the project {team}/{project} has not reported a signal {name[:100]!r}: "
                    "`forebay signals list` shows what it has",
                    param="name",
                )
            record = _make_record(row)
            connection.execute(signals.delete().where(place))
            change = Change(action="signal.delete", subject=_name(record), before=describe_signal(record))
            append_audit(connection, actor, change, self._clock.wall_ns())
        return record

    def find_stamp(self) -> tuple[int, int]:
        """Another one after each report or removal, by whichever process.

        A first report and a removal are in the audit; between two of them versions only go up.
        """
        versions = select(func.coalesce(func.sum(signals.c.version), 0)).scalar_subquery()
        last = select(func.coalesce(func.max(audit.c.id), 0)).scalar_subquery()
        with self._database.read() as connection:
            row = connection.execute(select(versions, last)).one()
        return int(row[0]), int(row[1])


def _at(team: str, project: str, name: str) -> ColumnElement[bool]:
    return (signals.c.team == team) & (signals.c.project == project) & (signals.c.name == name)


def _name(record: SignalRecord) -> str:
    return f"{record.team}/{record.project}/{record.name}"


def _make_record(row: RowMapping) -> SignalRecord:
    return SignalRecord(**row)
