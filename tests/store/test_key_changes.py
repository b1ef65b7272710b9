"""Keys and projects at rest: what a change keeps, tells and refuses, and that what has ended stays so."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import msgspec
import pytest
from tenancy_rig import ACTOR, Tenancy

from forebay.core.errors import InvalidValue
from forebay.core.keys import Rights
from forebay.gateway.tenancy import (
    KeyEnded,
    KeyNotFound,
    KeyRecord,
    KeyTerms,
    NewKey,
    ProjectNotFound,
    TeamNotFound,
)

DAY_S = 86_400


@pytest.fixture
def tenancy(tmp_path: Path) -> Iterator[Tenancy]:
    with Tenancy(tmp_path) as tenancy:
        yield tenancy


def make(tenancy: Tenancy, name: str = "a", **fields: object) -> KeyRecord:
    return tenancy.keys.create(NewKey(name=name, **fields), ACTOR)[0]  # type: ignore[arg-type]


def test_a_change_keeps_what_it_does_not_name_and_leaves_an_event_with_both(tenancy: Tenancy) -> None:
    rights = Rights(models=("m*",), regions=("eu",), output_max_tokens=5)
    old = make(tenancy, "n", rights=rights, priority="batch", expires_ns=10**18)
    wanted = Rights(models=("m*",), regions=("eu",), output_max_tokens=9)
    new = tenancy.keys.change(old.entry.id, lambda terms: replace(terms, rights=wanted), ACTOR)
    assert new == tenancy.keys.get(old.entry.id)
    assert new.rights == wanted
    assert KeyTerms.of(new) == replace(KeyTerms.of(old), rights=wanted)
    assert (new.entry.digest, new.created_ns) == (old.entry.digest, old.created_ns)
    (event, _) = tenancy.audit.load_page(limit=10, subject=old.entry.id)
    assert event.before is not None
    assert event.after is not None
    assert (event.action, event.actor) == ("key.change", ACTOR)
    differs = {name for name in event.after if event.before[name] != event.after[name]}
    assert differs == {"output_max_tokens"}
    assert (event.before["output_max_tokens"], event.after["output_max_tokens"]) == (5, 9)


def test_every_term_of_a_key_can_be_changed_and_every_bound_be_lifted(tenancy: Tenancy) -> None:
    key_id = make(tenancy).entry.id
    bound = KeyTerms(
        name="b",
        rights=Rights(
            models=("x",),
            endpoints=("embeddings",),
            regions=("eu",),
            tier_max="provisioned",
            context_max_tokens=1,
            output_max_tokens=2,
        ),
        priority="interactive",
        expires_ns=10**18,
    )
    free = KeyTerms(name="f", rights=Rights(), priority="standard", expires_ns=None)
    for terms in (bound, free):
        assert KeyTerms.of(tenancy.keys.change(key_id, lambda _: terms, ACTOR)) == terms  # noqa: B023
        assert KeyTerms.of(tenancy.keys.get(key_id)) == terms


def test_a_change_that_changes_nothing_leaves_no_event(tenancy: Tenancy) -> None:
    record = make(tenancy)
    changes = tenancy.keys.find_last_change()
    assert tenancy.keys.change(record.entry.id, lambda terms: terms, ACTOR) == record
    assert tenancy.keys.find_last_change() == changes
    project = tenancy.teams.get_project("default", "default")
    assert tenancy.teams.change_project("default", "default", lambda rights: rights, ACTOR) == project
    assert tenancy.keys.find_last_change() == changes


def test_a_changed_key_stays_within_its_project(tenancy: Tenancy) -> None:
    key_id = make(tenancy, rights=Rights(regions=("eu",), output_max_tokens=5)).entry.id
    bounds = Rights(regions=("eu", "us"), output_max_tokens=10)
    tenancy.teams.put_project("default", "default", bounds, ACTOR)
    wider = Rights(regions=("us", "asia"), output_max_tokens=100)
    changed = tenancy.keys.change(key_id, lambda terms: replace(terms, rights=wider), ACTOR)
    assert changed.rights == wider
    (entry,) = tenancy.keys.list_live()
    assert (entry.regions, entry.output_max_tokens) == (("us",), 10)


def test_of_a_project_only_what_is_named_changes_with_an_event(tenancy: Tenancy) -> None:
    tenancy.teams.put_project("default", "p", Rights(regions=("eu",), output_max_tokens=5), ACTOR)
    changed = tenancy.teams.change_project(
        "default", "p", lambda rights: msgspec.structs.replace(rights, output_max_tokens=None), ACTOR
    )
    assert changed.rights == Rights(regions=("eu",)) == tenancy.teams.get_project("default", "p").rights
    (event, _) = tenancy.audit.load_page(limit=10, subject="default/p")
    assert event.before is not None
    assert event.after is not None
    assert event.action == "project.change"
    assert (event.before["output_max_tokens"], event.after["output_max_tokens"]) == (5, None)
    with pytest.raises(InvalidValue):
        tenancy.teams.change_project("default", "p", lambda _: Rights(models=()), ACTOR)
    with pytest.raises(ProjectNotFound):
        tenancy.teams.change_project("default", "none", lambda rights: rights, ACTOR)
    with pytest.raises(TeamNotFound):
        tenancy.teams.change_project("none", "p", lambda rights: rights, ACTOR)


@pytest.mark.parametrize("what", ["key", "project"])
def test_of_two_changes_at_once_neither_undoes_the_other(tenancy: Tenancy, what: str) -> None:
    key_id = make(tenancy).entry.id
    reading, done = Event(), Event()

    def change(edit: Callable[[Rights], Rights]) -> None:
        if what == "key":
            tenancy.keys.change(key_id, lambda terms: replace(terms, rights=edit(terms.rights)), ACTOR)
        else:
            tenancy.teams.change_project("default", "default", edit, ACTOR)

    def dawdle(rights: Rights) -> Rights:
        reading.set()
        done.wait(0.3)  # in vain, for the other has to wait for this one
        return msgspec.structs.replace(rights, output_max_tokens=1)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(change, dawdle)
        assert reading.wait(30)
        change(lambda rights: msgspec.structs.replace(rights, context_max_tokens=2))
        done.set()
        slow.result(30)
    key, project = tenancy.keys.get(key_id), tenancy.teams.get_project("default", "default")
    rights = key.rights if what == "key" else project.rights
    assert (rights.output_max_tokens, rights.context_max_tokens) == (1, 2)


def test_what_has_ended_stays_ended(tenancy: Tenancy) -> None:
    revoked, short = make(tenancy).entry.id, make(tenancy, expires_ns=tenancy.clock.now_ns + 50).entry.id
    tenancy.keys.revoke(revoked, ACTOR)
    tenancy.clock.now_ns += 100
    changes = tenancy.keys.find_last_change()
    for key_id, said in ((revoked, "revoked"), (short, "expired")):
        with pytest.raises(KeyEnded, match=said):
            tenancy.keys.change(key_id, lambda terms: replace(terms, expires_ns=None), ACTOR)
    with pytest.raises(KeyNotFound, match="key_nothing"):
        tenancy.keys.change("key_nothing", lambda terms: terms, ACTOR)
    assert tenancy.keys.find_last_change() == changes


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("name", {"name": " blank"}),
        ("models", {"rights": Rights(models=())}),
        ("tier_max", {"rights": Rights(tier_max="cloud")}),
        ("output_max_tokens", {"rights": Rights(output_max_tokens=0)}),
        ("priority", {"priority": "urgent"}),
        ("expires", {"expires_ns": 1}),
        ("expires", {"expires_ns": 1 << 63}),
    ],
)
def test_a_change_is_validated_as_a_new_key_is(
    tenancy: Tenancy, param: str, values: dict[str, object]
) -> None:
    record = make(tenancy)
    with pytest.raises(InvalidValue) as caught:
        tenancy.keys.change(record.entry.id, lambda terms: replace(terms, **values), ACTOR)  # type: ignore[arg-type]
    assert caught.value.param == param
    assert tenancy.keys.list() == (record,)
