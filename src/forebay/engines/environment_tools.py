"""Finds with what environments are built on this machine: a Python of the right version, uv, the package
index.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from forebay.engines.environment import EnvironmentFailed, EnvironmentInvalid, Platform, Recipe
from forebay.engines.environment_build import Smoke, Tools
from forebay.engines.package_index import compose_environment, list_options, load_pip_settings

ASK_TIMEOUT_S: Final = 60.0
_ASK: Final = (
    "import json, platform, sys; libc = platform.libc_ver(); "
    "print(json.dumps({'python': platform.python_version(), 'system': "
    "f'{sys.platform}-{platform.machine()}-{libc[0]}{libc[1]}', 'base': sys._base_executable}))"
)
#: What would change what uv or a Python in an environment does, and is a matter of whoever started us.
_DROPPED: Final = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "UV_PROJECT")


class _Told(msgspec.Struct):
    python: str
    system: str
    base: str


def find_tools(recipe: Recipe, smoke: Smoke | None) -> Tools:
    """Raises EnvironmentInvalid where something is not there, and says how to get it."""
    told = find_python(recipe.python)
    try:
        settings = load_pip_settings()
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentFailed(f"pip does not tell its settings (`pip config list`): {error}") from None
    environment = compose_environment(settings)
    for name in _DROPPED:
        environment.pop(name, None)
    return Tools(
        python=Path(told.base),
        platform=Platform(python=told.python, system=told.system),
        uv=find_uv(),
        environment={**environment, "UV_PYTHON_DOWNLOADS": "never"},
        options=tuple(list_options(settings)),
        smoke=smoke,
    )


def find_platform(recipe: Recipe) -> Platform:
    """What the recipe's environment would be built on here.  Raises EnvironmentInvalid."""
    told = find_python(recipe.python)
    return Platform(python=told.python, system=told.system)


def find_python(version: str) -> _Told:
    """A Python of that version: the one that runs this, else one on the path."""
    if sys.version_info[:2] == tuple(int(part) for part in version.split(".")):
        return _ask(sys.executable)
    found = shutil.which(f"python{version}")
    if found is None:
        raise EnvironmentInvalid(
            f"Python {version} was not found: the recipe needs it; install it, so that `python{version}` "
            "is on "
            "the path"
        )
    return _ask(found)


def find_uv() -> Path:
    beside = Path(sys.prefix, "bin", "uv")
    found = beside if os.access(beside, os.X_OK) else shutil.which("uv")
    if found is None:
        raise EnvironmentInvalid("uv, which builds environments, was not found: `pip install uv`")
    return Path(found)


def _ask(python: str) -> _Told:
    try:
        told = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, check=True, timeout=ASK_TIMEOUT_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentInvalid(f"{python} does not run: {error}") from None
    return msgspec.json.decode(told, type=_Told)
