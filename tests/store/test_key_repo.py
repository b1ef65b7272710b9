"""Keys at rest: made and shown once, rotated, revoked for good, within the rights of their project."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenancy_rig import ACTOR, SteppingClock, Tenancy

from forebay.core.errors import InvalidValue
from forebay.core.keys import NONE, TIERS, KeyEntry, Rights, compute_key_digest, narrow_rights
from forebay.core.routes import Endpoint
from forebay.gateway.tenancy import (
    KeyEnded,
    KeyNotFound,
    KeyRecord,
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


def test_a_test_runs_over_the_database_that_its_name_says(
    tenancy: Tenancy, request: pytest.FixtureRequest
) -> None:
    assert f"[{tenancy.database.dialect}]" in request.node.name


def test_a_key_is_shown_once_and_stored_as_its_digest(tenancy: Tenancy, tmp_path: Path) -> None:
    tenancy.teams.create_team("web", ACTOR)
    tenancy.teams.put_project("web", "search", Rights(), ACTOR)
    rights = Rights(
        models=("gpt-*", "smollm2-135m"),
        endpoints=("embeddings",),
        regions=("eu",),
        tier_max="quantized",
        context_max_tokens=10,
        output_max_tokens=20,
    )
    wanted = NewKey(
        name="laptop", project="search", team="web", rights=rights, priority="batch", expires_ns=10**18
    )
    made, plaintext = tenancy.keys.create(wanted, ACTOR)
    entry = made.entry
    assert plaintext.startswith("fb-")
    assert len(plaintext) == 46
    assert entry.digest == compute_key_digest(plaintext)
    assert plaintext.startswith(entry.prefix)
    assert len(entry.prefix) == 8
    assert tenancy.keys.list() == (made,) == (tenancy.keys.get(entry.id),)
    assert tenancy.keys.list_live() == (entry,)
    assert made.rights == rights
    assert (entry.project, entry.team, entry.priority, entry.expires_ns) == ("search", "web", "batch", 10**18)
    assert (entry.endpoints, entry.regions, entry.tier_max) == (("embeddings",), ("eu",), "quantized")
    assert (entry.context_max_tokens, entry.output_max_tokens) == (10, 20)
    assert entry.allows("gpt-4")
    assert not entry.allows("other")
    assert (made.revoked_ns, made.rotated_from) == (None, None)
    for path in tmp_path.iterdir():
        assert plaintext.encode() not in path.read_bytes()


def test_keys_differ_and_are_listed_in_the_order_of_their_making(tenancy: Tenancy) -> None:
    made = [tenancy.keys.create(NewKey(name="same name"), ACTOR) for _ in range(5)]
    assert len({plaintext for _, plaintext in made}) == 5
    assert len({record.entry.id for record, _ in made}) == 5
    assert tenancy.keys.list() == tuple(record for record, _ in made)


def test_a_key_needs_a_project_that_exists(tenancy: Tenancy) -> None:
    with pytest.raises(TeamNotFound, match="forebay teams create"):
        make(tenancy, team="nobody")
    with pytest.raises(ProjectNotFound, match="forebay projects create"):
        make(tenancy, project="nothing")
    assert tenancy.keys.list() == ()


def test_a_revoked_key_stays_listed_but_opens_nothing(tenancy: Tenancy) -> None:
    kept, ended = make(tenancy), make(tenancy)
    record = tenancy.keys.revoke(ended.entry.id, ACTOR)
    assert record.revoked_ns is not None
    assert tenancy.keys.list_live() == (kept.entry,)
    assert tenancy.keys.list() == (kept, record)


def test_revoking_again_keeps_the_first_moment_and_leaves_no_event(tenancy: Tenancy) -> None:
    key_id = make(tenancy).entry.id
    first = tenancy.keys.revoke(key_id, ACTOR)
    changes = tenancy.keys.find_last_change()
    assert tenancy.keys.revoke(key_id, ACTOR) == first == tenancy.keys.get(key_id)
    assert tenancy.keys.find_last_change() == changes


def test_an_expired_key_leaves_the_live_ones(tenancy: Tenancy) -> None:
    ends_ns = tenancy.clock.now_ns + 100
    record = make(tenancy, expires_ns=ends_ns)
    assert tenancy.keys.list_live() == (record.entry,)
    tenancy.clock.now_ns = ends_ns
    assert tenancy.keys.list_live() == ()
    assert tenancy.keys.list() == (record,)
    with pytest.raises(InvalidValue, match="future"):
        make(tenancy, expires_ns=ends_ns)


# --- rotation -----------------------------------------------------------------------------------------------


def test_rotation_makes_the_same_key_anew_and_ends_the_old_one_with_the_overlap(tenancy: Tenancy) -> None:
    rights = Rights(models=("m*",), regions=("eu",), output_max_tokens=5)
    old = make(tenancy, "n", rights=rights, priority="interactive", expires_ns=2 * DAY_S * 10**9)
    new, plaintext = tenancy.keys.rotate(old.entry.id, ACTOR, overlap_s=DAY_S)
    assert new.entry.digest == compute_key_digest(plaintext)
    assert new.entry.digest != old.entry.digest
    assert (new.rights, new.entry.name, new.entry.priority) == (rights, "n", "interactive")
    assert new.entry.expires_ns == old.entry.expires_ns, "no longer than the old one was to live"
    assert new.rotated_from == old.entry.id
    ends_ns = tenancy.keys.get(old.entry.id).entry.expires_ns
    assert ends_ns is not None
    assert 0 <= tenancy.clock.now_ns + DAY_S * 10**9 - ends_ns < 1000
    assert {entry.id for entry in tenancy.keys.list_live()} == {old.entry.id, new.entry.id}
    tenancy.clock.now_ns = ends_ns
    assert [entry.id for entry in tenancy.keys.list_live()] == [new.entry.id]


def test_an_overlap_never_lets_the_old_key_outlive_its_own_end(tenancy: Tenancy) -> None:
    soon = tenancy.clock.now_ns + 10**9
    old = make(tenancy, expires_ns=soon)
    later = 10**15
    new, _ = tenancy.keys.rotate(old.entry.id, ACTOR, overlap_s=DAY_S, expires_ns=later)
    assert tenancy.keys.get(old.entry.id).entry.expires_ns == soon
    assert new.entry.expires_ns == later


def test_without_an_overlap_the_old_key_ends_at_once(tenancy: Tenancy) -> None:
    old = make(tenancy)
    new, _ = tenancy.keys.rotate(old.entry.id, ACTOR, overlap_s=0)
    assert tenancy.keys.list_live() == (new.entry,)


def test_a_key_is_rotated_once_and_only_while_it_lives(tenancy: Tenancy) -> None:
    first = make(tenancy).entry.id
    second = tenancy.keys.rotate(first, ACTOR, overlap_s=DAY_S)[0].entry.id
    with pytest.raises(KeyEnded, match=second):
        tenancy.keys.rotate(first, ACTOR, overlap_s=DAY_S)
    tenancy.keys.revoke(second, ACTOR)
    with pytest.raises(KeyEnded, match="revoked"):
        tenancy.keys.rotate(second, ACTOR, overlap_s=DAY_S)
    short = make(tenancy, expires_ns=tenancy.clock.now_ns + 50).entry.id
    tenancy.clock.now_ns += 100
    with pytest.raises(KeyEnded, match="expired"):
        tenancy.keys.rotate(short, ACTOR, overlap_s=DAY_S)
    count = len(tenancy.keys.list())
    for bad in (-1.0, 400 * DAY_S, float("nan")):
        with pytest.raises(InvalidValue, match="overlap"):
            tenancy.keys.rotate(make(tenancy).entry.id, ACTOR, overlap_s=bad)
    assert len(tenancy.keys.list()) == count + 3


def test_an_unknown_key_can_be_neither_read_nor_changed(tenancy: Tenancy) -> None:
    with pytest.raises(KeyNotFound, match="key_nothing"):
        tenancy.keys.get("key_nothing")
    with pytest.raises(KeyNotFound, match="key_nothing"):
        tenancy.keys.revoke("key_nothing", ACTOR)
    with pytest.raises(KeyNotFound, match="key_nothing"):
        tenancy.keys.rotate("key_nothing", ACTOR, overlap_s=1)


# --- what is refused ----------------------------------------------------------------------------------------


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
        ("models", {"rights": Rights(models=())}),
        ("models", {"rights": Rights(models=("",))}),
        ("models", {"rights": Rights(models=("a\0b",))}),
        ("models", {"rights": Rights(models=("a" * 201,))}),
        ("endpoints", {"rights": Rights(endpoints=("chat",))}),
        ("regions", {"rights": Rights(regions=("-",))}),
        ("regions", {"rights": Rights(regions=("",))}),
        ("regions", {"rights": Rights(regions=("eu",) * 101)}),
        ("tier_max", {"rights": Rights(tier_max="cloud")}),
        ("tier_max", {"rights": Rights(tier_max="")}),
        ("context_max_tokens", {"rights": Rights(context_max_tokens=0)}),
        ("output_max_tokens", {"rights": Rights(output_max_tokens=-1)}),
        ("output_max_tokens", {"rights": Rights(output_max_tokens=10**12 + 1)}),
        ("priority", {"priority": "urgent"}),
        ("expires", {"expires_ns": 1}),
        ("expires", {"expires_ns": 1 << 63}),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    tenancy: Tenancy, param: str, values: dict[str, object]
) -> None:
    with pytest.raises(InvalidValue) as caught:
        tenancy.keys.create(NewKey(**({"name": "good"} | values)), ACTOR)  # type: ignore[arg-type]
    assert caught.value.param == param
    assert tenancy.keys.list() == ()


# --- a key within its project -------------------------------------------------------------------------------

REGIONS = ("eu", "us", "asia")
some_rights = st.builds(
    Rights,
    endpoints=st.lists(st.sampled_from([each.value for each in Endpoint]), unique=True).map(tuple),
    regions=st.lists(st.sampled_from(REGIONS), unique=True).map(tuple),
    tier_max=st.none() | st.sampled_from(TIERS),
    context_max_tokens=st.none() | st.integers(1, 50),
    output_max_tokens=st.none() | st.integers(1, 50),
)


def as_entry(rights: Rights) -> KeyEntry:
    return KeyEntry(
        id="", digest=b"", name="", prefix="", endpoints=rights.endpoints, regions=rights.regions,
        tier_max=rights.tier_max,
    )  # fmt: skip


@given(some_rights, some_rights)
def test_what_is_allowed_is_what_key_and_project_both_allow(project: Rights, own: Rights) -> None:
    narrowed = narrow_rights(project, own)
    both, one, other = map(as_entry, (narrowed, project, own))
    for endpoint in Endpoint:
        assert both.allows_endpoint(endpoint) == (
            one.allows_endpoint(endpoint) and other.allows_endpoint(endpoint)
        )
    for tier in (*TIERS, "of-a-later-version"):
        for region in (*REGIONS, "", *NONE):
            if region in NONE:
                continue  # which no target can have
            allowed = one.allows_target(tier, region) and other.allows_target(tier, region)
            assert both.allows_target(tier, region) == allowed
    for name in ("context_max_tokens", "output_max_tokens"):
        limits = [getattr(rights, name) for rights in (project, own)]
        for tokens in range(1, 52):
            fits = all(limit is None or tokens <= limit for limit in limits)
            limit = getattr(narrowed, name)
            assert (limit is None or tokens <= limit) == fits
    assert narrow_rights(project, narrowed) == narrowed


def test_a_target_without_a_region_is_in_none() -> None:
    assert as_entry(Rights()).allows_target("provider", "")
    assert not as_entry(Rights(regions=("eu",))).allows_target("provisioned", "")


def test_the_rights_of_a_project_bound_its_keys_at_once(tenancy: Tenancy) -> None:
    record = make(tenancy, rights=Rights(models=("gpt-*",), regions=("eu", "us"), output_max_tokens=10))
    bounds = Rights(models=("*-4",), regions=("us",), tier_max="autoscaled", output_max_tokens=100)
    tenancy.teams.put_project("default", "default", bounds, ACTOR)
    (entry,) = tenancy.keys.list_live()
    assert [name for name in ("gpt-4", "gpt-3", "x-4") if entry.allows(name)] == ["gpt-4"]
    assert (entry.regions, entry.tier_max, entry.output_max_tokens) == (("us",), "autoscaled", 10)
    assert tenancy.keys.get(record.entry.id).rights == record.rights, "its own stay what they were"


def test_the_clock_of_these_tests_goes_on() -> None:
    clock = SteppingClock()
    assert clock.wall_ns() < clock.wall_ns()
