"""Who uses environments, which of them go, and whether their files are what was installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from environment_rig import CountingSmoke, ignore, make_recipe, make_tools

from forebay.engines.environment import EnvironmentInvalid, Removal
from forebay.engines.environment_build import build_environment
from forebay.engines.environment_gc import collect, plan_collection
from forebay.engines.environment_launch import compose_launch, find_python
from forebay.engines.environment_repairs import locate_site
from forebay.engines.environment_store import EnvironmentBusy, EnvironmentStore, read_start
from forebay.engines.environment_verify import verify_environment


@pytest.fixture
def store(tmp_path: Path) -> EnvironmentStore:
    return EnvironmentStore(tmp_path / "data")


@pytest.fixture
def digest(store: EnvironmentStore, tmp_path: Path) -> str:
    recipe = make_recipe(tmp_path / "wheels")
    built, _ = build_environment(
        recipe, store, make_tools(recipe, tmp_path / "wheels", CountingSmoke()), ignore
    )
    return built.digest


def collect_all(store: EnvironmentStore, **wanted: str) -> list[str]:
    gone: list[Removal] = []
    collect(store, wanted, gone.append)
    return [each.path for each in gone]


def test_what_nobody_uses_goes(store: EnvironmentStore, digest: str) -> None:
    planned, kept = plan_collection(store, {})
    assert [each.path for each in planned] == [digest]
    assert kept == {}
    assert store.list_digests() == [digest], "looking removes nothing"
    assert collect_all(store) == [digest]
    assert store.list_digests() == []
    assert not store.locate(digest).exists()


def test_what_a_deployment_names_stays(store: EnvironmentStore, digest: str) -> None:
    planned, kept = plan_collection(store, {digest: "deployment chat"})
    assert (planned, kept) == ([], {digest: "wanted by deployment chat"})
    assert collect_all(store, **{digest: "deployment chat"}) == []
    assert store.list_digests() == [digest]


def test_what_a_process_uses_stays_until_it_has_ended(store: EnvironmentStore, digest: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        store.acquire(digest, "chat-1", pid=process.pid)
        assert [use.user for use in store.get(digest).users] == ["chat-1"]
        assert collect_all(store) == []
    finally:
        process.kill()
        process.communicate()
    assert store.get(digest).users == ()
    assert collect_all(store) == [digest]


def test_another_process_with_the_number_of_one_that_ended_is_no_user(
    store: EnvironmentStore, digest: str
) -> None:
    use = store.acquire(digest, "chat-1")
    path = store.root / "uses" / digest / f"{use.pid}-{use.started}"
    path.write_bytes(path.read_bytes().replace(str(use.started).encode(), str(use.started + 1).encode()))
    assert store.list_users(digest) == ()
    assert collect_all(store) == [digest]


def test_a_use_that_is_given_back_ends(store: EnvironmentStore, digest: str) -> None:
    use = store.acquire(digest, "chat-1")
    assert store.list_users(digest) == (use,)
    store.release(digest, use)
    assert store.list_users(digest) == ()


def test_what_is_taken_while_it_is_removed_is_refused_or_stays(store: EnvironmentStore, digest: str) -> None:
    store.acquire(digest, "chat-1")  # after somebody looked, before they removed
    with pytest.raises(EnvironmentInvalid, match="no environment 0123456789abcdef"):
        store.acquire("0123456789abcdef", "chat-2")
    assert collect_all(store) == []


def test_a_process_that_is_gone_uses_nothing(store: EnvironmentStore, digest: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(EnvironmentInvalid, match="is gone"):
        store.acquire(digest, "chat-1", pid=process.pid)


def test_one_that_is_worked_on_is_left_alone(store: EnvironmentStore, digest: str) -> None:
    (store.root / f".building-{digest}-1-abcd").mkdir()
    with store.lock(digest):
        assert store.is_locked(digest)
        planned, _ = plan_collection(store, {})
        assert [each.path for each in planned] == [digest], "what is under way is no rubbish"
        assert collect_all(store) == []
        with pytest.raises(EnvironmentBusy, match="try again"), store.lock(digest, timeout_s=0.0):
            pass
    assert sorted(collect_all(store)) == sorted([f".building-{digest}-1-abcd", digest])
    assert not store.list_leftovers()


def test_a_digest_may_be_shortened(store: EnvironmentStore, digest: str) -> None:
    assert store.get(digest[:4]).built.digest == digest
    with pytest.raises(EnvironmentInvalid, match="env list"):
        store.get(digest[:3])
    with pytest.raises(EnvironmentInvalid, match="env list"):
        store.get("zzzz")


def test_the_last_use_is_told(store: EnvironmentStore, digest: str) -> None:
    before = store.get(digest)
    assert before.used_at_s == before.built.built_at_s
    store.acquire(digest, "chat-1")
    uses = store.root / "uses" / digest
    os.utime(uses, (before.used_at_s + 100, before.used_at_s + 100))
    assert store.get(digest).used_at_s == before.used_at_s + 100


def test_an_engine_of_forebay_finds_this_package_and_nothing_beside_it(
    store: EnvironmentStore, digest: str
) -> None:
    built = store.get(digest).built
    variables = compose_launch(store, built)
    assert variables["TINY"] == "1"
    code = "import forebay, tinyengine, sys; print(forebay.__file__, 'fastapi' in sys.modules); import pytest"
    done = subprocess.run(
        [find_python(store, digest), "-c", code], env=variables, capture_output=True, text=True
    )
    assert "forebay/__init__.py False" in done.stdout
    assert "No module named 'pytest'" in done.stderr


def test_a_whole_environment_is_whole(store: EnvironmentStore, digest: str) -> None:
    found = verify_environment(store.locate(digest))
    assert found.is_whole
    assert found.files >= 6


def test_each_kind_of_damage_is_told(store: EnvironmentStore, digest: str) -> None:
    site = locate_site(store.locate(digest))
    changed = site / "tinyengine.py"
    changed.unlink()  # it may be a link to uv's cache
    changed.write_text("VALUE = 3\n")
    (site / "tinyhelp.py").unlink()
    (site / "smuggled.py").write_text("")
    found = verify_environment(store.locate(digest))
    assert not found.is_whole
    assert found.changed == ("tinyengine.py",)
    assert found.missing == ("tinyhelp.py",)
    assert found.extra == ("smuggled.py",)


def test_a_description_that_is_damaged_is_told(store: EnvironmentStore, digest: str) -> None:
    (store.locate(digest) / "forebay-environment.json").write_text("{")
    with pytest.raises(EnvironmentInvalid, match="build it anew"):
        store.find(digest)


def test_the_start_of_a_process_is_known() -> None:
    assert read_start(os.getpid()) == read_start(os.getpid())
    assert read_start(2**22 + 1) is None
