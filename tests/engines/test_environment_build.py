"""An environment is built once, all of it or nothing, whoever is killed and whatever fails."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from environment_rig import CountingSmoke, ignore, make_recipe, make_tools, make_wheel

from forebay.engines.environment import (
    BuiltEnvironment,
    EnvironmentFailed,
    EnvironmentInvalid,
    Recipe,
    ReplaceFile,
    compute_digest,
)
from forebay.engines.environment_build import SmokeResult, build_environment
from forebay.engines.environment_repairs import locate_site
from forebay.engines.environment_store import EnvironmentStore

LIMIT_S = 120.0


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture
def store(tmp_path: Path) -> EnvironmentStore:
    return EnvironmentStore(tmp_path / "data")


def list_names(store: EnvironmentStore) -> set[str]:
    """What counts or is left, without locks and logs."""
    return {each.name for each in store.root.iterdir()} - {"locks", "logs", "uses"}


def run(python: Path, code: str) -> str:
    return subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_it_holds_what_is_pinned_and_repaired(store: EnvironmentStore, wheels: Path) -> None:
    recipe, told = make_recipe(wheels), []
    built, is_new = build_environment(recipe, store, make_tools(recipe, wheels, CountingSmoke()), told.append)
    assert is_new
    assert built.packages == {"tiny-alias": "1.0", "tinyengine": "1.0", "tinyhelp": "1.0"}
    assert (built.smoke_s, built.smoke_tokens) == (0.5, 1)
    assert built.size_bytes > 1000
    python = store.locate_python(built.digest)
    assert run(python, "import tinyengine; print(tinyengine.VALUE)") == "1"
    assert run(python, "from importlib.metadata import version; print(version('tiny-alias'))") == "1.0"
    assert run(python, "import tinyhelp; print(tinyhelp.VALUE)") == "mended"
    # Its bytecode is there, and names the place where the files are now.
    code = "import tinyengine; print(tinyengine.__cached__, compile.__name__)"
    cached = Path(run(python, code).split()[0])
    assert cached.is_file()
    assert str(store.locate(built.digest)).encode() in cached.read_bytes()
    assert list_names(store) == {built.digest}
    assert any("smoke" in line for line in told)
    assert any("built in" in line for line in told)


def test_a_program_of_it_runs_where_it_was_moved_to(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels)
    built, _ = build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    folder = store.locate(built.digest)
    prefix = run(folder / "bin" / "python", "import sys; print(sys.prefix)")
    assert Path(prefix).resolve() == folder.resolve()
    assert b".building" not in (folder / "pyvenv.cfg").read_bytes()


def test_a_repair_of_what_is_not_there_is_told(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels, repairs=(ReplaceFile(path="nowhere.py", text=""),))
    with pytest.raises(EnvironmentFailed, match=r"nowhere\.py, which no package has installed"):
        build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    assert list_names(store) == set()


def test_a_repair_leaves_the_cache_as_it_is(store: EnvironmentStore, wheels: Path, tmp_path: Path) -> None:
    """A second environment gets the package as it was, although both are linked to one cache."""
    recipe = make_recipe(wheels)
    build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    plain = make_recipe(wheels, repairs=())
    built, _ = build_environment(plain, store, make_tools(plain, wheels), ignore)
    python = store.locate_python(built.digest)
    assert run(python, "import tinyhelp; print(tinyhelp.VALUE)") == "1"


def test_it_is_built_once(store: EnvironmentStore, wheels: Path) -> None:
    recipe, smoke = make_recipe(wheels), CountingSmoke()
    tools = make_tools(recipe, wheels, smoke)
    first, _ = build_environment(recipe, store, tools, ignore)
    second, is_new = build_environment(recipe, store, tools, ignore)
    assert (second, is_new, smoke.count) == (first, False, 1)


def test_two_builders_at_once_build_once(store: EnvironmentStore, wheels: Path) -> None:
    recipe, smoke = make_recipe(wheels), CountingSmoke()
    tools = make_tools(recipe, wheels, smoke)
    found: list[tuple[BuiltEnvironment, bool]] = []
    threads = [
        threading.Thread(target=lambda: found.append(build_environment(recipe, store, tools, ignore)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert smoke.count == 1
    assert sorted(is_new for _, is_new in found) == [False, False, False, True]
    assert len({built.digest for built, _ in found}) == 1
    assert list_names(store) == {found[0][0].digest}


def test_another_content_is_another_environment(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels)
    one, _ = build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    pins = recipe.requirements.splitlines()
    pins[0] = make_wheel(wheels, "tinyengine", "2.0", "VALUE = 2\n")
    other = make_recipe(wheels, requirements="\n".join(pins))
    two, is_new = build_environment(other, store, make_tools(other, wheels), ignore)
    assert is_new
    assert store.list_digests() == sorted({one.digest, two.digest})


_KILLED = """
import sys, time
from pathlib import Path
from forebay.engines.environment_build import build_environment
from forebay.engines.environment_store import EnvironmentStore
from environment_rig import make_recipe, make_tools, ignore
def smoke(recipe, folder, log):
    print("smoke", flush=True)
    time.sleep(600)
wheels, data = map(Path, sys.argv[1:])
recipe = make_recipe(wheels)
build_environment(recipe, EnvironmentStore(data), make_tools(recipe, wheels, smoke), ignore)
"""


def test_a_builder_that_is_killed_leaves_nothing_that_counts(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels)
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(wheels), str(store.root.parent)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(here)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"smoke\n"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait(LIMIT_S)
        if process.stdout:
            process.stdout.close()
    assert store.list_entries() == []
    assert len(store.list_leftovers()) == 1
    tools = make_tools(recipe, wheels, CountingSmoke())
    built, is_new = build_environment(recipe, store, tools, ignore)
    assert is_new
    assert list_names(store) == {built.digest}


def test_what_a_builder_started_ends_with_it(tmp_path: Path) -> None:
    """A process that outlived its builder would write on in a folder that somebody else fills."""
    code = (
        "import sys; from pathlib import Path; from forebay.engines.environment_run import run_step; "
        "run_step((sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); "
        "time.sleep(600)'), "
        "log=Path(sys.argv[1]), env={}, timeout_s=600, report=lambda line: print(line, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait(LIMIT_S)
    process.stdout.close()
    deadline = time.monotonic() + LIMIT_S
    while _is_running(child):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def fail_smoke(recipe: Recipe, folder: Path, log: Path) -> SmokeResult:
    with log.open("a") as file:
        file.write("the engine's last words\n")
    raise EnvironmentFailed("the engine gave no answer.")


def test_one_that_fails_its_smoke_is_set_aside_with_its_log(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels)
    with pytest.raises(EnvironmentFailed, match=r"no answer.*kept in") as refused:
        build_environment(recipe, store, make_tools(recipe, wheels, fail_smoke), ignore)
    assert store.list_entries() == []
    (aside,) = store.list_failed()
    assert (aside / "bin" / "python").exists()
    log = Path(refused.value.message.rpartition("its log is ")[2].rstrip("."))
    assert "the engine's last words" in log.read_text()
    # A second try builds it anew, and then nothing is left aside.
    built, is_new = build_environment(recipe, store, make_tools(recipe, wheels, CountingSmoke()), ignore)
    assert is_new
    assert list_names(store) == {built.digest}


def test_a_package_with_another_hash_is_refused(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels)
    make_wheel(wheels, "tinyhelp", content="VALUE = 'something else'\n")
    with pytest.raises(EnvironmentFailed, match=r"(?is)hash.*log is") as refused:
        build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    assert "uv pip install" in refused.value.message
    assert list_names(store) == set()


def test_what_is_not_pinned_is_refused_before_anything_is_made(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels, requirements="tinyengine>=1")
    with pytest.raises(EnvironmentInvalid, match="not pinned"):
        build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    assert not store.root.exists()


def test_without_room_nothing_is_begun(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels, size_mib=1 << 40)
    with pytest.raises(EnvironmentFailed, match=r"MiB free.*env gc"):
        build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    assert list_names(store) == set()


def test_a_disk_that_fills_up_leaves_nothing(
    store: EnvironmentStore, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.root.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(store.root)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no small disk can be mounted here")
    try:
        monkeypatch.setattr("forebay.engines.environment_build.SPARE_MIB", -1)
        pins = [make_wheel(wheels, "tinylarge", content=f"VALUE = {os.urandom(1 << 21).hex()!r}\n")]
        recipe = make_recipe(wheels, requirements="\n".join(pins), repairs=())
        tools = make_tools(recipe, wheels)
        copying = {**tools.environment, "UV_LINK_MODE": "copy"}
        tools = msgspec.structs.replace(tools, environment=copying)
        with pytest.raises(EnvironmentFailed, match=r"is full; nothing was left.*Make room"):
            build_environment(recipe, store, tools, ignore)
        assert list_names(store) == set()
    finally:
        subprocess.run(["umount", str(store.root)], check=True)


def test_logs_are_kept_and_bounded(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels)
    built, _ = build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    (log,) = (store.root / "logs").iterdir()
    assert "pip install" in log.read_text()
    for _ in range(7):
        store.make_log(built.digest).touch()
    assert len(list((store.root / "logs").iterdir())) == 5


def test_packages_lie_where_python_looks(store: EnvironmentStore, wheels: Path) -> None:
    recipe = make_recipe(wheels)
    built, _ = build_environment(recipe, store, make_tools(recipe, wheels), ignore)
    assert (locate_site(store.locate(built.digest)) / "tinyengine.py").is_file()
    assert built.digest == compute_digest(recipe, built.platform)
