"""A worker before targets of every dialect, which do what they are asked: for clients and conformance."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.core.routes import Endpoint, Route
from forebay.testing import bedrock, gemini
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.obliging import BREAKING, FAILING, answer_as_asked
from forebay.testing.threaded import ThreadedUpstream

#: The dialects of targets, and the path of each one's base URL.
BASES = {
    "openai": "/v1",
    "openai-responses": "/v1",
    "azure": "",
    "anthropic": "/v1",
    "bedrock": "",
    "gemini": "/v1beta",
    "vertex": gemini.VERTEX_BASE,
}
DIALECTS = tuple(BASES)
EMBEDDERS = ("openai", "openai-responses", "azure", "gemini")
ENDPOINTS = (Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.COUNT_TOKENS, Endpoint.RESPONSES)
#: What a target calls its model: it must know that it is a Claude where that matters, or a Gemini.
THERE = {"bedrock": "eu.anthropic.claude-sonnet-4", "gemini": "gemini-3-pro", "vertex": "gemini-3-pro"}


def name_model(dialect: str) -> str:
    """Its public name; by parts of it conformance suites tell what a model can do."""
    return f"gpt-5-or-claude-sonnet-4-at-{dialect}"


def make_routes(origin: str) -> list[Route]:
    """A model of each dialect, one that embeds, and those that fail as their names there say."""
    return [
        *(_make(name_model(each), each, origin, THERE.get(each, "there")) for each in DIALECTS),
        *(_make(f"embed-{each}", each, origin, "embedder", (Endpoint.EMBEDDINGS,)) for each in EMBEDDERS),
        *(_make(f"{name}-{each}", each, origin, name) for each in DIALECTS for name in (*FAILING, BREAKING)),
    ]


def _make(name: str, dialect: str, origin: str, there: str, endpoints: Any = ENDPOINTS) -> Route:
    secrets = {"bedrock": "BEDROCK", "gemini": "GOOGLE", "vertex": "GOOGLE"}
    made = make_route(
        name,
        origin + BASES[dialect],
        target_model=there,
        dialect=dialect,
        endpoints=endpoints,
        api_key=f"env:PAIRS_{secrets.get(dialect, 'SECRET')}",
    )
    targets = tuple(msgspec.structs.replace(each, region=bedrock.REGION) for each in made.targets)
    return msgspec.structs.replace(made, targets=targets)


@dataclass(frozen=True, slots=True)
class Pairs:
    worker: GatewayProcess
    upstream: ThreadedUpstream


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    folder: Path = tmp_path_factory.mktemp("pairs")
    environment = {
        "PAIRS_SECRET": "sk-pairs-upstream-0123456789",
        "PAIRS_GOOGLE": gemini.API_KEY,
        "PAIRS_BEDROCK": bedrock.write_secret(),
    }
    with ThreadedUpstream(answer_as_asked) as upstream:
        routes = make_routes(upstream.url.removesuffix("/v1"))
        with GatewayProcess(routes, folder=folder, environment=environment) as worker:
            yield Pairs(worker, upstream)
            assert worker.process.poll() is None, worker.log
            assert "Traceback" not in worker.log, worker.log
