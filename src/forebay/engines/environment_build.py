"""Builds an engine environment: once for each digest, all of it or nothing.

The way: a folder beside its place, uv fills it with what the recipe pins, repairs, bytecode, a smoke
inference on the engine in it, its description, one rename.  Whoever is killed on the way leaves a folder
that does not count, which the next builder of the same digest removes.  What fails its smoke inference is
set aside with its log. A build runs with the lowest priority but for its smoke inference: it must not slow
what serves.

Never chooses a package index (`package_index` hands on what pip is set up for), and never changes an
environment that is built.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from forebay.engines.environment import (
    BuiltEnvironment,
    EnvironmentFailed,
    Platform,
    Recipe,
    SmokeFailed,
    compute_digest,
)
from forebay.engines.environment_repairs import list_installed, locate_site, repair
from forebay.engines.environment_run import StepFailed, run_step
from forebay.engines.environment_store import EnvironmentStore, measure_size

SPARE_MIB: Final = 256  #: that stay free on the disk beside what is built
UV_TIMEOUT_S: Final = 7200.0
COMPILE_TIMEOUT_S: Final = 1800.0
NO_SPACE: Final = os.strerror(errno.ENOSPC)

Report = Callable[[str], None]  #: is told each step, a line for people


class SmokeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a smoke inference found."""

    seconds: float  #: from the start of the engine to its first answer
    tokens: int  #: of that answer


class Smoke(Protocol):
    """Starts the engine of an environment and asks it for a token."""

    def __call__(self, recipe: Recipe, folder: Path, log: Path) -> SmokeResult:
        """Raises EnvironmentFailed."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """With what environments are built on this machine."""

    python: Path  #: base interpreter of the version that the recipe asks for
    platform: Platform
    uv: Path
    environment: Mapping[str, str]  #: of uv's processes, with the package index
    options: tuple[str, ...] = ()  #: of uv's installations
    smoke: Smoke | None  #: None asks nothing, which the description then says


def build_environment(
    recipe: Recipe, store: EnvironmentStore, tools: Tools, report: Report
) -> tuple[BuiltEnvironment, bool]:
    """The environment of a recipe, and whether it was built now.

    Waits where another process builds the same one.

    Raises:
        EnvironmentFailed: with what went wrong, where the log is, and how to mend it; SmokeFailed where it
            was built and did not answer.
        EnvironmentInvalid: the recipe is not usable.
    """
    digest = compute_digest(recipe, tools.platform)
    if (built := store.find(digest)) is not None:
        return built, False
    report(f"{recipe.name}: environment {digest}")
    with store.lock(digest):
        if (built := store.find(digest)) is not None:  # somebody else built it while we waited
            return built, False
        store.clear(digest)
        _check_room(recipe, store)
        place, log = store.make_place(digest), store.make_log(digest)
        try:
            return _build(_Site(recipe, store, tools, report, digest, place, log)), True
        except StepFailed as failed:
            raise _explain(failed, log) from None
        except OSError as error:
            raise EnvironmentFailed(_explain_os_error(error, store.root)) from error
        finally:
            shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Site:
    """One build under way."""

    recipe: Recipe
    store: EnvironmentStore
    tools: Tools
    report: Report
    digest: str
    place: Path  #: the folder that is filled
    log: Path

    @property
    def python(self) -> Path:
        return self.place / "bin" / "python"

    def run_uv(self, *arguments: str) -> None:
        run_step(
            (str(self.tools.uv), *arguments),
            log=self.log,
            env=self.tools.environment,
            timeout_s=UV_TIMEOUT_S,
            report=self.report,
        )


def _build(site: _Site) -> BuiltEnvironment:
    recipe, store, report = site.recipe, site.store, site.report
    started = time.monotonic()
    _fill(site)
    report("compiling bytecode")
    _compile(site)
    build_s = time.monotonic() - started
    smoke = None
    if site.tools.smoke is not None:
        report("smoke inference: the engine is started with a tiny model and asked for a token")
        try:
            smoke = site.tools.smoke(recipe, site.place, site.log)
        except EnvironmentFailed as failed:
            raise _set_aside(site, failed) from None
        report(f"the engine answered {smoke.tokens} tokens, {smoke.seconds:.1f} s after its start")
    built = BuiltEnvironment(
        digest=site.digest,
        recipe=recipe.name,
        engine=recipe.engine,
        version=recipe.version,
        revision=recipe.revision,
        hardware=recipe.hardware,
        platform=site.tools.platform,
        built_at_s=time.time(),
        build_s=round(build_s, 2),
        smoke_s=None if smoke is None else round(smoke.seconds, 2),
        smoke_tokens=0 if smoke is None else smoke.tokens,
        size_bytes=measure_size(site.place),
        packages=list_installed(locate_site(site.place)),
        env=recipe.env,
    )
    description = msgspec.json.format(msgspec.json.encode(built), indent=2)
    (site.place / BuiltEnvironment.FILE).write_bytes(description + b"\n")
    os.sync()  # a rename that outlives a power cut must not name files that do not
    os.rename(site.place, store.locate(site.digest))
    report(f"built in {build_s:.1f} s: {built.size_bytes >> 20} MiB, {len(built.packages)} packages")
    return built


def _fill(site: _Site) -> None:
    recipe, tools = site.recipe, site.tools
    site.report(f"Python {tools.platform.python} for {tools.platform.system}")
    venv = ("venv", "--quiet", "--relocatable", "--no-project")
    site.run_uv(*venv, "--python", str(tools.python), str(site.place))
    pinned = site.place / "requirements.txt"
    pinned.write_text(recipe.requirements, encoding="utf-8")
    site.run_uv(
        *("pip", "install", "--python", str(site.python), "--require-hashes", "--no-deps"),
        *("--only-binary", ":all:", *tools.options, "-r", str(pinned)),
    )
    for each in recipe.repairs:
        site.report(f"repair: {repair(each, locate_site(site.place), site.run_uv, site.python)}")


def _compile(site: _Site) -> None:
    """Once for all processes: uv leaves none, and the first import of each would pay.

    Files for other Pythons, which some packages hold, do not compile; nobody imports them.
    """
    workers = max(1, (os.cpu_count() or 2) - 1)
    final = site.store.locate(site.digest)
    run_step(
        (
            *(str(site.python), "-I", "-m", "compileall", "-q", "-j", str(workers)),
            *("-s", str(site.place), "-p", str(final), str(locate_site(site.place))),
        ),
        log=site.log,
        env=site.tools.environment,
        timeout_s=COMPILE_TIMEOUT_S,
        report=lambda line: None,
        accepted=(0, 1),
    )


def _check_room(recipe: Recipe, store: EnvironmentStore) -> None:
    free_mib = shutil.disk_usage(store.root).free >> 20
    needed_mib = recipe.size_mib + SPARE_MIB
    if free_mib < needed_mib:
        raise EnvironmentFailed(
            f"the disk of {store.root} has {free_mib} MiB free, and {recipe.name} needs {needed_mib} MiB: "
            "make "
            "room (`forebay env gc` removes environments that nobody uses), or move the data folder"
        )


def _set_aside(site: _Site, failed: EnvironmentFailed) -> SmokeFailed:
    aside = site.store.root / f".failed-{site.digest}"
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(site.place, aside)
    return SmokeFailed(
        f"{failed.message} The environment is not used; it is kept in {aside}, its log is {site.log}."
    )


def _explain(failed: StepFailed, log: Path) -> EnvironmentFailed:
    if NO_SPACE in failed.tail:
        return EnvironmentFailed(_explain_os_error(OSError(errno.ENOSPC, NO_SPACE), log.parent.parent))
    why = failed.reason or "it said nothing"
    return EnvironmentFailed(
        f"`{failed.what}` failed: {why}. Nothing was left; the whole log is {log}. uv asks the package "
        "index that "
        "pip is set up for (`pip config list`), or the one of its own variables such as UV_DEFAULT_INDEX."
    )


def _explain_os_error(error: OSError, root: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {root} is full; nothing was left of the environment. Make room (`forebay env gc` "
            "removes environments that nobody uses), or move the data folder"
        )
    return f"the environment could not be built: {error.filename or root}: {error.strerror or error}"
