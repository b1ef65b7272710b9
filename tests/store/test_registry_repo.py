"""Versions and aliases at rest: numbers that are never given twice, aliases that move at once and go back."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tenancy_rig import ACTOR, Tenancy

from forebay.app.model_registry import append_registry_audit, make_author
from forebay.registry.model import (
    ContentKind,
    ModelVersionNotFound,
    NewVersion,
    Registered,
    RegistryConflict,
    RegistryInvalid,
)
from forebay.registry.reference import Pin, Reference, parse_reference
from forebay.registry.repo import RegistryRepo
from forebay.store.database import Database

AUTHOR = make_author(ACTOR)


class Rows(Tenancy):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.repo = self.open(self.database)

    def open(self, database: Database) -> RegistryRepo:
        return RegistryRepo(database, self.clock, append_registry_audit, moves_max=5)

    def register(self, content: str, *, name: str = "chat", alias: str = "") -> Registered:
        return self.repo.register(make_version(content, name=name, alias=alias), AUTHOR)

    def resolve(self, text: str) -> int:
        return self.repo.resolve(parse_reference(text)).version

    def events(self) -> list[tuple[str, str]]:
        found = [(event.action, event.subject) for event in self.audit.load_page(limit=1000)]
        return [event for event in reversed(found) if event[0].startswith("model.")]


def make_version(content: str, *, name: str = "chat", alias: str = "") -> NewVersion:
    return NewVersion(
        name=name,
        digest=content * 64,
        kind=ContentKind.FOLDER,
        files=2,
        size_bytes=1 << 40,
        origin="/somewhere/ä",
        alias=alias,
    )


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    with Rows(tmp_path) as rows:
        yield rows


def test_numbers_go_up_for_each_name_and_are_never_given_twice(rows: Rows) -> None:
    assert [rows.register(content).version.version for content in "abc"] == [1, 2, 3]
    assert rows.register("a", name="other").version.version == 1
    assert rows.register("b").version.version == 2
    rows.repo.delete(parse_reference("chat@3"), AUTHOR, lambda _connection, _version: ())
    assert rows.register("c").version.version == 4
    assert [each.version for each in rows.repo.get_model("chat").versions] == [4, 2, 1]
    assert [model.name for model in rows.repo.list_models()] == ["chat", "other"]
    assert rows.repo.list_digests() == {"a" * 64, "b" * 64, "c" * 64}


def test_an_alias_means_one_version_and_goes_back_to_what_it_meant(rows: Rows) -> None:
    for content in "abc":
        rows.register(content, alias="champion")
    assert rows.resolve("chat@champion") == 3
    assert rows.repo.roll_back_alias("chat", "champion", AUTHOR).version == 2
    assert rows.resolve("chat@champion") == 2
    assert rows.repo.move_alias("chat", "champion", 1, AUTHOR).version == 1
    before = rows.events()
    assert rows.repo.move_alias("chat", "champion", 1, AUTHOR).version == 1
    assert rows.events() == before
    rows.repo.remove_alias("chat", "champion", AUTHOR)
    with pytest.raises(ModelVersionNotFound, match=r"no alias 'champion'; there is none"):
        rows.resolve("chat@champion")
    assert rows.repo.roll_back_alias("chat", "champion", AUTHOR).version == 1
    moves = [move.version for move in rows.repo.load_moves("chat", "champion")]
    assert moves == [1, None, 1, 2, 3]  # five are kept
    assert rows.events()[-2:] == [("model.alias_remove", "chat@champion"), ("model.alias", "chat@champion")]


def test_an_alias_does_not_go_back_to_what_is_gone(rows: Rows) -> None:
    rows.register("a", alias="champion")
    rows.register("b", alias="champion")
    rows.repo.delete(parse_reference("chat@1"), AUTHOR, lambda _connection, _version: ())
    with pytest.raises(RegistryConflict, match="no other version before"):
        rows.repo.roll_back_alias("chat", "champion", AUTHOR)


def test_an_alias_is_not_moved_over_what_somebody_else_has_done(rows: Rows) -> None:
    rows.register("a", alias="champion")
    rows.register("b")
    with pytest.raises(RegistryConflict, match="means version 1, and 2 was expected"):
        rows.repo.move_alias("chat", "champion", 2, AUTHOR, expected=2)
    with pytest.raises(RegistryConflict, match="is not there, and 1 was expected"):
        rows.repo.move_alias("chat", "other", 2, AUTHOR, expected=1)
    assert rows.repo.move_alias("chat", "champion", 2, AUTHOR, expected=1).version == 2


def test_a_version_in_use_is_not_deleted(rows: Rows) -> None:
    rows.register("a", alias="champion")
    with pytest.raises(RegistryConflict, match="in use by the alias champion, deployment x: end that first"):
        rows.repo.delete(parse_reference("chat@1"), AUTHOR, lambda _connection, _version: ("deployment x",))
    rows.repo.remove_alias("chat", "champion", AUTHOR)
    rows.repo.delete(parse_reference("chat@1"), AUTHOR, lambda _connection, _version: ())
    with pytest.raises(ModelVersionNotFound, match="no model 'chat' is registered here"):
        rows.resolve("chat@1")
    assert rows.events() == [
        ("model.register", "chat@1"),
        ("model.alias", "chat@champion"),
        ("model.alias_remove", "chat@champion"),
        ("model.delete", "chat@1"),
    ]


def test_what_is_said_of_a_version_may_change_and_its_content_not(rows: Rows) -> None:
    rows.register("a")
    found = rows.repo.edit(
        parse_reference("chat@1"), AUTHOR, tags={"stage": "tested", "x": "y"}, description="Grüße"
    )
    assert (found.tags, found.description) == ({"stage": "tested", "x": "y"}, "Grüße")
    found = rows.repo.edit(parse_reference("chat@1"), AUTHOR, tags={}, without=frozenset({"x"}))
    assert (found.tags, found.description) == ({"stage": "tested"}, "Grüße")
    assert rows.repo.get_model("chat").versions == (found,)
    for tags in ({"": "x"}, {"a=b": "x"}, {"a": "\0"}, {"a": "x" * 501}, {f"t{n}": "" for n in range(65)}):
        with pytest.raises(RegistryInvalid):
            rows.repo.edit(parse_reference("chat@1"), AUTHOR, tags=tags)
    assert rows.repo.get_model("chat").versions == (found,)


def test_a_pinned_reference_means_its_pin(rows: Rows) -> None:
    rows.register("a", alias="champion")
    rows.register("b", alias="champion")
    pinned = Reference(name="chat", alias="champion", pin=Pin(version=1, digest="a" * 64))
    assert rows.repo.resolve(pinned).version == 1
    other = Reference(name="chat", alias="champion", pin=Pin(version=1, digest="c" * 64))
    with pytest.raises(RegistryConflict, match="pinned in another registry"):
        rows.repo.resolve(other)


def test_what_is_not_there_is_told_with_what_is(rows: Rows) -> None:
    for content in "abcdef0123456":
        rows.register(content)
    with pytest.raises(ModelVersionNotFound, match=r"no version 99; the newest are 4, 5, .*13"):
        rows.resolve("chat@99")
    with pytest.raises(ModelVersionNotFound, match="`forebay models register away PATH`"):
        rows.repo.get_model("away")
    with pytest.raises(ModelVersionNotFound):
        rows.repo.load_moves("chat", "never")


def test_a_change_that_is_refused_leaves_neither_version_nor_event(rows: Rows) -> None:
    with pytest.raises(RegistryInvalid):
        rows.register("a", alias="latest")
    assert rows.repo.list_models() == ()
    assert rows.events() == []
    assert rows.register("a").version.version == 1


def test_writers_at_once_get_numbers_without_a_gap(rows: Rows) -> None:
    start = threading.Barrier(4)
    found: list[int] = []

    def write(content: str) -> None:
        database = Database.open(rows.location, busy_timeout_s=60)
        try:
            start.wait(30)
            for part in range(5):
                digest = f"{content}{part}".ljust(64, "0")
                new = msgspec.structs.replace(make_version("a", alias=f"by-{content}"), digest=digest)
                found.append(rows.open(database).register(new, AUTHOR).version.version)
        finally:
            database.close()

    threads = [threading.Thread(target=write, args=(content,)) for content in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(found) == list(range(1, 21))
    assert len(rows.repo.get_model("chat").aliases) == 4
