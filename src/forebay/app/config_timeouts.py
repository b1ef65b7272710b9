"""How long the gateway waits for a target: said by a target, its pool, its tier, in that order.

Pure; a value that nobody says is the default.
"""

from collections.abc import Iterable

from pydantic import Field

from forebay.app.config_values import Seconds, Section
from forebay.core.routes import Timeouts


class TimeoutsConfig(Section):
    """How long the gateway waits for a target."""

    connect_s: Seconds = Field(
        default=5.0, description="Seconds until the connection, TLS included, must stand."
    )
    first_token_s: Seconds = Field(
        default=60.0,
        description="Seconds until the first content; ends an attempt only while another target is left.",
    )
    idle_s: Seconds = Field(
        default=120.0,
        description="Seconds without a byte from the target, from the first byte of its answer's body on.",
    )
    total_s: Seconds = Field(
        default=900.0,
        description="Seconds for one attempt, connecting included; then another target is tried, if one is "
        "left and no content has gone out. A request takes at most the sum over the targets it tries.",
    )


def merge_timeouts(places: Iterable[TimeoutsConfig | None]) -> Timeouts:
    """Of each time what the first says that says anything."""
    found: dict[str, float] = {}
    for place in places:
        for name in place.model_fields_set if place is not None else ():
            found.setdefault(name, getattr(place, name))
    return Timeouts(**found)
