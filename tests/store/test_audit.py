"""Each change of teams, projects, keys and tokens is one event, in its transaction, and holds no secret."""

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tenancy_rig import ACTOR, Tenancy

from forebay.core.errors import InvalidValue
from forebay.core.keys import Rights
from forebay.gateway.tenancy import (
    Actor,
    NewKey,
    ProjectNotFound,
    Role,
    TeamNotFound,
    TokenNotFound,
)

#: Lets nothing more into the audit.
FULL = {
    "sqlite": (
        "CREATE TRIGGER is_full BEFORE INSERT ON gateway_audit BEGIN SELECT RAISE(ABORT, 'no room'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'no room' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        "CREATE TRIGGER is_full BEFORE INSERT ON gateway_audit EXECUTE FUNCTION refuse()",
    ),
}


@pytest.fixture
def tenancy(tmp_path: Path) -> Iterator[Tenancy]:
    with Tenancy(tmp_path) as tenancy:
        yield tenancy


def test_every_change_is_one_event_with_who_what_before_and_after(tenancy: Tenancy) -> None:
    teams, keys, tokens = tenancy.teams, tenancy.keys, tenancy.tokens
    assert tenancy.audit.load_page(limit=10) == ()
    teams.create_team("web", ACTOR)
    teams.put_project("web", "search", Rights(regions=("eu",)), ACTOR)
    teams.put_project("web", "search", Rights(regions=("us",)), ACTOR)
    key_id = keys.create(NewKey(name="k", team="web", project="search"), ACTOR)[0].entry.id
    new_id = keys.rotate(key_id, ACTOR, overlap_s=60)[0].entry.id
    keys.revoke(key_id, ACTOR)
    token_id = tokens.create("bot", Role.OPERATOR, ACTOR)[0].id
    tokens.revoke(token_id, ACTOR)
    events = tenancy.audit.load_page(limit=100)[::-1]
    assert [(event.action, event.subject, event.before is None) for event in events] == [
        ("team.create", "web", True),
        ("project.create", "web/search", True),
        ("project.change", "web/search", False),
        ("key.create", key_id, True),
        ("key.create", new_id, True),
        ("key.rotate", key_id, False),
        ("key.revoke", key_id, False),
        ("token.create", token_id, True),
        ("token.revoke", token_id, False),
    ]
    assert all(event.actor == ACTOR and event.after is not None for event in events)
    assert [event.at_ns for event in events] == sorted(event.at_ns for event in events)
    change = events[2]
    assert change.before is not None
    assert change.after is not None
    assert (change.before["regions"], change.after["regions"]) == (["eu"], ["us"])
    rotation = events[5]
    assert rotation.before is not None
    assert rotation.after is not None
    assert rotation.before["expires_ns"] is None
    assert rotation.after["expires_ns"] == keys.get(key_id).entry.expires_ns
    assert events[4].after is not None
    assert events[4].after["rotated_from"] == key_id
    assert events[8].after is not None
    assert events[8].after["revoked_ns"] is not None


def test_an_actor_of_an_identity_provider_is_told_whole(tenancy: Tenancy) -> None:
    issuer = f"https://login.example/{'r' * 479}"
    actor = Actor(id=f"oidc:{'s' * 255}", name="ada@example.org", issuer=issuer[:500])
    tenancy.teams.create_team("web", actor)
    tenancy.teams.create_team("ads", ACTOR)
    ads, web = tenancy.audit.load_page(limit=10)
    assert (web.actor, ads.actor) == (actor, ACTOR)
    assert ads.actor.issuer is None


def test_what_changes_nothing_is_no_event(tenancy: Tenancy) -> None:
    def fail(change: Callable[[], object], *errors: type[Exception]) -> None:
        with pytest.raises(errors):
            change()

    tenancy.teams.create_team("default", ACTOR)
    tenancy.teams.put_project("default", "default", Rights(), ACTOR)
    fail(lambda: tenancy.teams.create_team("a b", ACTOR), InvalidValue)
    fail(lambda: tenancy.teams.put_project("none", "x", Rights(), ACTOR), TeamNotFound)
    fail(lambda: tenancy.teams.put_project("default", "x", Rights(tier_max="x"), ACTOR), InvalidValue)
    fail(lambda: tenancy.teams.get_project("default", "x"), ProjectNotFound)
    fail(lambda: tenancy.keys.create(NewKey(name="x", project="x"), ACTOR), ProjectNotFound)
    fail(lambda: tenancy.tokens.create("", Role.OWNER, ACTOR), InvalidValue)
    fail(lambda: tenancy.tokens.create("t", Role.OWNER, ACTOR, expires_ns=1), InvalidValue)
    fail(lambda: tenancy.tokens.revoke("tok_none", ACTOR), TokenNotFound)
    assert tenancy.audit.load_page(limit=10) == ()
    assert tenancy.keys.find_last_change() == 0


def test_a_change_whose_event_can_not_be_written_is_not_made(tenancy: Tenancy) -> None:
    """The other way round it is by SQL: event and change are in one transaction."""
    key_id = tenancy.keys.create(NewKey(name="k"), ACTOR)[0].entry.id
    token_id = tenancy.tokens.create("t", Role.VIEWER, ACTOR)[0].id
    before = (tenancy.keys.list(), tenancy.tokens.list(), tenancy.teams.list_projects())
    with tenancy.database.begin() as connection:
        for statement in FULL[tenancy.database.dialect]:
            connection.execute(text(statement))
    for change in (
        lambda: tenancy.keys.create(NewKey(name="x"), ACTOR),
        lambda: tenancy.keys.rotate(key_id, ACTOR, overlap_s=1),
        lambda: tenancy.keys.revoke(key_id, ACTOR),
        lambda: tenancy.keys.change(key_id, lambda terms: replace(terms, name="x"), ACTOR),
        lambda: tenancy.tokens.create("x", Role.OWNER, ACTOR),
        lambda: tenancy.tokens.revoke(token_id, ACTOR),
        lambda: tenancy.teams.create_team("x", ACTOR),
        lambda: tenancy.teams.put_project("default", "x", Rights(), ACTOR),
        lambda: tenancy.teams.put_project("default", "default", Rights(regions=("eu",)), ACTOR),
    ):
        with pytest.raises(IntegrityError, match="no room"):
            change()
    assert (tenancy.keys.list(), tenancy.tokens.list(), tenancy.teams.list_projects()) == before
    assert [team.name for team in tenancy.teams.list_teams()] == ["default"]


def test_pages_put_together_are_the_whole_and_a_subject_has_its_own(tenancy: Tenancy) -> None:
    for number in range(7):
        tenancy.teams.create_team(f"t{number}", ACTOR)
    whole = tenancy.audit.load_page(limit=100)
    assert [event.subject for event in whole] == [f"t{number}" for number in reversed(range(7))]
    paged: list[object] = []
    before: int | None = None
    while page := tenancy.audit.load_page(limit=3, before_id=before):
        paged += page
        before = page[-1].id
    assert paged == list(whole)
    assert [event.subject for event in tenancy.audit.load_page(limit=9, subject="t3")] == ["t3"]


def test_no_secret_and_no_hash_of_one_is_in_the_audit(tenancy: Tenancy) -> None:
    made, key = tenancy.keys.create(NewKey(name="k"), ACTOR)
    _, second = tenancy.keys.rotate(made.entry.id, ACTOR, overlap_s=1)
    tenancy.keys.revoke(made.entry.id, ACTOR)
    token_record, token = tenancy.tokens.create("t", Role.OWNER, ACTOR)
    tenancy.tokens.revoke(token_record.id, ACTOR)
    told = msgspec.json.encode(tenancy.audit.load_page(limit=100)).decode()
    for secret in (key, second, token):
        digest = hashlib.sha256(secret.encode()).digest()
        for form in (secret[9:], digest.hex(), base64.b64encode(digest).decode()):
            assert form not in told
    assert made.entry.prefix in told


# --- tokens -------------------------------------------------------------------------------------------------


def test_a_token_opens_until_it_is_revoked_or_expires(tenancy: Tenancy, tmp_path: Path) -> None:
    ends_ns = tenancy.clock.now_ns + 10**6
    record, plaintext = tenancy.tokens.create("bot", Role.VIEWER, ACTOR, expires_ns=ends_ns)
    assert plaintext.startswith(record.prefix)
    assert plaintext.startswith("fba-")
    assert (len(plaintext), len(record.prefix)) == (47, 9)
    digest = hashlib.sha256(plaintext.encode()).digest()
    assert tenancy.tokens.find_live(digest) == record
    assert tenancy.tokens.find_live(b"\0" * 32) is None
    other, text_ = tenancy.tokens.create("bot", Role.OWNER, ACTOR)
    revoked = tenancy.tokens.revoke(other.id, ACTOR)
    assert tenancy.tokens.revoke(other.id, ACTOR) == revoked
    assert tenancy.tokens.find_live(hashlib.sha256(text_.encode()).digest()) is None
    assert tenancy.tokens.list() == (record, revoked)
    tenancy.clock.now_ns = ends_ns
    assert tenancy.tokens.find_live(digest) is None
    for path in tmp_path.iterdir():
        assert plaintext.encode() not in path.read_bytes()


def test_roles_include_those_below_them() -> None:
    assert [[one.includes(other) for other in Role] for one in Role] == [
        [True, False, False, False],
        [False, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]
