"""How an engine is started from its environment: the interpreter, and what is added to the environment of it.

llama.cpp runs in Forebay's own runner, and its environment holds no Forebay: it gets the one that runs now,
by a folder with a link to this package and nothing else, so that none of what lies beside it shadows what
is pinned.
"""

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import forebay
from forebay.engines.environment import BuiltEnvironment, EnvironmentInvalid
from forebay.engines.environment_store import EnvironmentStore

#: Kinds of engines that a module of Forebay starts.
OWN_RUNNERS: Final = frozenset({"llamacpp"})


def find_python(store: EnvironmentStore, digest: str) -> Path:
    """The interpreter of an environment, for `Place.python`.  Raises EnvironmentInvalid."""
    if store.find(digest) is None:
        raise EnvironmentInvalid(f"there is no environment {digest}: build it with `forebay env build`")
    return store.locate_python(digest)


def compose_launch(store: EnvironmentStore, built: BuiltEnvironment) -> dict[str, str]:
    """What is added to the environment of a process that is started from it.  Raises OSError."""
    return compose_variables(store.root, built.engine, built.env)


def compose_variables(root: Path, engine: str, env: Mapping[str, str]) -> dict[str, str]:
    """The same of one that is being built."""
    variables = {**env, "PYTHONNOUSERSITE": "1"}
    if engine in OWN_RUNNERS:
        variables["PYTHONPATH"] = str(_link_package(root))
    return variables


def _link_package(root: Path) -> Path:
    package = Path(forebay.__file__).resolve().parent
    folder = root / f"runner-{hashlib.sha256(os.fsencode(package)).hexdigest()[:8]}"
    link = folder / "forebay"
    if not link.is_symlink():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = folder / f".{secrets.token_hex(4)}"
        beside.symlink_to(package)
        os.replace(beside, link)
    return folder
