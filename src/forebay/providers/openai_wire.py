"""How requests to targets that speak OpenAI's API are addressed.  Pure."""

from forebay.core.routes import MEDIA, Endpoint
from forebay.providers.translation import Headers

#: What such a target is asked for as its callers ask.
NATIVE = frozenset(
    endpoint.value
    for endpoint in (
        *(Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS),
        *(Endpoint.RERANK, Endpoint.SCORE),  # of many engines, not of OpenAI itself
        *MEDIA,
    )
)


class OpenAIWire:
    """A base URL up to and including `/v1`, and the key as a bearer token.

    Args:
        more: endpoints beside `NATIVE`.
    """

    def __init__(self, *more: Endpoint) -> None:
        self._native = NATIVE | {endpoint.value for endpoint in more}

    def build_path(self, base_path: str, endpoint: str, model: str) -> str | None:
        return f"{base_path}/{endpoint}" if endpoint in self._native else None

    def build_headers(self, secret: str) -> Headers:
        return [("authorization", f"Bearer {secret}")] if secret else []
