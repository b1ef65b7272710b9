"""A registration that is killed with `kill -9` between any two of its steps on the disk: nothing of it
counts, or all of it, and what is left over is collected."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from registry_rig import Scene, write_folder

from forebay.registry.service import Wanted

STEPS = ("fsync", "link", "rename", "replace", "mkdir")


def kill_at(step: int, folder: Path, work: Callable[[Scene], object]) -> bool:
    """Does something in a process of its own that is killed before its n-th step; whether it came so far."""
    child = os.fork()
    if child == 0:
        taken = 0

        def count(call: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                nonlocal taken
                taken += 1
                if taken == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return counted

        try:
            with Scene(folder) as scene:
                for name in STEPS:
                    setattr(os, name, count(getattr(os, name)))
                work(scene)
        finally:
            os._exit(0 if taken < step else 1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("link", [False, True])
def test_a_registration_that_is_killed_anywhere_leaves_nothing_or_a_whole_version(
    tmp_path: Path, link: bool
) -> None:
    source = write_folder(tmp_path / "hf", {"config.json": b"{}", "sub/w": b"w" * 5000})
    was_killed, step = True, 0
    while was_killed:
        step += 1
        assert step < 200
        data = tmp_path / f"data{step}"
        with Scene(data):
            pass
        was_killed = kill_at(
            step, data, lambda scene: scene.register("chat", source, alias="champion", link=link)
        )
        with Scene(data) as scene:
            models = scene.repo.list_models()
            assert len(models) == (0 if was_killed else 1)
            for model in models:
                assert scene.is_whole(model.versions[0].digest)
            scene.registry.collect(is_meant=True)
            if was_killed:
                assert scene.list_files() == set()
            again = scene.register("chat", source, alias="champion", link=link).version
            assert again.version == 1
            assert scene.is_whole(again.digest)
            assert scene.registry.collect(is_meant=True) == ()
    assert step > 10


def test_a_collection_that_is_killed_anywhere_takes_no_part_of_a_version(tmp_path: Path) -> None:
    kept = write_folder(tmp_path / "kept", {"w": b"same", "c": b"1"})
    gone = write_folder(tmp_path / "gone", {"w": b"same", "c": b"2"})
    was_killed, step = True, 0
    while was_killed:
        step += 1
        data = tmp_path / f"data{step}"
        with Scene(data) as scene:
            digest = scene.register("chat", kept).version.digest
            with scene.store.hold():
                other = scene.store.add(
                    scene.registry.look(_want(gone)), lambda _count, _name: None
                ).digest  # a registration that came no further
        was_killed = kill_at(step, data, lambda scene: scene.registry.collect(is_meant=True))
        with Scene(data) as scene:
            assert scene.is_whole(digest)
            scene.registry.collect(is_meant=True)
            assert scene.is_whole(digest)
            assert not scene.store.has(other)
            assert sum(name.startswith("blobs/") for name in scene.list_files()) == 2


def _want(path: Path) -> Wanted:
    return Wanted(name="other", path=path)
