"""Which combinations count as tested, and what is said of those that do not."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.deployment import Deployment
from forebay.engines.matrix import (
    FIELDS,
    Combination,
    Trial,
    TrialOutcome,
    check_trial,
    combine,
    explain_unknown,
    find_differences,
    is_tested,
)
from forebay.engines.model import EngineSpec

BASE = Combination(
    model="chat", model_version="2", engine="vllm", engine_version="0.32.0", hardware="cpu", precision="bf16"
)


def tried(combination: Combination = BASE, *, passed: bool = True, at: int = 1, note: str = "") -> Trial:
    outcome = TrialOutcome.PASSED if passed else TrialOutcome.FAILED
    return Trial(combination=combination, outcome=outcome, at_ns=at, source="bench", note=note)


def vary(**changes: str) -> Combination:
    return msgspec.structs.replace(BASE, **changes)


def test_what_passed_is_tested_and_nothing_else() -> None:
    assert is_tested(BASE, [tried()])
    assert explain_unknown(BASE, [tried()]) is None
    assert not is_tested(BASE, [])
    for field in FIELDS:
        assert not is_tested(vary(**{field: "other"}), [tried()])


def test_the_newest_trial_counts() -> None:
    assert not is_tested(BASE, [tried(at=1), tried(passed=False, at=2)])
    assert is_tested(BASE, [tried(passed=False, at=1), tried(at=2)])
    assert not is_tested(BASE, [tried(passed=False, at=2), tried(at=2)]), (
        "of two at once, the one that failed"
    )


def test_what_failed_says_so_and_why() -> None:
    unknown = explain_unknown(BASE, [tried(passed=False, note="out of memory")])
    assert unknown is not None
    assert unknown.describe()[0] == (
        "chat 2 on vllm 0.32.0, cpu in bf16 was tested and failed: out of memory"
    )


def test_the_nearest_that_passed_is_told_first_with_what_differs() -> None:
    near, far = vary(engine_version="0.31.0"), vary(engine_version="0.31.0", hardware="cuda-h100")
    unrelated = Combination(model="other", engine="llamacpp")
    unknown = explain_unknown(BASE, [tried(far), tried(unrelated), tried(near)])
    assert unknown is not None
    assert [each.trial.combination for each in unknown.neighbours] == [near, far]
    assert [each.differs for each in unknown.neighbours] == [
        ("engine_version",),
        ("engine_version", "hardware"),
    ]
    first, second, _ = unknown.describe()
    assert first == "chat 2 on vllm 0.32.0, cpu in bf16 was never tested"
    assert second == "passed: the same with engine version 0.31.0 instead of 0.32.0"


def test_without_a_neighbour_that_is_said() -> None:
    unknown = explain_unknown(BASE, [tried(vary(engine_version="0.31.0"), passed=False)])
    assert unknown is not None
    assert unknown.neighbours == ()
    assert "nothing like it has passed" in unknown.describe()[1]


words = st.sampled_from(["", "a", "b", "c"])
combinations = st.builds(
    Combination,
    model=st.sampled_from(["a", "b"]),
    model_version=words,
    engine=words,
    engine_version=words,
    hardware=words,
    precision=words,
)
trials = st.lists(
    st.builds(
        Trial,
        combination=combinations,
        outcome=st.sampled_from(TrialOutcome),
        at_ns=st.integers(0, 3),
        source=st.just("bench"),
    ),
    max_size=12,
)


@given(combinations, trials)
def test_it_is_tested_or_something_is_unknown(wanted: Combination, known: list[Trial]) -> None:
    unknown = explain_unknown(wanted, known)
    assert (unknown is None) == is_tested(wanted, known)
    assert is_tested(wanted, known) == is_tested(wanted, list(reversed(known))), "their order tells nothing"
    if unknown is not None:
        assert unknown.describe()
        counts = [len(each.differs) for each in unknown.neighbours]
        assert counts == sorted(counts)
        for each in unknown.neighbours:
            assert is_tested(each.trial.combination, known)
            assert each.differs == find_differences(wanted, each.trial.combination) != ()


def test_a_deployment_is_a_combination() -> None:
    spec = EngineSpec(name="chat", kind="vllm", version="0.32.0")
    deployment = Deployment(name="d", model="chat", version="2", spec=spec, precision="bf16")
    assert combine(deployment) == BASE


def test_what_can_t_be_recorded_is_told() -> None:
    assert check_trial(tried()) == []
    bad = msgspec.structs.replace(
        tried(vary(model="", precision="x" * 300)), note="x" * 2000, figures={"a": float("nan")}
    )
    assert len(check_trial(bad)) == 4
