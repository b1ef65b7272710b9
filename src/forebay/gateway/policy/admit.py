"""Decides whether a key may make a request.  Pure."""

from collections.abc import Collection

from forebay.core.errors import (
    EndpointForbidden,
    EndpointUnsupported,
    EngineNotRunning,
    Forbidden,
    ForebayError,
    ModelNotFound,
    TargetForbidden,
)
from forebay.core.keys import KeyEntry
from forebay.core.routes import Endpoint, Route


def explain_refusal(
    model: str, endpoint: Endpoint, route: Route | None, key: KeyEntry, allowed: Collection[str]
) -> ForebayError:
    """Why a request is not admitted: its model, its endpoint, or every target of it.

    A model that exists but is not the key's to call is told apart from one that does not exist only by
    403 and 404: the names of other tenants' models are no secret here, what they say is.

    Args:
        route: the model's route with all its targets, None when no such model exists.
        allowed: the public names that the key may call.
    """
    if route is None:
        names = ", ".join(sorted(allowed)[:10]) or "none"
        return ModelNotFound(
            f"the model `{model[:200]}` does not exist; this key may call: {names}", param="model"
        )
    if not key.allows(model):
        return Forbidden(f"this key may not call the model `{model}`", param="model")
    if endpoint not in route.endpoints:
        paths = ", ".join(f"/v1/{path.value}" for path in route.endpoints)
        return EndpointUnsupported(
            f"the model `{model}` does not serve /v1/{endpoint.value}; it serves {paths}", param="model"
        )
    if not key.allows_endpoint(endpoint):
        return EndpointForbidden(f"this key may not use /v1/{endpoint.value}")
    if not route.targets:
        return EngineNotRunning(
            f"the engine of the model `{model}` does not run yet: it starts with its deployment, or when "
            "Forebay is restarted",
            param="model",
        )
    return TargetForbidden(
        f"this key may not be sent to any place that answers the model `{model}`: {_describe_bounds(key)}",
        param="model",
    )


def _describe_bounds(key: KeyEntry) -> str:
    bounds = []
    if key.regions:
        bounds.append(f"only to the regions {', '.join(key.regions)}")
    if key.tier_max is not None:
        bounds.append(f"no further than to the tier {key.tier_max}")
    return " and ".join(bounds)
