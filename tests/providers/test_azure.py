"""Both forms of Azure OpenAI's addresses."""

import pytest

from forebay.core.routes import MEDIA, Endpoint
from forebay.providers.azure import VERSION, AzureWire
from forebay.providers.translators import can_answer, find_way

WIRE = AzureWire()


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("/openai/v1", "/openai/v1/chat/completions"),
        ("/openai/v1/", "/openai/v1/chat/completions"),
        ("/openai/v1?api-version=preview", "/openai/v1/chat/completions?api-version=preview"),
        ("", f"/openai/deployments/gpt-5/chat/completions?api-version={VERSION}"),
        ("/openai", f"/openai/deployments/gpt-5/chat/completions?api-version={VERSION}"),
        ("/apim/azure", f"/apim/azure/openai/deployments/gpt-5/chat/completions?api-version={VERSION}"),
        (
            "?api-version=2025-01-01-preview",
            "/openai/deployments/gpt-5/chat/completions?api-version=2025-01-01-preview",
        ),
        (
            "/openai/deployments/other?api-version=2024-06-01",
            "/openai/deployments/other/chat/completions?api-version=2024-06-01",
        ),
    ],
)
def test_a_request_s_path_follows_from_the_address(base: str, path: str) -> None:
    assert WIRE.build_path(base, "chat/completions", "gpt-5") == path


def test_audio_and_images_have_their_paths_too() -> None:
    for endpoint in MEDIA - {Endpoint.IMAGE_VARIATIONS}:
        path = WIRE.build_path("?api-version=2025-04-01-preview", endpoint.value, "hears")
        assert path == f"/openai/deployments/hears/{endpoint.value}?api-version=2025-04-01-preview"
        assert WIRE.build_path("/openai/v1", endpoint.value, "hears") == f"/openai/v1/{endpoint.value}"
    assert WIRE.build_path("", Endpoint.IMAGE_VARIATIONS.value, "draws") is None


def test_a_deployment_s_name_is_escaped() -> None:
    path = WIRE.build_path("", "embeddings", "my model/ä")
    assert path == f"/openai/deployments/my%20model%2F%C3%A4/embeddings?api-version={VERSION}"


def test_the_key_has_a_header_of_its_own() -> None:
    assert WIRE.build_headers("k") == [("api-key", "k")]
    assert WIRE.build_headers("") == []


def test_a_token_of_entra_id_goes_as_a_bearer() -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJodHRwcyJ9.c2lnbmF0dXJl_-"
    assert WIRE.build_headers(token) == [("authorization", f"Bearer {token}")]
    for key in ("eyJhbGciOiJSUzI1NiJ9", "a.b.c", f"{token}.x", f"{token}:x"):
        assert WIRE.build_headers(key) == [("api-key", key)]


def test_what_azure_answers_passes_untouched_and_messages_are_translated() -> None:
    for endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS):
        way = find_way(endpoint, "azure")
        assert way is not None
        assert (way.caller, way.target) == (None, None)
    messages = find_way(Endpoint.MESSAGES, "azure")
    assert messages is not None
    assert messages.caller is not None
    assert can_answer("azure", Endpoint.COUNT_TOKENS)
