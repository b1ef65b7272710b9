"""What the tests of known faults share: two workers, and keys that meet limits of different owners."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gateway_stage import CLOSED, Stage
from limits_rig import Authority, workers

from forebay.core.limits import Kind, Limit, Measure, Period
from forebay.core.routes import Timeouts
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.openai import chat_stream, completion_stream, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script

MONTH: dict[str, Any] = {"period": Period.MONTH, "kind": Kind.CALENDAR}
PATHS = ["chat/completions", "completions", "embeddings"]
#: What can be asked for: endpoint, and whether as a stream.
WAYS = [(path, stream) for path in PATHS for stream in (False, True)[: 1 if path == "embeddings" else 2]]
OWNERS = ["key k1", "project test", "team default"]
STREAMS: dict[str, Callable[..., list[bytes]]] = {
    "chat/completions": chat_stream,
    "completions": completion_stream,
}


def places(owner: str) -> Limit:
    return Limit(id=f"places of {owner}", owner=owner, measure=Measure.CONCURRENT, amount=2)


def tokens_of(owner: str, amount: int = 10**6, measure: Measure = Measure.TOTAL_TOKENS) -> Limit:
    return Limit(id=f"{measure} of {owner}", owner=owner, measure=measure, amount=amount, **MONTH)


class Scene:
    """Two workers, and keys that meet limits of different owners."""

    limits = tuple(limit for owner in OWNERS for limit in (places(owner), tokens_of(owner)))
    keys: ClassVar = {f"fb-test-of-{owner}": (places(owner), tokens_of(owner)) for owner in OWNERS} | {
        "fb-test-of-tokens": (tokens_of("project test"),)
    }

    def __init__(self, authority: Authority, gateways: list[GatewayProcess]) -> None:
        self.authority = authority
        self.gateway = gateways[0]
        self.url = self.gateway.url

    def left(self, owner: str) -> dict[str, int]:
        return {id: units for id, units in self.authority.left().items() if id.endswith(owner)}

    def wait_settled(self, owner: str) -> int:
        """Tokens that are left of an owner's limit once nothing moves any more."""
        return self.authority.wait_settled(f"total_tokens of {owner}")

    def wait_left(self, owner: str, **expected: int) -> None:
        wanted = {f"{name.replace('tokens', 'total_tokens')} of {owner}": n for name, n in expected.items()}
        try:
            self.gateway.until(lambda: wanted.items() <= self.left(owner).items())
        except TimeoutError:
            assert self.left(owner) == wanted


@pytest.fixture(scope="module")
def scene(_stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("faults")
    url = _stages[0].url
    hasty = Timeouts(connect_s=0.5, first_token_s=0.3, idle_s=0.3, total_s=0.4)
    routes = [
        make_route("m", url),
        make_route("hasty", url, timeouts=hasty),
        make_route("dead", f"http://127.0.0.1:{CLOSED}/v1"),
    ]
    with (
        Authority(folder, Scene.limits) as authority,
        workers(folder, 2, url, Scene.limits, keys=Scene.keys, routes=routes) as started,
    ):
        yield Scene(authority, started)


def good(request: RecordedRequest) -> Script:
    return well_behaved("Hello")(request)
