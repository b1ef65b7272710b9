"""Decides whether a key may make a request.  Pure."""

from forebay.core.errors import EndpointUnsupported, EngineNotRunning, Forbidden, ForebayError, ModelNotFound
from forebay.core.routes import Endpoint, Route


def explain_refusal(
    model: str, endpoint: Endpoint, route: Route | None, allowed: frozenset[str]
) -> ForebayError:
    """Why a request is not admitted: unless its route exists, is allowed, serves the endpoint, has a target.

    A model that exists but is not the key's to call is told apart from one that does not exist only by
    403 and 404: the names of other tenants' models are no secret here, what they say is.

    Args:
        route: the model's route, None when no such model exists.
        allowed: the public names that the key may call.
    """
    if route is None:
        names = ", ".join(sorted(allowed)[:10]) or "none"
        return ModelNotFound(
            f"the model `{model[:200]}` does not exist; this key may call: {names}", param="model"
        )
    if model not in allowed:
        return Forbidden(f"this key may not call the model `{model}`", param="model")
    if endpoint in route.endpoints and not route.targets:
        return EngineNotRunning(
            f"the engine of the model `{model}` does not run yet: it starts when Forebay is restarted",
            param="model",
        )
    paths = ", ".join(f"/v1/{path.value}" for path in route.endpoints)
    return EndpointUnsupported(
        f"the model `{model}` does not serve /v1/{endpoint.value}; it serves {paths}", param="model"
    )
