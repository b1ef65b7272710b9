"""Contents on the disk: by their digests, whole or not at all, whatever is found, refused or raced for."""

import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registry_rig import AUTHOR, Scene, ignore, write_folder

from forebay.registry.model import ContentKind, ContentManifest, ContentRefused, DiskRefuses, RegistryConflict
from forebay.registry.reference import parse_reference
from forebay.registry.scan import scan
from forebay.registry.service import Wanted


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path / "data") as scene:
        yield scene


def test_a_file_is_a_version_whatever_it_is_called(scene: Scene, tmp_path: Path) -> None:
    write_folder(tmp_path, {"a.gguf": b"GGUF weights", "b/other-name": b"GGUF weights"})
    first = scene.register("chat", tmp_path / "a.gguf")
    again = scene.register("chat", tmp_path / "b/other-name")
    assert (first.version.version, first.is_new, again.is_new) == (1, True, False)
    assert again.version == first.version
    place = scene.registry.locate(first.version)
    assert place.read_bytes() == b"GGUF weights"
    assert place.stat().st_mode & 0o222 == 0
    assert [told.action for told in scene.told] == ["model.register"]


def test_a_folder_is_a_version_with_its_links_and_without_hidden_files(scene: Scene, tmp_path: Path) -> None:
    write_folder(tmp_path / "cache", {"blob": b"weights"})
    folder = write_folder(
        tmp_path / "hf",
        {"config.json": b"{}", "sub/tokens": b"t", ".git/x": b"no", "sub/.y": b"no", "e": b""},
    )
    (folder / "model.safetensors").symlink_to(tmp_path / "cache/blob")
    version = scene.register("chat", folder).version
    place = scene.registry.locate(version)
    there = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert there == {"config.json", "sub/tokens", "model.safetensors", "e"}
    assert not (place / "model.safetensors").is_symlink()
    assert (version.kind, version.files, version.size_bytes) == (ContentKind.FOLDER, 4, 10)
    (folder / "config.json").write_bytes(b"{...}")
    assert (place / "config.json").read_bytes() == b"{}"


def test_files_that_versions_share_lie_there_once(scene: Scene, tmp_path: Path) -> None:
    one = write_folder(tmp_path / "one", {"w": b"same", "c": b"1"})
    two = write_folder(tmp_path / "two", {"w": b"same", "c": b"2"})
    places = [scene.registry.locate(scene.register("chat", each).version) for each in (one, two)]
    assert (places[0] / "w").samefile(places[1] / "w")
    assert sum(name.startswith("blobs/") for name in scene.list_files()) == 3


names = st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3})?", fullmatch=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, st.binary(max_size=20), min_size=1, max_size=5), st.randoms())
def test_the_digest_is_of_the_files_alone(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], random: object
) -> None:
    folders = {name for name in files if any(other.startswith(f"{name}/") for other in files)}
    files = {name: data for name, data in files.items() if name not in folders}
    files["last"] = b"x"
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    write_folder(one, files)
    turned = list(files.items())
    random.shuffle(turned)  # type: ignore[attr-defined]
    write_folder(two, dict(turned))
    with Scene(tmp_path_factory.mktemp("data")) as scene:
        first, second = (scene.register(f"m{index}", each) for index, each in enumerate((one, two)))
        assert first.version.digest == second.version.digest
        assert scene.is_whole(first.version.digest)
        write_folder(two, {"last": b"y"})
        assert scene.register("m1", two).version.digest != first.version.digest
        manifest = scene.store.load_manifest(first.version.digest)
        assert manifest is not None
        assert {entry.path for entry in manifest.files} == set(files)


def test_the_digest_of_a_content_is_what_it_always_was() -> None:
    manifest = ContentManifest(kind=ContentKind.FILE, files=())
    assert manifest.encode() == b'{"kind":"file","files":[]}'


@pytest.mark.parametrize("what", ["nothing", "empty", "socket", "loop", "dangling", "odd", "hollow", "long"])
def test_what_can_be_no_content_is_refused(scene: Scene, tmp_path: Path, what: str) -> None:
    folder = write_folder(tmp_path / "hf", {"config.json": b"{}"})
    path = folder
    if what == "nothing":
        path = tmp_path / "away"
    elif what == "empty":
        path = tmp_path / "empty"
        path.write_bytes(b"")
    elif what == "socket":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "s"))
        listener.close()
    elif what == "loop":
        (folder / "again").symlink_to(folder)
    elif what == "dangling":
        (folder / "w").symlink_to(tmp_path / "away")
    elif what == "odd":
        os.mkdir(os.fsencode(folder) + b"/\xff")
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff/x")).write_bytes(b"x")
    elif what == "hollow":
        (folder / "config.json").write_bytes(b"")
    else:
        write_folder(folder, {f"{'a' * 200}/{'b' * 200}": b"x"})
    with pytest.raises(ContentRefused) as caught:
        scene.register("chat", path)
    assert caught.value.message
    assert scene.repo.list_models() == ()
    assert scene.list_files() == set()


def test_a_file_that_changes_while_it_is_read_is_refused(scene: Scene, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", {"a": b"first", "b": b"second"})
    wanted = Wanted(name="chat", path=folder)
    found = scene.registry.look(wanted)

    def change(_count: int, name: str) -> None:
        if name == "b":
            (folder / "b").write_bytes(b"something else")

    with pytest.raises(ContentRefused, match="changed while it was read"):
        scene.registry.register(wanted, found, AUTHOR, change)
    assert scene.list_files() == set()


def test_files_may_be_given_further_names_instead_of_copies(scene: Scene, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", {"w": b"weights"})
    place = scene.registry.locate(scene.register("chat", folder, link=True).version)
    assert (place / "w").samefile(folder / "w")
    assert (folder / "w").stat().st_mode & 0o222 == 0
    assert scene.register("chat", folder).is_new is False


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    weights = write_folder(tmp_path, {"small": b"s" * 100, "w": b"x" * 300_000})
    with Scene(tmp_path / "data") as scene:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            with pytest.raises(DiskRefuses, match=r"File too large.*Nothing was changed"):
                scene.register("chat", weights / "w")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert scene.list_files() == set()
        assert scene.repo.list_models() == ()
        assert scene.register("chat", weights / "w").version.version == 1


def test_damage_is_found_and_mended_by_registering_anew(scene: Scene, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", {"a": b"aaa", "b": b"bbb", "c/d": b"ddd"})
    version = scene.register("chat", folder).version
    place = scene.registry.locate(version)
    (place / "a").chmod(0o644)
    (place / "a").write_bytes(b"AAA")
    (place / "b").unlink()
    (place / "extra").write_bytes(b"x")
    damage = scene.store.verify(version.digest, ignore)
    assert (damage.changed, damage.missing, damage.extra) == (("a",), ("b",), ("extra",))
    assert scene.register("chat", folder).version == version
    (place / "extra").unlink()
    assert scene.is_whole(version.digest)
    (place.parent / "manifest.json").unlink()
    assert not scene.is_whole(version.digest)
    scene.register("chat", folder)
    assert scene.is_whole(version.digest)


def test_what_no_version_needs_is_collected_and_nothing_else(scene: Scene, tmp_path: Path) -> None:
    one = write_folder(tmp_path / "one", {"w": b"same", "c": b"1"})
    two = write_folder(tmp_path / "two", {"w": b"same", "c": b"2"})
    gone, kept = scene.register("chat", one).version, scene.register("other", two).version
    assert scene.registry.collect(is_meant=True) == ()
    scene.repo.delete(parse_reference("chat@1"), AUTHOR, lambda _connection, _version: ())
    shown = scene.registry.collect(is_meant=False)
    assert sum(each.size_bytes for each in shown) == 1
    assert scene.store.has(gone.digest)
    assert scene.registry.collect(is_meant=True) == shown
    assert not scene.store.has(gone.digest)
    assert scene.is_whole(kept.digest)
    assert scene.registry.collect(is_meant=True) == ()


def test_nobody_collects_while_a_version_is_registered(tmp_path: Path) -> None:
    with Scene(tmp_path / "data", lock_wait_s=0.05) as scene:
        with scene.store.hold(), scene.store.hold():
            with pytest.raises(RegistryConflict, match="is being registered"):
                scene.registry.collect(is_meant=True)
        with scene.store.hold(alone=True):
            with pytest.raises(RegistryConflict, match="being collected"):
                scene.register("chat", Path(__file__))


def test_registrations_at_once_have_numbers_of_their_own_and_one_for_a_content(tmp_path: Path) -> None:
    paths = [write_folder(tmp_path / f"m{index}", {"w": b"w%d" % (index % 3)}) for index in range(6)]
    start = threading.Barrier(6)
    done: list[tuple[int, str]] = []
    with Scene(tmp_path / "data"):
        pass

    def register(path: Path) -> None:
        with Scene(tmp_path / "data") as scene:
            start.wait(30)
            version = scene.register("chat", path).version
            done.append((version.version, version.digest))

    threads = [threading.Thread(target=register, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 6
    assert {version for version, _ in done} == {1, 2, 3}
    assert len(set(done)) == 3
    with Scene(tmp_path / "data") as scene:
        assert all(scene.is_whole(digest) for _, digest in done)
        assert scene.registry.collect(is_meant=True) == ()


def test_a_scan_says_how_much_it_found(tmp_path: Path) -> None:
    found = scan(write_folder(tmp_path / "hf", {"b": b"22", "a": b"1"}))
    assert ([file.path for file in found.files], found.size_bytes) == (["a", "b"], 3)
