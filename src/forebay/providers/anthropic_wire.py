"""How requests to targets that speak Anthropic's API are addressed.  Pure."""

from forebay.core.routes import Endpoint
from forebay.providers.translation import Headers

VERSION = "2023-06-01"  #: of the API, for requests whose caller names none
NATIVE = frozenset({Endpoint.MESSAGES.value, Endpoint.COUNT_TOKENS.value})


class AnthropicWire:
    """A base URL up to and including `/v1`, the key in a header of its own, and the version of the API."""

    @property
    def passed(self) -> Headers:
        return [("anthropic-version", VERSION), ("anthropic-beta", "")]

    def build_path(self, base_path: str, endpoint: str, model: str) -> str | None:
        return f"{base_path}/{endpoint}" if endpoint in NATIVE else None

    def build_headers(self, secret: str) -> Headers:
        return [("x-api-key", secret)] if secret else []
