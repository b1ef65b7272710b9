"""A worker that breaks silences soon, and silences that last until a test has seen enough."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_stage import Stage
from raw_caller import RawCaller

from forebay.core.routes import FillerRules, Masking, Route, Target, Timeouts
from forebay.testing.answers import chunk, sse_answer, sse_head
from forebay.testing.gateway import GatewayProcess, make_route
from forebay.testing.steps import Gate, Step, Wait

KEEP = Masking(keep_alive_s=0.15)
FILL = Masking(keep_alive_s=0, filler=FillerRules(after_s=0.1, texts=("Well… ",)))
ASKED = Masking(keep_alive_s=0, filler=FillerRules(after_s=0.1, texts=("Well… ",), is_asked=True))
BOTH = msgspec.structs.replace(FILL, keep_alive_s=0.15)
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
BRIEF = Timeouts(connect_s=0.5, first_token_s=0.5, idle_s=20, total_s=20)


def masked(route: Route, masking: Masking = KEEP) -> Route:
    return msgspec.structs.replace(route, masking=masking)


def make_mixed(openai_url: str, anthropic_url: str, name: str = "mixed") -> Route:
    """A model whose first target speaks Anthropic's, and the second OpenAI's."""
    targets = tuple(
        Target(id=f"{name}-{dialect}", pool=dialect, url=url, model="there", dialect=dialect)
        for dialect, url in (("anthropic", anthropic_url), ("openai", openai_url))
    )
    return msgspec.structs.replace(make_route(name), targets=targets)


def held_answer(gate: Gate, events: list[bytes], before: int = 0) -> list[Step]:
    """A stream of which only `before` events come until the gate opens."""
    head, *rest = sse_answer(events)
    return [head, *rest[:before], Wait(gate), *rest[before:]]


def late_head(gate: Gate, steps: list[Step]) -> list[Step]:
    """An answer of which nothing comes until the gate opens."""
    return [Wait(gate), *steps]


@contextmanager
def calling(gateway: GatewayProcess, path: str, body: dict[str, Any], *headers: str) -> Iterator[RawCaller]:
    with RawCaller(gateway.port) as caller:
        caller.post(path, body, headers=(f"authorization: Bearer {gateway.key}", *headers))
        yield caller


def strip(body: bytes, keep_alive: bytes = COMMENT) -> bytes:
    """Without keep-alives, and without the comment that tells the late headers."""
    events = body.replace(keep_alive, b"").split(b"\n\n")
    return b"\n\n".join(each for each in events if not each.startswith(b": x-forebay-"))


@pytest.fixture(scope="module")
def _quiet(
    _stages: tuple[Stage, Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("silence")
    first, second = (stage.url for stage in _stages)
    routes = [
        masked(make_route("m", first)),
        masked(make_route("two", first, second, timeouts=BRIEF)),
        # Each for one failure: one that has met several in a row does not ask its first target first.
        *(masked(make_route(f"two-{number}", first, second, timeouts=BRIEF)) for number in range(8)),
        masked(make_route("messages", first, dialect="anthropic")),
        masked(make_route("responses", first, dialect="openai-responses")),
        masked(make_mixed(first, second)),
        masked(make_route("never", first), Masking(keep_alive_s=0)),
        masked(make_route("patient", first), Masking(keep_alive_s=0.5)),
        make_route("default", first),
        masked(make_route("filled", first), FILL),
        masked(make_route("filled-messages", first, dialect="anthropic"), FILL),
        masked(make_route("filled-responses", first, dialect="openai-responses"), FILL),
        masked(make_route("filled-two", first, second), BOTH),
        masked(make_mixed(first, second, "filled-mixed"), FILL),
        masked(make_route("asked", first), ASKED),
    ]
    with GatewayProcess(routes, folder=folder) as process:
        yield process


@pytest.fixture
def quiet(_quiet: GatewayProcess) -> Iterator[GatewayProcess]:
    """The worker.  It must survive each test, and must have met no error of its own."""
    before = len(_quiet.log)
    yield _quiet
    log = _quiet.log[before:]
    assert _quiet.process.poll() is None, log
    assert "Traceback" not in log, log


__all__ = ["_quiet", "chunk", "quiet", "sse_head"]
