"""Which environment of an engine a deployment runs in, and what is said while there is none."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from forebay.app.config import Config, load_config
from forebay.app.config_problems import ConfigInvalid
from forebay.app.deployment_environments import compile_here, explain
from forebay.app.deployment_store import AGAIN_LOOKS, DeploymentStore
from forebay.app.environments import open_environments
from forebay.app.manifest_files import load_manifests
from forebay.engines.deployment import LauncherKind
from forebay.engines.environment import BuiltEnvironment, compute_digest
from forebay.engines.environment_recipes import find_recipe
from forebay.engines.environment_tools import find_platform

MANIFEST = "deployments: {big: {source: model, engine: {kind: vllm}}}\n"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "deploy.yaml").write_text(MANIFEST)
    (tmp_path / "forebay.yaml").write_text(MANIFEST)
    return load_config(tmp_path / "forebay.yaml", {})


def build(config: Config) -> str:
    """What the store takes for an environment; nothing can be started from it."""
    recipe = find_recipe("vllm", "", "cpu")
    platform = find_platform(recipe)
    digest = compute_digest(recipe, platform)
    built = BuiltEnvironment(
        digest=digest,
        recipe=recipe.name,
        engine="vllm",
        version=recipe.version,
        revision=recipe.revision,
        hardware="cpu",
        platform=platform,
        built_at_s=1.0,
        build_s=1.0,
        smoke_s=None,
        size_bytes=1,
        packages={},
    )
    folder = open_environments(config).locate(digest)
    folder.mkdir(parents=True)
    (folder / BuiltEnvironment.FILE).write_bytes(msgspec.json.encode(built))
    return digest


def test_a_deployment_takes_the_environment_of_its_engine(config: Config) -> None:
    before = compile_here("big", config.deployments["big"], config)
    assert (before.environment, before.spec.version) == ("", "")
    assert "forebay env build vllm-cpu" in explain(before, config)
    digest = build(config)
    after = compile_here("big", config.deployments["big"], config)
    assert after.environment == digest
    assert after.spec.version == find_recipe("vllm", "", "cpu").version
    assert explain(after, config) == ""


def test_nothing_is_applied_that_has_no_environment(tmp_path: Path, config: Config) -> None:
    config = config.model_copy(update={"deployments": {}})
    with pytest.raises(ConfigInvalid, match=r"deploy.yaml:1: deployments.big.engine: .*forebay env build"):
        load_manifests([str(tmp_path / "deploy.yaml")], config)
    build(config)
    assert "big" in load_manifests([str(tmp_path / "deploy.yaml")], config).deployments


def test_one_of_the_file_waits_for_its_environment(config: Config) -> None:
    async def watch() -> None:
        store = DeploymentStore(None, lambda: config)
        assert await store.poll()
        assert ["forebay env build" in problem for problem in store.problems] == [True]
        digest = build(config)
        assert [await store.poll() for _ in range(AGAIN_LOOKS)].count(True) == 1
        assert [each.environment for each in store.list_current()] == [digest]
        assert store.problems == ()

    asyncio.run(watch())


def test_a_cluster_has_its_own(config: Config) -> None:
    manifest = config.deployments["big"].model_copy(update={"launcher": LauncherKind.KUBERNETES})
    found = compile_here("big", manifest, config)
    assert (found.environment, explain(found, config)) == ("", "")
