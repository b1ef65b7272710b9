"""A recipe whose packages are made here, so that environments are built without any package index."""

import base64
import hashlib
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec

from forebay.engines.environment import Container, Recipe, ReplaceFile, Uninstall, WriteMetadata
from forebay.engines.environment_build import Smoke, SmokeResult, Tools
from forebay.engines.environment_tools import find_platform, find_python, find_uv


def make_wheel(folder: Path, name: str, version: str = "1.0", content: str = "VALUE = 1\n") -> str:
    """A wheel with one module; returns its line of a pinned file."""
    files = {
        f"{name}.py": content,
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{name}-{version}.dist-info/RECORD"
    lines = [
        f"{path},sha256={_encode(hashlib.sha256(text.encode()).digest())},{len(text)}"
        for path, text in files.items()
    ]
    files[record] = "\n".join([*lines, f"{record},,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, text in files.items():
            wheel.writestr(zipfile.ZipInfo(inner), text)  # of no time: the same content is the same file
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _encode(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def make_recipe(folder: Path, **changes: Any) -> Recipe:
    """Three packages, of which one is taken out again, and metadata that none brings."""
    pins = [
        make_wheel(folder, "tinyengine"),
        make_wheel(folder, "tinyhelp"),
        make_wheel(folder, "tinybroken"),
    ]
    recipe = Recipe(
        name="tiny",
        requirements="\n".join(pins),
        engine="llamacpp",
        version="1.0",
        revision=1,
        hardware="cpu",
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        size_mib=1,
        repairs=(
            Uninstall(packages=("tinybroken",), why="it breaks the engine"),
            WriteMetadata(name="tiny-alias", version="1.0", why="the engine looks it up"),
            ReplaceFile(path="tinyhelp.py", text="VALUE = 'mended'\n", why="it fails here"),
        ),
        env={"TINY": "1"},
        container=Container(base="python:3.11-slim", command=("python", "-m", "tinyengine")),
        summary="nothing",
    )
    return msgspec.structs.replace(recipe, **changes)


class CountingSmoke:
    """Answers at once, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, recipe: Recipe, folder: Path, log: Path) -> SmokeResult:
        self.count += 1
        return SmokeResult(seconds=0.5, tokens=1)


def make_tools(recipe: Recipe, wheels: Path, smoke: Smoke | None = None) -> Tools:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    environment |= {"UV_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_PYTHON_DOWNLOADS": "never"}
    return Tools(
        python=Path(find_python(recipe.python).base),
        platform=find_platform(recipe),
        uv=find_uv(),
        environment=environment,
        smoke=smoke,
    )


def ignore(line: str) -> None:
    """Takes a line of progress."""
