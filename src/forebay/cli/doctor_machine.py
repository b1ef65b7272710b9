"""Checks of the machine: Python, packages, data folder, disk, limits.  They change nothing on it."""

import os
import platform
import re
import resource
import shutil
import stat
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from forebay.app.config import Config
from forebay.cli.finding import Finding, Verdict
from forebay.version import __version__

PYTHON_MIN: Final = (3, 11)
DISK_FAIL_BYTES: Final = 200 * 1024 * 1024
DISK_WARN_BYTES: Final = 2 * 1024 * 1024 * 1024
FILES_SPARE: Final = 512  #: descriptors that a worker needs beside those of callers


def check_python() -> Finding:
    message = (
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, forebay {__version__}"
    )
    if sys.version_info < PYTHON_MIN:
        return Finding(name="python", verdict=Verdict.FAIL, message=message, hint="use Python 3.11 or later")
    if sys.platform != "linux":
        return Finding(name="python", verdict=Verdict.WARN, message=message, hint="only Linux is tested")
    return Finding(name="python", verdict=Verdict.OK, message=message)


def check_packages() -> Iterator[Finding]:
    """Those that the base install names, with the versions that it asks for."""
    try:
        wanted = metadata.requires("forebay") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            name="packages", verdict=Verdict.WARN, message="forebay is not installed", hint="run `make setup`"
        )
        return
    good = []
    for requirement in wanted:
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name=name, verdict=Verdict.FAIL, message="not installed", hint="run `make setup`")
            continue
        if fits(version, requirement):
            good.append(f"{name} {version}")
        else:
            yield Finding(
                name=name,
                verdict=Verdict.FAIL,
                message=f"{version}, but {requirement}",
                hint="run `make setup`",
            )
    yield Finding(name="packages", verdict=Verdict.OK, message=", ".join(good))


def fits(version: str, requirement: str) -> bool:
    """Whether a version is what `name>=1.2` or `name==1.2` asks for; other forms count as fulfilled."""
    for operator, bound in re.findall(r"(>=|==)\s*([0-9][0-9.]*)", requirement):
        have, want = _numbers(version), _numbers(bound)
        if operator == "==" and have[: len(want)] != want:
            return False
        if operator == ">=" and have < want:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9.]+", version)
    return tuple(int(part) for part in (found[0] if found else "").split(".") if part)


def check_data_folder(config: Config) -> Iterator[Finding]:
    folder = config.data_path
    if not folder.exists():
        parent = _existing(folder)
        if os.access(parent, os.W_OK | os.X_OK):
            yield Finding(
                name="data folder", verdict=Verdict.OK, message=f"{folder} will be made at first start"
            )
        else:
            yield _fail("data folder", f"{parent} is not writable", "set data.dir to a folder of yours")
        return
    if not folder.is_dir():
        yield _fail("data folder", f"{folder} is not a folder", "set data.dir to another path")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield _fail("data folder", f"{folder} is not readable and writable", f"chown or chmod {folder}")
        return
    too_open = [path for path in (folder, *_private_files(config)) if _others_may_enter(path)]
    for path in too_open:
        mode = "700" if path.is_dir() else "600"
        yield Finding(
            name="data folder",
            verdict=Verdict.WARN,
            message=f"others may read {path}",
            hint=f"chmod {mode} {path}",
        )
    if not too_open:
        yield Finding(name="data folder", verdict=Verdict.OK, message=str(folder))


def _private_files(config: Config) -> list[Path]:
    return [
        path
        for path in (config.local_key_path, config.admin_token_path, config.database_path)
        if path.exists()
    ]


def _others_may_enter(path: Path) -> bool:
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def check_disk(config: Config) -> Finding:
    free = shutil.disk_usage(_existing(config.data_path)).free
    message = f"{free / 1e9:.1f} GB free for {config.data_path}"
    hint = "free some space, or set data.dir to another disk"
    if free < DISK_FAIL_BYTES:
        return _fail("disk", message, hint)
    if free < DISK_WARN_BYTES:
        return Finding(name="disk", verdict=Verdict.WARN, message=message, hint=hint)
    return Finding(name="disk", verdict=Verdict.OK, message=message)


def check_limits(config: Config) -> Finding:
    """A worker needs a descriptor for each caller's connection and each connection to a target."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = config.gateway.connections_max + FILES_SPARE
    message = "open files: unlimited" if hard == resource.RLIM_INFINITY else f"open files: at most {hard}"
    if hard != resource.RLIM_INFINITY and hard < needed:
        return Finding(
            name="limits",
            verdict=Verdict.WARN,
            message=f"{message}, but gateway.connections_max is {config.gateway.connections_max}",
            hint=f"raise `ulimit -Hn` to {needed}, or lower gateway.connections_max",
        )
    return Finding(name="limits", verdict=Verdict.OK, message=message)


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _fail(name: str, message: str, hint: str) -> Finding:
    return Finding(name=name, verdict=Verdict.FAIL, message=message, hint=hint)
