"""What the tests of the watch over engines stand on: a board that remembers, and configurations of pools."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from forebay.app.clock import SystemClock
from forebay.app.config import Config, load_config
from forebay.app.engine_probe import EngineProbe
from forebay.app.engine_watch import EngineWatch
from forebay.app.snapshot import compile_snapshot
from forebay.app.watched import PlaceKey
from forebay.core.engine_load import EngineLoad, EngineState

MODEL = "models:\n  m: {{endpoints: [{endpoint}], targets: [{{pool: p, model: there{target}}}]}}\n"


def write_config(folder: Path, urls: Iterable[str], pool: str = "engine: vllm", **names: str) -> Config:
    """One model in one pool of replicas."""
    names = {"endpoint": "chat/completions", "target": ", tier: provisioned", **names}
    file = folder / "forebay.yaml"
    replicas = ", ".join(urls)
    file.write_text(f"pools:\n  p: {{{pool}, replicas: [{replicas}]}}\n" + MODEL.format(**names))
    return load_config(file, {"KEY": "sk-secret"})


class RecordingBoard:
    """Remembers all that was published, in its order."""

    def __init__(self) -> None:
        self.told: list[EngineLoad] = []
        self._changed = asyncio.Event()

    def publish(self, loads: Iterable[EngineLoad], *, at_once: bool = False) -> None:
        self.told.extend(loads)
        self._changed.set()
        self._changed = asyncio.Event()

    def find(self, target: str) -> EngineLoad | None:
        """What was told of a target last."""
        return next((load for load in reversed(self.told) if load.target_id == target), None)

    def list_states(self, target: str) -> list[EngineState]:
        """The states of a target in their order, each once in a row."""
        states = [load.state for load in self.told if load.target_id == target]
        return [state for at, state in enumerate(states) if not at or states[at - 1] is not state]

    async def wait(
        self, is_so: Callable[[EngineLoad], bool], target: str = "m@p", timeout_s: float = 60.0
    ) -> EngineLoad:
        """Until what was told last of a target is so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while (load := self.find(target)) is None or not is_so(load):
                    await self._changed.wait()
                return load
        raise TimeoutError(f"not within {timeout_s} s; last: {self.find(target)}; {self.list_states(target)}")


class WatchScene:
    """A watch that runs, and its board."""

    def __init__(self, folder: Path, known: frozenset[PlaceKey] = frozenset()) -> None:
        self.board = RecordingBoard()
        self.watch = EngineWatch(self.board, EngineProbe(SystemClock()), folder, known)

    def follow(self, config: Config, engine_urls: Mapping[str, str] | None = None) -> None:
        urls = engine_urls or {}
        self.watch.follow(compile_snapshot(config, [], urls), config, urls)


@asynccontextmanager
async def open_watch(folder: Path, known: frozenset[PlaceKey] = frozenset()) -> AsyncIterator[WatchScene]:
    scene = WatchScene(folder, known)
    running = asyncio.create_task(scene.watch.run())
    try:
        yield scene
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
