"""The section `limits.queue` of `forebay.yaml`: how requests may wait for limits that have no room.  Pure."""

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
        waits = self.default_wait_s
        interactive, standard, batch = (getattr(waits, name) for name in PRIORITIES)
        return QueueRules(
            wait_max_s=self.wait_max_s,
            requests_max=self.requests_max,
            tenant_requests_max=self.tenant_requests_max,
            default_wait_s=(interactive, standard, batch),
        )
