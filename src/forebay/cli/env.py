"""`forebay env`: engine environments built, listed, verified and removed, for people and programs."""

import time
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.environments import make_smoke_trial, open_environments
from forebay.app.environments_wanted import load_wanted
from forebay.cli.matrix import open_matrix
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import find_actor, format_moment, print_json
from forebay.cli.terminal import Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.core.errors import ForebayError
from forebay.engines.environment import EnvironmentEntry, Recipe, Removal, SmokeFailed
from forebay.engines.environment_build import build_environment
from forebay.engines.environment_dockerfile import render_dockerfile
from forebay.engines.environment_gc import collect, plan_collection
from forebay.engines.environment_recipes import list_recipes, load_recipe
from forebay.engines.environment_smoke import run_smoke
from forebay.engines.environment_tools import find_tools
from forebay.engines.environment_verify import Verification, verify_environment
from forebay.engines.hardware import detect_hardware
from forebay.engines.matrix import Trial
from forebay.version import __version__

_COLUMNS: Final = (
    Column(title="Environment"),
    Column(title="Recipe"),
    Column(title="Engine"),
    Column(title="Hardware", rank=4),
    Column(title="Python", kind="whole", rank=5),
    Column(title="Size", align="right", kind="whole", rank=3),
    Column(title="Built", kind="whole", rank=6),
    Column(title="Smoke", align="right", kind="whole", rank=2),
    Column(title="Last use", kind="whole", rank=1),
    Column(title="Used by", kind="prose"),
)
_SHOWN_MAX: Final = 20  #: files of one environment that are told


def list_environments(file: Path | None, *, as_json: bool) -> Outcome:
    store = open_environments(load_usable_config(file))
    entries = store.list_entries()
    recipes = [load_recipe(name) for name in list_recipes()]
    if as_json:
        print_json(
            {
                "environments": [_describe(entry) for entry in entries],
                "recipes": [_describe_recipe(recipe) for recipe in recipes],
            }
        )
        return Outcome.OK
    if entries:
        print_table(Table(columns=_COLUMNS, rows=[_make_row(entry) for entry in entries]))
    built = {entry.built.recipe for entry in entries}
    for recipe in recipes:
        state = "" if recipe.name not in built else ", built"
        print_note(f"recipe {recipe.name}: {recipe.summary}, {recipe.engine} {recipe.version}{state}")
    return Outcome.OK


def build(file: Path | None, name: str, *, is_smoked: bool) -> Outcome:
    recipe = load_recipe(name)
    config = load_usable_config(file)
    if recipe.untried:
        print_note(f"{recipe.name}: {recipe.untried}", "yellow")
    tools = find_tools(recipe, run_smoke if is_smoked else None)
    started = time.monotonic()

    def report(line: str) -> None:
        print_note(f"{time.monotonic() - started:7.1f} s  {line}")

    try:
        built, is_new = build_environment(recipe, open_environments(config), tools, report)
    except SmokeFailed as failed:
        _record(file, make_smoke_trial(recipe, detect_hardware(), None, failed.message))
        raise
    if not is_new:
        print_note(f"{recipe.name} is built already")
    elif built.smoke_s is None:
        print_note("no smoke inference was asked for: it is not known whether the engine runs", "yellow")
    else:
        _record(file, make_smoke_trial(recipe, detect_hardware(), built, ""))
    print_line(built.digest)
    return Outcome.OK


def _record(file: Path | None, trial: Trial) -> None:
    """The environment is there whether or not the matrix can be told."""
    try:
        with open_matrix(file) as matrix:
            matrix.record(trial, find_actor())
    except ForebayError as error:
        print_note(f"the version matrix was not told: {error.message}", "yellow")


def show(file: Path | None, name: str, *, as_json: bool) -> Outcome:
    entry = open_environments(load_usable_config(file)).get(name)
    if as_json:
        print_json(_describe(entry))
        return Outcome.OK
    built = entry.built
    smoke = "not asked" if built.smoke_s is None else f"answered {built.smoke_s:.1f} s after its start"
    for title, value in (
        ("Environment", built.digest),
        ("Recipe", f"{built.recipe}, revision {built.revision}"),
        ("Engine", f"{built.engine} {built.version} on {built.hardware}"),
        ("Python", f"{built.platform.python}, {built.platform.system}"),
        ("Built", f"{format_moment(int(built.built_at_s * 1e9))} in {built.build_s:.1f} s"),
        ("Smoke", smoke),
        ("Size", _format_size(built.size_bytes)),
        ("Last use", format_moment(int(entry.used_at_s * 1e9))),
        ("Used by", ", ".join(f"{use.user} (process {use.pid})" for use in entry.users) or "nobody"),
    ):
        print_line(f"{title + ':':13} {value}")
    print_line()
    for package, version in built.packages.items():
        print_line(f"{package}=={version}")
    return Outcome.OK


def verify(file: Path | None, name: str | None, *, as_json: bool) -> Outcome:
    store = open_environments(load_usable_config(file))
    digests = [store.get(name).built.digest] if name is not None else store.list_digests()
    found = {digest: verify_environment(store.locate(digest)) for digest in digests}
    if as_json:
        print_json({digest: {"whole": each.is_whole, **_as_dict(each)} for digest, each in found.items()})
    else:
        for digest, each in found.items():
            _print_verification(digest, each)
        if not found:
            print_note("no environment is built here")
    return Outcome.OK if all(each.is_whole for each in found.values()) else Outcome.PROBLEM


def _print_verification(digest: str, found: Verification) -> None:
    if found.is_whole:
        print_line(f"{digest}: whole, {found.files:,} files")
        return
    print_line(f"{digest}: not what was installed; remove it with its folder and build it anew")
    for what in ("changed", "missing", "extra"):
        names = getattr(found, what)
        for path in names[:_SHOWN_MAX]:
            print_line(f"  {what}: {path}")
        if len(names) > _SHOWN_MAX:
            print_line(f"  {what}: and {len(names) - _SHOWN_MAX} more")


def collect_garbage(file: Path | None, *, is_meant: bool, as_json: bool) -> Outcome:
    config = load_usable_config(file)
    store, wanted = open_environments(config), load_wanted(config, SystemClock())
    removals, kept = plan_collection(store, wanted)
    removed: list[Removal] = []
    stayed = collect(store, wanted, removed.append) if is_meant else ()
    shown = removed if is_meant else removals
    if as_json:
        print_json(
            {
                "removed" if is_meant else "would_remove": [_as_dict(each) for each in shown],
                "kept": dict(kept),
                "stayed": [{**_as_dict(each), "why": why} for each, why in stayed],
            }
        )
        return Outcome.OK
    for each in shown:
        verb = "removed" if is_meant else "would remove"
        print_line(f"{verb} {each.path}: {each.why} ({_format_size(each.size_bytes)})")
    for each, why in stayed:
        print_line(f"kept {each.path}: {why}")
    for digest, why in kept.items():
        print_line(f"kept {digest}: {why}")
    if shown and not is_meant:
        total = _format_size(sum(each.size_bytes for each in shown))
        print_note(f"nothing was removed: `forebay env gc --yes` gives {total} back")
    elif not shown:
        print_note("there is nothing to remove")
    return Outcome.OK


def print_dockerfile(name: str) -> Outcome:
    print_line(render_dockerfile(load_recipe(name), __version__).rstrip("\n"))
    return Outcome.OK


def _make_row(entry: EnvironmentEntry) -> tuple[str | Cell, ...]:
    built = entry.built
    smoke = Cell(text="not asked", style="yellow") if built.smoke_s is None else f"{built.smoke_s:.1f} s"
    return (
        built.digest,
        built.recipe,
        f"{built.engine} {built.version}",
        built.hardware,
        built.platform.python,
        _format_size(built.size_bytes),
        format_moment(int(built.built_at_s * 1e9)),
        smoke,
        format_moment(int(entry.used_at_s * 1e9)),
        ", ".join(sorted({use.user for use in entry.users})),
    )


def _describe(entry: EnvironmentEntry) -> dict[str, object]:
    return {
        **_as_dict(entry.built),
        "used_at_s": entry.used_at_s,
        "users": [_as_dict(use) for use in entry.users],
    }


def _describe_recipe(recipe: Recipe) -> dict[str, object]:
    names = ("name", "engine", "version", "revision", "hardware", "python", "size_mib", "summary", "untried")
    return {name: getattr(recipe, name) for name in names}


def _as_dict(value: msgspec.Struct) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(value)
    return found


def _format_size(size_bytes: int) -> str:
    mib = size_bytes / (1 << 20)
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"
