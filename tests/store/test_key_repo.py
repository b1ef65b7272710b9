"""Keys at rest: made once, shown once, revoked for good."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.core.errors import InvalidValue
from forebay.core.keys import compute_key_digest
from forebay.gateway.repo import KeyNotFound, KeyRepo
from forebay.store.database import Database


class SteppingClock:
    """Goes on by one nanosecond with each look."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def wall_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.wall_ns()


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[KeyRepo]:
    database = Database.open(tmp_path / "forebay.db")
    database.migrate()
    yield KeyRepo(database, SteppingClock())
    database.close()


def test_a_key_is_shown_once_and_stored_as_its_digest(repo: KeyRepo, tmp_path: Path) -> None:
    entry, plaintext = repo.create("laptop", "search", "web", ("gpt-*", "smollm2-135m"))
    assert plaintext.startswith("fb-")
    assert len(plaintext) == 46
    assert entry.digest == compute_key_digest(plaintext)
    assert plaintext.startswith(entry.prefix)
    assert len(entry.prefix) == 8
    (record,) = repo.list()
    assert record.entry == entry
    assert (record.entry.project, record.entry.team) == ("search", "web")
    assert record.entry.allows("gpt-4")
    assert not record.entry.allows("other")
    assert record.revoked_ns is None
    for path in tmp_path.iterdir():
        assert plaintext.encode() not in path.read_bytes()


def test_keys_differ_and_are_listed_in_the_order_of_their_making(repo: KeyRepo) -> None:
    made = [repo.create("same name") for _ in range(5)]
    assert len({plaintext for _, plaintext in made}) == 5
    assert len({entry.id for entry, _ in made}) == 5
    assert [record.entry for record in repo.list()] == [entry for entry, _ in made]


def test_a_revoked_key_stays_listed_but_opens_nothing(repo: KeyRepo) -> None:
    kept, _ = repo.create("kept")
    ended, _ = repo.create("ended")
    record = repo.revoke(ended.id)
    assert record.revoked_ns is not None
    assert repo.list_live() == (kept,)
    assert [(r.entry.id, r.revoked_ns) for r in repo.list()] == [
        (kept.id, None),
        (ended.id, record.revoked_ns),
    ]


def test_revoking_again_keeps_the_first_moment(repo: KeyRepo) -> None:
    entry, _ = repo.create("a")
    assert repo.revoke(entry.id) == repo.revoke(entry.id) == repo.get(entry.id)


def test_an_unknown_key_can_be_neither_read_nor_revoked(repo: KeyRepo) -> None:
    with pytest.raises(KeyNotFound, match="key_nothing"):
        repo.get("key_nothing")
    with pytest.raises(KeyNotFound, match="key_nothing"):
        repo.revoke("key_nothing")


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "a" * 101}),
        ("name", {"name": "two\nlines"}),
        ("name", {"name": " blank"}),
        ("project", {"project": ""}),
        ("project", {"project": "a b"}),
        ("project", {"project": "a\n"}),
        ("team", {"team": "-first"}),
        ("models", {"models": ()}),
        ("models", {"models": ("",)}),
        ("models", {"models": ("a\0b",)}),
        ("models", {"models": ("a" * 201,)}),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(repo: KeyRepo, param: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidValue) as caught:
        repo.create(**({"name": "good"} | values))  # type: ignore[arg-type]
    assert caught.value.param == param
    assert repo.list() == ()
