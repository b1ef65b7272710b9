"""Which deployments are to run, while several look at once: what was read later is what holds."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_scene import Scene

from forebay.app.deployment_records import DeploymentRecord, WantedManifest
from forebay.app.deployment_repo import DeploymentRepo
from forebay.app.deployment_store import DeploymentStore
from forebay.gateway.tenancy import FOREBAY


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


class SlowRepo(DeploymentRepo):
    """Its first reader gets what it has read only after a while."""

    has_read, may_go_on = threading.Event(), threading.Event()

    def list_current(self) -> tuple[DeploymentRecord, ...]:
        found = super().list_current()
        if not self.has_read.is_set():
            self.has_read.set()
            assert self.may_go_on.wait(60)
        return found


def test_an_older_reading_never_takes_the_place_of_a_newer_one(scene: Scene) -> None:
    repo = SlowRepo(scene.database, scene.clock)
    store = DeploymentStore(repo, lambda: scene.watch.config)

    def apply(version: str) -> None:
        manifest = {"source": "embedded:smollm2-135m", "engine": {"kind": "llamacpp"}, "version": version}
        repo.apply([WantedManifest(name="chat", manifest=manifest)], FOREBAY)

    async def check() -> None:
        apply("1")
        async with asyncio.TaskGroup() as group:
            group.create_task(store.poll())
            assert await asyncio.to_thread(repo.has_read.wait, 60)
            apply("2")
            second = group.create_task(store.poll())  # as after a change through the admin API
            await asyncio.wait({second}, timeout=0.5)
            repo.may_go_on.set()
        assert [each.version for each in store.list_current()] == ["2"]

    asyncio.run(check())
