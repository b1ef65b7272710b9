"""Engine environments of one Forebay: where they are, which one is meant, and what building one tells."""

from forebay.app.config import Config
from forebay.app.matrix import SMOKE_MODEL
from forebay.engines.environment import (
    BuiltEnvironment,
    EnvironmentInvalid,
    Recipe,
    compute_digest,
    find_digest,
)
from forebay.engines.environment_recipes import find_recipe, list_recipes, load_recipe
from forebay.engines.environment_store import EnvironmentStore
from forebay.engines.environment_tools import find_platform
from forebay.engines.matrix import NOTE_MAX, Combination, Trial, TrialOutcome


def open_environments(config: Config) -> EnvironmentStore:
    return EnvironmentStore(config.data_path)


def resolve_environment(
    store: EnvironmentStore, name: str, *, engine: str, version: str, hardware: str
) -> BuiltEnvironment:
    """The environment that a deployment means.

    Args:
        name: a digest or its beginning, or a recipe; empty takes the recipe for the engine on that hardware.

    Raises:
        EnvironmentInvalid: there is none, or it is not built; says how to build it.
    """
    if name and name not in list_recipes():
        built = store.find(find_digest(name, store.list_digests()))
        if built is None:
            raise EnvironmentInvalid(f"the environment {name} can't be read: build it anew")
    else:
        recipe = load_recipe(name) if name else find_recipe(engine, version, hardware)
        digest = compute_digest(recipe, find_platform(recipe))
        built = store.find(digest)
        if built is None:
            raise EnvironmentInvalid(
                f"the environment of {recipe.name} is not built here: run `forebay env build {recipe.name}`"
            )
    if built.engine != engine:
        raise EnvironmentInvalid(f"the environment {built.digest} is one of {built.engine}, not of {engine}")
    if version and built.version != version:
        raise EnvironmentInvalid(
            f"the environment {built.digest} holds {built.engine} {built.version}, not {version}"
        )
    return built


def make_smoke_trial(recipe: Recipe, hardware: str, built: BuiltEnvironment | None, why: str) -> Trial:
    """What the smoke inference of a build tells the version matrix; `built` is None where it failed."""
    figures = {} if built is None else {"start_s": built.smoke_s or 0.0, "build_s": built.build_s}
    return Trial(
        combination=Combination(
            model=SMOKE_MODEL, engine=recipe.engine, engine_version=recipe.version, hardware=hardware
        ),
        outcome=TrialOutcome.FAILED if built is None else TrialOutcome.PASSED,
        at_ns=0,
        source="smoke",
        figures=figures,
        environment="" if built is None else built.digest,
        note=why[:NOTE_MAX],
    )
