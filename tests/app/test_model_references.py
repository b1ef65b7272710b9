"""Deployments that name versions of the registry: pinned where they are applied, refused where nobody could
run them, and never left without what they name."""

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_scene import Scene

from forebay.app.config_deployments import DeploymentConfig, LaunchersConfig
from forebay.app.config_launchers import KubernetesConfig
from forebay.app.deployment_compile import compile_deployment
from forebay.app.deployment_records import DeploymentsRefused
from forebay.app.deployment_service import DeploymentService
from forebay.app.deployment_store import DeploymentStore
from forebay.app.model_references import find_models_folder
from forebay.app.model_registry import find_users, make_author, open_registry
from forebay.core.errors import InvalidValue
from forebay.engines.kube_objects import check_weights
from forebay.engines.model import LauncherError
from forebay.gateway.tenancy import FOREBAY
from forebay.registry.model import ModelVersion, RegistryConflict
from forebay.registry.reference import parse_reference
from forebay.registry.service import Wanted

GGUF = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + bytes(100)
AUTHOR = make_author(FOREBAY)
DIGEST = "ab" * 32


class Models(Scene):
    def __init__(self, folder: Path, yaml: str = "") -> None:
        super().__init__(folder, yaml)
        self.config = self.watch.config
        self.registry = open_registry(self.config, self.database, self.clock)
        self.service = DeploymentService(self.deployments, lambda: self.config, lambda: ())

    def register(self, content: bytes, *, alias: str = "") -> ModelVersion:
        path = self.config.data_path / "given"
        path.write_bytes(content)
        wanted = Wanted(name="chat", path=path, alias=alias)
        found = self.registry.look(wanted)
        return self.registry.register(wanted, found, AUTHOR, lambda _count, _name: None).version

    def apply(self, source: str = "registry:chat@champion", **more: Any) -> str:
        """The source as it is kept."""
        manifest = make_manifest(source, **more)
        plan = self.service.plan({"words": manifest})
        (applied,) = self.service.apply(plan, FOREBAY, allow_untested=True)
        assert applied.record.manifest is not None
        return str(applied.record.manifest["source"])

    def delete(self, text: str) -> None:
        def find(connection: Any, version: ModelVersion) -> tuple[str, ...]:
            return find_users(self.config, connection, version)

        self.registry.repo.delete(parse_reference(text), AUTHOR, find)


def make_manifest(source: str, **more: Any) -> DeploymentConfig:
    return DeploymentConfig.model_validate({"source": source, "engine": {"kind": "llamacpp"}, **more})


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Models]:
    scene = Models(tmp_path)
    yield scene
    scene.close()


def test_an_alias_is_pinned_where_it_is_applied(scene: Models) -> None:
    first = scene.register(GGUF, alias="champion")
    assert scene.apply() == f"registry:chat@champion#1:{first.digest}"
    second = scene.register(GGUF + b"2", alias="champion")
    (record,) = scene.deployments.list_current()
    assert record.manifest is not None
    assert record.manifest["source"] == f"registry:chat@champion#1:{first.digest}"

    plan = scene.service.plan({"words": make_manifest("registry:chat@champion")})
    (diff,) = plan.diffs
    assert diff.rolls
    assert [(change.key, change.after) for change in diff.changes] == [
        ("source", f"registry:chat@champion#2:{second.digest}")
    ]
    # What was kept may be applied as it was read: it means what it says.
    assert scene.service.plan({"words": make_manifest(record.manifest["source"])}).is_empty
    assert scene.apply() == f"registry:chat@champion#2:{second.digest}"
    scene.service.roll_back("words", FOREBAY)
    (record,) = scene.deployments.list_current()
    assert record.manifest is not None
    assert record.manifest["source"] == f"registry:chat@champion#1:{first.digest}"


def test_what_runs_is_the_content_and_its_version_stands_on_records(scene: Models) -> None:
    version = scene.register(GGUF, alias="champion")
    scene.apply()
    asyncio.run(scene.store.poll())
    (deployment,) = scene.store.list_current()
    assert Path(deployment.spec.model).read_bytes() == GGUF
    assert deployment.spec.model == str(scene.registry.locate(version))
    assert deployment.version == "chat-v1"
    scene.apply(version="of-mine")
    asyncio.run(scene.store.poll())
    assert [each.version for each in scene.store.list_current()] == ["of-mine"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("registry:away@1", "no model 'away' is registered here"),
        ("registry:chat@7", "chat has no version 7; there is 1"),
        ("registry:chat@other", "chat has no alias 'other'; there is champion"),
        (f"registry:chat@1#1:{DIGEST}", "pinned in another registry"),
    ],
)
def test_what_is_not_there_is_not_applied(scene: Models, source: str, said: str) -> None:
    scene.register(GGUF, alias="champion")
    with pytest.raises(InvalidValue, match=said) as caught:
        scene.apply(source)
    assert caught.value.message.startswith("deployments.words")
    assert scene.deployments.list_current() == ()


def test_a_content_that_is_of_no_use_here_is_not_applied(scene: Models) -> None:
    scene.register(b"no GGUF at all", alias="champion")
    with pytest.raises(InvalidValue, match="is no GGUF file"):
        scene.apply()
    version = scene.register(GGUF, alias="champion")
    scene.registry.locate(version).unlink()
    with pytest.raises(
        InvalidValue, match=r"content of chat@2 is not on this machine.*`forebay models register"
    ):
        scene.apply()
    scene.register(GGUF)
    assert scene.apply()


def test_a_version_in_use_stays(scene: Models) -> None:
    scene.register(GGUF)
    scene.register(GGUF + b"2")
    scene.register(GGUF + b"3")
    scene.apply("registry:chat@1")
    with pytest.raises(RegistryConflict, match="in use by deployment words: end that first"):
        scene.delete("chat@1")
    scene.apply("registry:chat@2")
    with pytest.raises(RegistryConflict, match="generation 1 that deployment words may go back to"):
        scene.delete("chat@1")
    scene.apply("registry:chat@3")
    scene.delete("chat@1")
    with pytest.raises(DeploymentsRefused, match="words: chat has no version 1"):
        scene.service.roll_back("words", FOREBAY, to=1)
    scene.service.roll_back("words", FOREBAY)
    with pytest.raises(RegistryConflict):
        scene.delete("chat@2")


def test_what_vanishes_between_a_look_and_its_change_is_refused(scene: Models) -> None:
    scene.register(GGUF)
    plan = scene.service.plan({"words": make_manifest("registry:chat@1")})
    scene.delete("chat@1")
    with pytest.raises(DeploymentsRefused, match="no model 'chat' is registered here"):
        scene.service.apply(plan, FOREBAY, allow_untested=True)
    assert scene.deployments.list_current() == ()


def test_the_file_names_versions_by_their_numbers(tmp_path: Path) -> None:
    yaml = "deployments: {words: {source: 'registry:chat@1', engine: {kind: llamacpp}}}\n"
    scene = Models(tmp_path, yaml)
    try:
        store = DeploymentStore(scene.deployments, lambda: scene.config)
        asyncio.run(store.poll())
        assert store.list_current() == ()
        assert "deployment words does not run: no model 'chat' is registered here" in store.problems[0]
        version = scene.register(GGUF)
        for _ in range(8):  # it looks again by itself, now and then
            asyncio.run(store.poll())
        (deployment,) = store.list_current()
        assert (deployment.spec.model, deployment.version) == (str(scene.registry.locate(version)), "chat-v1")
        assert store.problems == ()
        with pytest.raises(RegistryConflict, match=r"deployment words \(forebay.yaml\)"):
            scene.delete("chat@1")
    finally:
        scene.close()


def test_each_launcher_finds_contents_where_it_can(tmp_path: Path) -> None:
    source = f"registry:chat@champion#2:{DIGEST}"
    below = f"versions/{DIGEST}/model"
    here = LaunchersConfig()
    for launcher in ("local", "ray"):
        found = compile_deployment("words", make_manifest(source, launcher=launcher), here, tmp_path)
        assert found.spec.model == f"{tmp_path}/{below}"
    on_cluster = make_manifest(source, launcher="kubernetes")
    lost = compile_deployment("words", on_cluster, here, tmp_path)
    with pytest.raises(LauncherError, match=r"launchers.kubernetes.models_path"):
        check_weights(lost.spec)
    there = LaunchersConfig(kubernetes=KubernetesConfig(models_path="/models/registry"))
    found = compile_deployment("words", on_cluster, there, tmp_path)
    assert (found.spec.model, found.version) == (f"/models/registry/{below}", "chat-v2")
    check_weights(found.spec)


def test_the_folder_of_models_is_that_of_the_data(scene: Models) -> None:
    assert find_models_folder(scene.config) == scene.registry.store.folder
