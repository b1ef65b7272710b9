"""A Ray cluster of two nodes for the tests of this folder, one for all of them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "launchers"))  # the contract that is held to


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[subprocess.Popen[str]]:
    """The script of the cluster; its first line has been read, and its address is `cluster.args[-1]`."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: `make setup-ray`, then `make test-ray`")
    # Actors import the planner of stand-ins by name.
    path = os.pathsep.join([str(HERE.parent / "launchers"), os.environ.get("PYTHONPATH", "")])
    cluster = subprocess.Popen(
        [sys.executable, str(HERE / "ray_cluster.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "RAY_AUTH_MODE": "disabled"},
    )
    try:
        assert cluster.stdout is not None
        words = cluster.stdout.readline().split()
        assert words[:1] == ["ready"], "the cluster did not start; its messages are above"
        cluster.args = [*map(str, cluster.args), words[1]]  # type: ignore[union-attr,arg-type]
        yield cluster
    finally:
        cluster.terminate()
        cluster.wait(60)
