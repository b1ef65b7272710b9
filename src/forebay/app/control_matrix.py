"""The admin API's routes for the version matrix: what was tried, and what is unknown of a combination."""

import asyncio
from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import Field, StringConstraints

from forebay.app.control_roles import CurrentActor
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.matrix import MatrixRepo
from forebay.engines.matrix import (
    FIELDS,
    FIGURES_MAX,
    NOTE_MAX,
    TEXT_MAX,
    Combination,
    Trial,
    TrialOutcome,
    explain_unknown,
)
from forebay.gateway.tenancy import Role

Word = Annotated[str, StringConstraints(max_length=TEXT_MAX)]
Needed = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_MAX)]
Figure = Annotated[float, Field(allow_inf_nan=False)]


class CombinationView(View):
    model: Needed = Field(description="Public name of the model.")
    model_version: Word = ""
    engine: Needed = Field(description="Such as `vllm`.")
    engine_version: Word = ""
    hardware: Needed = Field(default="cpu", description="Class of hardware, such as `cuda-h100`.")
    precision: Word = Field(default="", description="Such as `bf16`.")


class TrialPut(CombinationView):
    outcome: TrialOutcome
    figures: Annotated[dict[Needed, Figure], Field(max_length=FIGURES_MAX)] = Field(
        default={}, description="What was measured, by names with their units."
    )
    environment: Annotated[str, StringConstraints(max_length=64)] = Field(
        default="", description="Digest of the engine's environment."
    )
    note: Annotated[str, StringConstraints(max_length=NOTE_MAX)] = ""


class TrialView(CombinationView):
    outcome: TrialOutcome
    at_s: float
    source: str = Field(description="`bench`, `smoke` or `manual`.")
    figures: dict[str, float]
    environment: str
    note: str


class TrialList(View):
    data: list[TrialView]


class Explanation(View):
    tested: bool = Field(description="Whether the newest trial of just this combination passed.")
    unknown: list[str] = Field(description="What is not known, in words; empty where it is tested.")
    neighbours: list[TrialView] = Field(description="The nearest combinations that passed.")


class MatrixRoutes:
    """See the module."""

    def __init__(self, repo: MatrixRepo) -> None:
        self._repo = repo

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        add("GET", "/matrix", self.list_trials, "Which combinations were tried")
        add("GET", "/matrix/explain", self.explain, "What is unknown of a combination")
        add("POST", "/matrix", self.record, "Record a trial", role=Role.OPERATOR, status=201)

    async def list_trials(
        self, model: Annotated[Word | None, Query(description="Only of this model.")] = None
    ) -> TrialList:
        """The newest first; of each combination the last 20."""
        found = await asyncio.to_thread(self._repo.list, model)
        return TrialList(data=[show_trial(trial) for trial in found])

    async def explain(self, where: Annotated[CombinationView, Query()]) -> Explanation:
        """Whether it is tested; if not, the nearest that passed and in what they differ."""
        wanted = Combination(**where.model_dump())
        unknown = explain_unknown(wanted, await asyncio.to_thread(self._repo.list))
        if unknown is None:
            return Explanation(tested=True, unknown=[], neighbours=[])
        return Explanation(
            tested=False,
            unknown=list(unknown.describe()),
            neighbours=[show_trial(each.trial) for each in unknown.neighbours],
        )

    async def record(self, wanted: TrialPut, actor: CurrentActor) -> TrialView:
        """As of now.  A later trial of the same combination counts instead of it."""
        trial = Trial(
            combination=Combination(**{name: getattr(wanted, name) for name in FIELDS}),
            outcome=wanted.outcome,
            at_ns=0,
            source="manual",
            figures=wanted.figures,
            environment=wanted.environment,
            note=wanted.note,
        )
        return show_trial(await asyncio.to_thread(self._repo.record, trial, actor))


def show_trial(trial: Trial) -> TrialView:
    return TrialView(
        **{name: getattr(trial.combination, name) for name in FIELDS},
        outcome=trial.outcome,
        at_s=trial.at_ns / 1e9,
        source=trial.source,
        figures=dict(trial.figures),
        environment=trial.environment,
        note=trial.note,
    )
