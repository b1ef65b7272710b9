"""What differs between two manifests: all of it, nothing else, and whether replicas have to be replaced."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.app.config_deployments import DeploymentConfig, LaunchersConfig
from forebay.app.deployment_compile import compile_deployment
from forebay.app.deployment_diff import FieldChange, compute_diff
from forebay.app.deployment_store import read_manifest
from forebay.app.manifest_files import dump_manifest


def name_revision(name: str, manifest: DeploymentConfig) -> str:
    return compile_deployment(name, manifest, HERE).revision


HERE = LaunchersConfig()
words = st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True)
whole = st.integers(-(2**63) + 1, 2**63 - 1)
values = st.one_of(st.booleans(), whole, st.floats(-9, 9), st.lists(whole, max_size=3))
engines = st.fixed_dictionaries(
    {"kind": st.just("llamacpp")},
    optional={
        "slots": st.integers(1, 9),
        "version": words,
        "arguments": st.dictionaries(words, values, max_size=3),
    },
)
manifests = st.fixed_dictionaries(
    {"engine": engines, "source": st.just("embedded:smollm2-135m")},
    optional={
        "model": words,
        "version": words,
        "replicas": st.fixed_dictionaries({"min": st.integers(0, 4)}),
        "resources": st.fixed_dictionaries({"cpus": st.floats(0.1, 4)}),
        "adapters": st.dictionaries(words, st.just("/a"), max_size=2),
        "speculation": st.just({"method": "ngram"}),
        "rollout": st.fixed_dictionaries({"step_s": st.integers(0, 100)}),
        "warm_up": st.lists(words, max_size=2),
    },
)


def read(manifest: dict[str, Any]) -> DeploymentConfig:
    return DeploymentConfig.model_validate(manifest)


def change(value: dict[str, Any], changes: tuple[FieldChange, ...]) -> dict[str, Any]:
    """A manifest with defaults, after these changes."""
    for each in changes:
        place = value
        for key in each.path[:-1]:
            if not isinstance(place.get(key), dict):
                place[key] = {}
            place = place[key]
        if each.is_there:
            place[each.path[-1]] = each.after
        else:
            place.pop(each.path[-1])
    return value


@given(manifests)
def test_a_manifest_is_the_same_after_it_was_kept(manifest: dict[str, Any]) -> None:
    once = read(manifest)
    again = read_manifest(dump_manifest(once))
    assert dump_manifest(again) == dump_manifest(once)
    assert compute_diff("a", once, again, name_revision).is_empty
    assert compile_deployment("a", again, HERE) == compile_deployment("a", once, HERE)


@given(manifests, manifests)
def test_a_diff_leads_from_one_to_the_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    before, after = read(one), read(other)
    diff = compute_diff("a", before, after, name_revision)
    reached = change(before.model_dump(mode="json"), diff.changes)
    assert read(reached).model_dump(mode="json") == after.model_dump(mode="json")
    back = compute_diff("a", after, before, name_revision)
    assert {each.key for each in back.changes} == {each.key for each in diff.changes}
    assert diff.rolls is (
        compile_deployment("a", before, HERE).revision != compile_deployment("a", after, HERE).revision
    )


def test_what_is_written_out_though_it_is_the_default_is_no_difference() -> None:
    short = read({"engine": {"kind": "minilm"}})
    long = read({"engine": {"kind": "minilm", "threads": 1}, "tier": "provisioned", "replicas": {"min": 1}})
    assert compute_diff("a", short, long, name_revision).is_empty


def test_replicas_are_replaced_for_what_they_are_and_not_for_how_many() -> None:
    manifest = {"engine": {"kind": "minilm"}}
    more = compute_diff("a", read(manifest), read({**manifest, "replicas": {"min": 3}}), name_revision)
    assert [each.key for each in more.changes] == ["replicas.min"]
    assert not more.rolls
    threads = read({"engine": {"kind": "minilm", "threads": 2}})
    other = compute_diff("a", read(manifest), threads, name_revision)
    assert [(each.key, each.before, each.after) for each in other.changes] == [("engine.threads", 1, 2)]
    assert other.rolls


def test_what_is_new_or_gone_is_told_by_what_it_says_itself() -> None:
    manifest = read({"engine": {"kind": "minilm", "threads": 2}})
    made = compute_diff("a", None, manifest, name_revision)
    assert [each.key for each in made.changes] == ["engine.kind", "engine.threads"]
    assert (made.is_empty, made.revision_before, made.rolls) == (False, "", True)
    gone = compute_diff("a", manifest, None, name_revision)
    assert [each.was_there and not each.is_there for each in gone.changes] == [True, True]
