"""Launch plans: what they say is what the engine's own options understand."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines import embeddings, llamacpp
from forebay.engines.model import EngineKindUnknown, EngineSpec
from forebay.engines.plan import Place, plan_engine

#: Of those kinds that Forebay starts by a module of its own; vLLM's plans are looked at in `test_vllm_plan`.
MODULES = {"llamacpp": llamacpp, "minilm": embeddings}
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
counts = st.integers(1, 4096)
specs = st.builds(
    EngineSpec,
    name=names,
    kind=st.sampled_from(sorted(MODULES)),
    model=names,
    threads=counts,
    slots=counts,
    context_tokens=counts,
    batch_max=counts,
)
places = st.builds(Place, port=st.integers(0, 65535), python=st.just("python"))


@given(specs, places)
def test_the_engine_understands_every_plan(spec: EngineSpec, place: Place) -> None:
    plan = plan_engine(spec, place)
    program, flag, module, *options = plan.argv
    assert (program, flag, module) == ("python", "-m", MODULES[spec.kind].MODULE)
    understood = MODULES[spec.kind].parse_options(options)
    assert understood.name == spec.name
    assert (understood.host, understood.port) == (place.host, place.port)
    assert understood.threads == spec.threads
    if spec.kind == "llamacpp":
        assert (understood.model, understood.alias) == (spec.model, spec.name)
        assert (understood.slots, understood.context_tokens) == (spec.slots, spec.context_tokens)
    else:
        assert understood.batch_max == spec.batch_max


@given(specs, places)
def test_equal_specifications_give_equal_plans(spec: EngineSpec, place: Place) -> None:
    assert plan_engine(spec, place) == plan_engine(spec, place)


@pytest.mark.parametrize("kind", MODULES)
def test_a_plan_says_where_the_engine_will_be(kind: str) -> None:
    plan = plan_engine(EngineSpec(name="m", kind=kind), Place(port=18000))
    assert plan.health_url == "http://127.0.0.1:18000/health"
    assert plan.probe_url.startswith("http://127.0.0.1:18000/v1/")
    assert plan.argv[0] == sys.executable
    drain_s = MODULES[kind].parse_options(plan.argv[3:]).drain_s
    assert plan.stop_timeout_s > drain_s, "what may take its time is not killed before"


def test_an_ipv6_address_stands_in_brackets() -> None:
    plan = plan_engine(EngineSpec(name="m", kind="minilm"), Place(port=1, host="::1"))
    assert plan.health_url == "http://[::1]:1/health"
    assert "--host=::1" in plan.argv


def test_a_llamacpp_engine_without_a_model_runs_the_embedded_one() -> None:
    plan = plan_engine(EngineSpec(name="m", kind="llamacpp"), Place(port=1))
    assert "--model=embedded:smollm2-135m" in plan.argv


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(EngineKindUnknown, match=r"'vlm'.*llamacpp, minilm") as refused:
        plan_engine(EngineSpec(name="m", kind="vlm"), Place(port=1))
    assert refused.value.param == "kind"
