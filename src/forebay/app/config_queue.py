"""The settings of `forebay.yaml` that say how requests wait.  Pure.

For limits that have no room (`limits.queue`), and for places of a model that are all full (`routing.queue`).
"""

from typing import Annotated

from pydantic import Field, StrictFloat, StrictInt

from forebay.app.config_values import Section
from forebay.core.keys import PRIORITIES
from forebay.core.limits import QueueRules

DEFAULTS = QueueRules()
Wait = Annotated[StrictFloat, Field(ge=0, le=3600, allow_inf_nan=False)]
Count = Annotated[StrictInt, Field(ge=1, le=100_000)]


class DefaultWaitConfig(Section):
    """How long requests wait that do not say it themselves."""

    interactive: Wait = Field(default=0.0, description="Of keys of this priority.")
    standard: Wait = Field(default=0.0, description="Of keys of this priority.")
    batch: Wait = Field(default=0.0, description="Of keys of this priority.")


class QueueConfig(Section):
    """How requests may wait for limits, in each worker."""

    wait_max_s: Wait = Field(
        default=DEFAULTS.wait_max_s,
        description="The longest wait that a request may ask for with `x-forebay-wait`; 0: none waits.",
    )
    default_wait_s: DefaultWaitConfig = Field(
        default=DefaultWaitConfig(), description="How long those wait that have no such header."
    )
    requests_max: Count = Field(
        default=DEFAULTS.requests_max, description="Requests that wait at a time in one worker."
    )
    tenant_requests_max: Count = Field(
        default=DEFAULTS.tenant_requests_max,
        description="Of these, for one limit and of one priority: of a team's limit those of one project, of "
        "other limits those of one key.",
    )

    def compile(self) -> QueueRules:
        return _compile(self)


class PlaceWaitConfig(Section):
    """How long requests wait that do not say it themselves."""

    interactive: Wait = Field(default=5.0, description="Of keys of this priority.")
    standard: Wait = Field(default=30.0, description="Of keys of this priority.")
    batch: Wait = Field(default=300.0, description="Of keys of this priority.")


class PlaceQueueConfig(Section):
    """How requests wait for a place of their model, in each worker, while all that they may use are full.

    Of models that are chosen by load, and only where `requests_max` or `tokens_max` of all targets is known.
    """

    requests_max: Annotated[StrictInt, Field(ge=0, le=100_000)] = Field(
        default=1000,
        description="Requests of the model that wait at a time in one worker; more are refused. 0: none "
        "waits, and the last tier keeps what comes.",
    )
    tenant_requests_max: Count = Field(
        default=500, description="Of these, for the same places, those of one project and priority."
    )
    wait_max_s: Wait = Field(
        default=600.0, description="The longest wait, whatever a request asks for with `x-forebay-wait`."
    )
    default_wait_s: PlaceWaitConfig = Field(
        default=PlaceWaitConfig(), description="How long those may wait that have no such header."
    )

    def compile(self) -> QueueRules | None:
        return _compile(self) if self.requests_max else None


def _compile(queue: QueueConfig | PlaceQueueConfig) -> QueueRules:
    interactive, standard, batch = (getattr(queue.default_wait_s, name) for name in PRIORITIES)
    return QueueRules(
        wait_max_s=queue.wait_max_s,
        requests_max=queue.requests_max,
        tenant_requests_max=queue.tenant_requests_max,
        default_wait_s=(interactive, standard, batch),
    )
