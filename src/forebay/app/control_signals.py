"""The admin API's routes for signals: load that applications report, over which limits may be expressions.

A report is written down before it is answered; the limits follow within a second.
"""

import asyncio
from typing import Annotated

from fastapi import FastAPI
from pydantic import Field, StringConstraints

from forebay.app.control_roles import CurrentActor
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.control_tenancy_schemas import Owner, refuse_other_types
from forebay.app.live_amounts import LiveAmounts
from forebay.core.expressions import NAME
from forebay.gateway.repo_signals import SignalRepo
from forebay.gateway.signals import TTL_MAX_S, VALUE_MAX, SignalRecord, make_report
from forebay.gateway.tenancy import Role

SignalName = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]


_NUMBER = refuse_other_types("number")


class SignalPut(View):
    value: Annotated[float, Field(ge=0, le=VALUE_MAX, allow_inf_nan=False), _NUMBER] = Field(
        description="What there is now; kept to the millionth."
    )
    ttl_s: Annotated[float, Field(ge=1, le=TTL_MAX_S, allow_inf_nan=False), _NUMBER] | None = Field(
        default=None,
        description="Seconds for which the report holds; null is what forebay.yaml says of the signal.",
    )


class SignalView(View):
    team: str
    project: str
    name: str
    value: float = Field(description="As it was reported last.")
    reported_at_s: float
    ttl_s: float | None = Field(description="Seconds for which the report holds, where it said so itself.")
    stale: bool = Field(description="Whether the report is too old, so that the default counts.")
    declared: bool = Field(
        description="Whether forebay.yaml has it in `limits.signals`; else nothing uses it."
    )


class SignalList(View):
    data: list[SignalView]


class SignalRoutes:
    """See the module."""

    def __init__(self, live: LiveAmounts, repo: SignalRepo) -> None:
        self._live = live
        self._repo = repo

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        project = "/teams/{team}/projects/{project}/signals"
        signal = project + "/{name}"
        add("GET", "/signals", self.list_all, "What all projects have reported")
        add("GET", project, self.list_signals, "What a project has reported")
        add("PUT", signal, self.put_signal, "Report a signal", role=Role.REPORTER)
        # The same by the name that limits have for a project, TEAM/PROJECT.
        short = "/projects/{team}/{project}/signals/{name}"
        add("PUT", short, self.put_signal, "Report a signal of TEAM/PROJECT", role=Role.REPORTER)
        add("DELETE", signal, self.delete_signal, "Remove a signal", role=Role.OPERATOR)

    async def list_all(self) -> SignalList:
        """In the order of teams, projects and names."""
        return self._show_all(await asyncio.to_thread(self._repo.list))

    async def list_signals(self, team: Owner, project: Owner) -> SignalList:
        """In the order of their names."""
        return self._show_all(await asyncio.to_thread(self._repo.list, team, project))

    async def put_signal(
        self, team: Owner, project: Owner, name: SignalName, wanted: SignalPut, actor: CurrentActor
    ) -> SignalView:
        """Limits that name it follow within a second. The audit tells of the first report alone."""
        report = make_report(wanted.value, wanted.ttl_s)
        record = await asyncio.to_thread(self._repo.report, team, project, name, report, actor)
        self._live.note_report()
        return self._show(record)

    async def delete_signal(
        self, team: Owner, project: Owner, name: SignalName, actor: CurrentActor
    ) -> SignalView:
        """As if it had never been reported; the answer is what was last."""
        record = await asyncio.to_thread(self._repo.delete, team, project, name, actor)
        self._live.note_report()
        return self._show(record)

    def _show_all(self, records: tuple[SignalRecord, ...]) -> SignalList:
        return SignalList(data=[self._show(record) for record in records])

    def _show(self, record: SignalRecord) -> SignalView:
        return SignalView(
            team=record.team,
            project=record.project,
            name=record.name,
            value=record.value,
            reported_at_s=record.reported_ns / 1e9,
            ttl_s=None if record.ttl_ns is None else record.ttl_ns / 1e9,
            stale=not self._live.is_fresh(record),
            declared=self._live.is_declared(record.name),
        )
