"""The settings of a model's `mirrors`.

Pure; `config_model` puts them in their place, and `config_mirrors_checks` looks at several of them together.
"""

from typing import Annotated, Literal

from pydantic import Field, StrictFloat, StrictInt

from forebay.app.config_values import Bytes, ModelName, Seconds, Section
from forebay.core.routes import Mirror

MIRRORS_MAX = 4  #: of a model


class MirrorConfig(Section):
    """Where copies of a share of a model's requests go, of which no caller sees anything."""

    model: ModelName = Field(
        description="Public name of the model that gets the copies. It answers what it can of the "
        "model's endpoints; the others are not mirrored."
    )
    share: Annotated[StrictFloat | StrictInt, Field(gt=0, le=1)] = Field(
        default=0.05, description="Part of the requests that is copied, chosen by their ids."
    )
    requests_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = Field(
        default=8, description="Copies in flight at once, of all workers together; one for each at least."
    )
    queue_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = Field(
        default=32, description="Copies that wait for that, likewise; what comes on top is dropped."
    )
    per_s: Annotated[StrictFloat | StrictInt, Field(gt=0, le=1_000_000)] | None = Field(
        default=None, description="Copies a second, of all workers together; null is as many as come."
    )
    bytes_max: Bytes = Field(default=1 << 20, description="Larger requests are not copied.")
    timeout_s: Seconds = Field(
        default=60.0, description="Seconds that a copy may wait, and again that its answer may take."
    )
    after: Literal["answer", "at_once"] = Field(
        default="answer",
        description="When a copy is sent: once the caller has its answer, or at once, beside the request.",
    )

    def compile(self) -> Mirror:
        return Mirror(
            model=self.model,
            share=float(self.share),
            requests_max=self.requests_max,
            queue_max=self.queue_max,
            per_s=None if self.per_s is None else float(self.per_s),
            bytes_max=self.bytes_max,
            timeout_s=self.timeout_s,
            at_once=self.after == "at_once",
        )
