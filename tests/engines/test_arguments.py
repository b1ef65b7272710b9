"""Arguments of engines are checked against what each version really accepts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.arguments import (
    Severity,
    check_arguments,
    list_known_versions,
    load_accepted,
)
from forebay.engines.environment_recipes import list_recipes, load_recipe
from forebay.engines.llamacpp import make_parser
from forebay.engines.model import Argument, EngineSpec, Speculation
from forebay.engines.plan import Place, plan_engine

VLLM = "0.32.0"


def check(kind: str = "vllm", **arguments: Argument) -> list[tuple[str, str, str]]:
    named = {name.replace("__", "."): value for name, value in arguments.items()}
    return [(each.name, each.message, each.hint) for each in check_arguments(kind, VLLM, named)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"enforce-eager": True},
        {"enforce_eager": False},
        {"dtype": "float32", "kv-cache-memory-bytes": 1 << 26},
        {"max-num-batched-tokens": "8k"},
        {"gpu-memory-utilization": 0.8},
        {"tool-call-parser": "hermes", "enable-auto-tool-choice": True},
        {"hf-overrides": '{"rope_theta": 1}'},
        {"hf-overrides.rope_theta": 1},
        {"limit-mm-per-prompt": '{"image": 2}'},
        {"ignore-patterns": ("a/*", "b/*"), "middleware": "a.b"},
        {"--chat-template": "/templates/chat.jinja"},
        {},
    ],
)
def test_what_the_engine_takes_is_taken(arguments: dict[str, Argument]) -> None:
    assert check_arguments("vllm", VLLM, arguments) == ()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"enforce-eagre": True}, "vllm 0.32.0 has no such argument", "did you mean `enforce-eager`?"),
        ({"no-enforce-eager": True}, "has no such argument", "give `enforce-eager: false`"),
        ({"zzzzzzzzzz": 1}, "has no such argument", "remove it"),
        ({"enforce-eager": 1}, "takes true or false", "not 1"),
        ({"dtype": "float31"}, "takes one of auto, bfloat16", "did you mean `float32`?"),
        ({"tool-call-parser": "hermess"}, "takes one of", "did you mean `hermes`?"),
        ({"max-num-batched-tokens": "8q"}, "takes a whole number, such as 4096 or 4k", "not '8q'"),
        ({"max-num-batched-tokens": 1.5}, "takes a whole number", "not '1.5'"),
        ({"max-loras": True}, "takes a value", "give one"),
        ({"gpu-memory-utilization": "much"}, "takes a number", "not 'much'"),
        ({"limit-mm-per-prompt": "{"}, "takes a value in JSON", "'{' is none"),
        ({"dtype": ("a", "b")}, "takes one value, not a list", "give one"),
        ({"port": 1}, "can't be given here: that is the address", "remove it"),
        ({"max_model_len": 1}, "can't be given here: `context_tokens` says that already", "remove it"),
    ],
)
def test_what_it_would_refuse_is_told_with_what_to_do(
    arguments: dict[str, Argument], message: str, hint: str
) -> None:
    (problem,) = check_arguments("vllm", VLLM, arguments)
    assert problem.name == next(iter(arguments))
    assert message in problem.message
    assert hint in problem.hint
    assert problem.severity is Severity.ERROR


def test_all_mistakes_are_told_at_once() -> None:
    assert [name for name, _, _ in check(dtype="x", unheard=1, seed=3)] == ["dtype", "unheard"]


def test_of_an_unknown_version_it_is_said_that_nothing_is_known() -> None:
    (problem,) = check_arguments("vllm", "9.9.9", {"anything": 1})
    assert problem.severity is Severity.WARNING
    assert "vllm 9.9.9" in problem.message
    assert VLLM in problem.hint
    assert check_arguments("vllm", "9.9.9", {}) == ()
    assert check_arguments("vllm", "../../secret", {"a": 1})[0].severity is Severity.WARNING


def test_without_a_version_the_newest_known_one_counts() -> None:
    assert check_arguments("vllm", "", {"enforce-eager": True}) == ()
    assert check_arguments("vllm", "", {"enforce-eagre": True})


def test_an_engine_without_arguments_takes_none() -> None:
    (problem,) = check_arguments("minilm", "", {"a": 1})
    assert (problem.severity, problem.hint) == (Severity.ERROR, "remove `arguments`")


def test_what_llamacpp_accepts_is_what_its_runner_has() -> None:
    accepted = load_accepted("llamacpp", "")
    assert accepted is not None
    names = {
        option.removeprefix("--")
        for action in make_parser()._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert set(accepted.arguments) == names - {"help"}, "run scripts/accepted_arguments.py llamacpp anew"


def test_arguments_of_llamacpp_reach_its_command_line() -> None:
    arguments: dict[str, Argument] = {"batch-tokens": 128, "stall-s": 5.5}
    assert check_arguments("llamacpp", "1", arguments) == ()
    plan = plan_engine(EngineSpec(name="m", kind="llamacpp", arguments=arguments), Place(port=1))
    options = make_parser().parse_args(plan.argv[3:])
    assert (options.batch_tokens, options.stall_s) == (128, 5.5)
    (problem,) = check_arguments("llamacpp", "1", {"slots": 3})
    assert "`slots` says that already" in problem.message


def test_each_recipe_that_is_built_has_its_arguments_written_down() -> None:
    for name in list_recipes():
        recipe = load_recipe(name)
        if recipe.engine == "vllm" and not recipe.untried:
            assert recipe.version in list_known_versions("vllm")


@given(st.dictionaries(st.text(max_size=12), st.one_of(st.booleans(), st.integers(), st.floats(), st.text())))
def test_nothing_that_is_given_breaks_the_check(arguments: dict[str, Argument]) -> None:
    for problem in check_arguments("vllm", VLLM, arguments):
        assert problem.message
        assert problem.name in arguments


def test_n_grams_of_a_deployment_reach_llamacpp() -> None:
    spec = EngineSpec(
        name="m", kind="llamacpp", speculation=Speculation(method="ngram", tokens=8, lookup_max=4)
    )
    options = make_parser().parse_args(plan_engine(spec, Place(port=1)).argv[3:])
    assert (options.ngram_tokens, options.ngram_lookup) == (8, 4)
    plain = make_parser().parse_args(
        plan_engine(EngineSpec(name="m", kind="llamacpp"), Place(port=1)).argv[3:]
    )
    assert plain.ngram_tokens is None
    (problem,) = check_arguments("llamacpp", "1", {"ngram-tokens": 8})
    assert "`speculation` says that already" in problem.message
