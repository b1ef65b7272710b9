"""How requests to Azure OpenAI are addressed.  Pure.

What is said is OpenAI's dialect with more in it (what the content filters found), so bodies pass untouched.
There are two forms of address, told apart by the path of a target's base URL:

- one that ends in `/v1` (`https://NAME.openai.azure.com/openai/v1`): as at OpenAI; the deployment's name is
  the `model` of the body;
- any other (`https://NAME.openai.azure.com`): the deployment's name is in the path, and the API's version in
  the query.

A secret is a key, which has a header of its own, or a token of Microsoft Entra ID, which goes as a bearer.

Source: Microsoft Learn, "Azure OpenAI REST API reference" and "API version lifecycle".
"""

import re
from typing import Final
from urllib.parse import quote

from forebay.core.routes import MEDIA, Endpoint
from forebay.providers.translation import Headers

_NATIVE: Final = frozenset(
    endpoint.value
    for endpoint in (
        *(Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS),
        *(MEDIA - {Endpoint.IMAGE_VARIATIONS}),
    )
)
#: A JSON Web Token, as Microsoft Entra ID gives them; the keys of Azure OpenAI hold no dots.
_ENTRA_TOKEN: Final = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+", re.ASCII)
VERSION: Final = "2024-10-21"  #: the latest of the first form that is not a preview, for URLs that name none


class AzureWire:
    """`forebay.core.translation.TargetWire`."""

    def build_path(self, base_path: str, endpoint: str, model: str) -> str | None:
        if endpoint not in _NATIVE:
            return None
        path, _, query = base_path.partition("?")
        path = path.rstrip("/")
        if path.endswith("/v1"):
            return f"{path}/{endpoint}" + (f"?{query}" if query else "")
        if "/deployments/" not in path:
            path = f"{path.removesuffix('/openai')}/openai/deployments/{quote(model, safe='')}"
        return f"{path}/{endpoint}?{query or f'api-version={VERSION}'}"

    def build_headers(self, secret: str) -> Headers:
        if _ENTRA_TOKEN.fullmatch(secret):
            return [("authorization", f"Bearer {secret}")]
        return [("api-key", secret)] if secret else []
